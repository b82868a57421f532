// Sampling: the definition with a plain sort. Where rounding may decide between tokens, any of them
// will do.
#include <algorithm>
#include <cmath>
#include <set>

#include "core/check.h"
#include "harness/cases/op_cases.h"
#include "harness/measure/tolerance.h"

namespace hypic::conformance {
namespace {

struct Settings {
  double temperature = 0;
  int32_t top_k = 0;
  double top_p = 1;
  double uniform = 0;
};

// The tokens that may come of row r: several where a share of the mass is within `slack` of what it
// is compared with.
std::set<int64_t> tokens_of(const Array& logits, int64_t r, const Settings& s, double slack) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < logits[1]; ++i)
    if (!std::isnan(logits(r, i))) order.push_back(i);
  if (order.empty()) return {0};
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return logits(r, a) > logits(r, b); });
  const double top = logits(r, order[0]);
  if (s.temperature == 0 || !std::isfinite(top)) return {order[0]};
  if (0 < s.top_k && s.top_k < static_cast<int64_t>(order.size())) order.resize(s.top_k);
  std::vector<double> share = {0};  // of the first 0, 1, … tokens
  for (const int64_t i : order)
    share.push_back(share.back() + std::exp((logits(r, i) - top) / s.temperature));
  const double total = share.back();
  for (double& x : share) x /= total;
  std::set<int64_t> tokens;
  for (size_t kept = 1; kept <= order.size(); ++kept) {
    const bool reached = share[kept] >= s.top_p - slack,
               fewer_too = share[kept - 1] >= s.top_p + slack;
    if (s.top_p >= 1 ? kept < order.size() : !reached || (fewer_too && kept > 1)) continue;
    const double passed = s.uniform * share[kept];
    for (size_t n = 0; n < kept; ++n)
      if (share[n] < share[n + 1] && share[n] <= passed + slack && passed - slack < share[n + 1])
        tokens.insert(order[n]);
  }
  return tokens;
}

// One row of logits for each of the settings; with none given all rows are greedy.
void sample_one(Context& c, const std::string& what, const Array& numbers,
                std::vector<Settings> settings, int64_t gap = 0) {
  const int64_t R = numbers[0];
  Array temperature({R}), top_p({R}), uniform({R});
  std::vector<int32_t> top_k;
  const bool greedy = settings.empty();
  settings.resize(R);
  for (int64_t r = 0; r < R; ++r) {
    Settings& s = settings[r];
    for (double* x : {&s.temperature, &s.top_p, &s.uniform})
      *x = rounded(Array({1}, *x), c.state())(0);
    temperature(r) = s.temperature;
    top_p(r) = s.top_p;
    uniform(r) = s.uniform;
    top_k.push_back(s.top_k);
  }
  for (const DType dtype : std::set<DType>{c.compute(), c.state()}) {
    Trial t(c, 111);
    const Array logits = rounded(numbers, dtype);
    SampleArgs args{.out = t.index_output("out", {R})};
    args.logits =
        dtype == c.compute() ? t.input("logits", logits, gap) : t.gate_input("logits", logits);
    if (!greedy) {
      args.temperature = t.gate_input("temperature", temperature);
      args.top_k = t.index("top_k", top_k);
      args.top_p = t.gate_input("top_p", top_p);
      args.uniform = t.gate_input("uniform", uniform);
    }
    t.call([&](Backend& b) { b.sample(args); });
    Array want = t.read(args.out);
    for (int64_t r = 0; r < R; ++r) {
      const std::set<int64_t> tokens = tokens_of(logits, r, settings[r], tolerance(c.state()));
      if (!tokens.contains(static_cast<int64_t>(want(r))))
        want(r) = static_cast<double>(*tokens.begin());
    }
    t.identical(str(what, ", ", name_of(dtype), " logits"), args.out, want);
  }
}

void greedy(Context& c) {
  Draw draw(112);
  for (const int64_t N : {1, 33, 1025, 151936}) {
    Array x = draw.normals({5, N});
    x(1, N - 1) = 50;                             // the last
    x(2, 0) = 50;                                 // the first
    x(3, N / 2) = x(3, N / 3) = x(3, N - 1) = 9;  // a tie: the lowest index
    for (int64_t i = 0; i < N; ++i) x(4, i) = -3;
    sample_one(c, str("ties, first and last of ", N), x, {}, 3);
    sample_one(c, str("temperature 0, ", N, " tokens"), x,
               std::vector<Settings>(5, {.top_k = 3, .top_p = 0.5, .uniform = 0.9}));
  }
  sample_one(c, "no rows", Array({0, 7}), {});
}

void distribution(Context& c) {
  Draw draw(113);
  const auto numbers = [&](int64_t R, int64_t N) {
    Array x = draw.normals({R, N}, 3);
    for (int64_t r = 1; r < R; r += 2)  // many equal logits
      for (int64_t i = 0; i < N; ++i) x(r, i) = std::round(x(r, i));
    return x;
  };
  for (const int64_t N : {33, 1025}) {
    std::vector<Settings> settings;
    for (const double temperature : {0.0, 1e-3, 0.5, 1.0, 2.0, 100.0})
      for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{5}, N / 2, N, N + 7})
        for (const double top_p : {1.0, 0.95, 0.5, 0.1, 1e-6})
          for (int n = 0; n < 2; ++n)
            settings.push_back(
                {temperature, static_cast<int32_t>(top_k), top_p, draw.uniform(0, 1)});
    for (size_t r = 0; r < settings.size(); r += 16) settings[r].uniform = r % 32 ? 1 - 0x1p-24 : 0;
    const auto R = static_cast<int64_t>(settings.size());
    sample_one(c, str(R, " rows of ", N), numbers(R, N), settings, 5);
  }
  sample_one(c, "a vocabulary of 151936", numbers(6, 151936),
             {{1, 0, 1, 0.3},
              {1, 0, 0.9, 0.7},
              {0.5, 50, 1, 0.9},
              {0.7, 2000, 0.8, 0.5},
              {0},
              {2, 0, 0.1, 0.2}});
}

void edges(Context& c) {
  const double inf = INFINITY, nan = NAN;
  const std::vector<std::vector<double>> rows = {
      {-inf, -inf, -inf, -2, -inf, -inf},   {nan, -inf, nan, -2, nan, -inf},
      {-inf, -inf, -inf, -inf, -inf, -inf}, {nan, -inf, -inf, nan, -inf, -inf},
      {nan, nan, nan, nan, nan, nan},       {5, nan, -inf, inf, inf, 0},
      {nan, 0, nan, 0, -inf, -inf},         {-1, -0.0, 0, -0.0, -1, -1},
      {3e38, -3e38, 0, 3e38, -inf, nan}};
  const auto N = static_cast<int64_t>(rows[0].size());
  for (const double temperature : {0.0, 1e-3, 1.0, 100.0})
    for (const double uniform : {0.0, 0.4, 0.6, 1 - 0x1p-24}) {
      Array x({2 * static_cast<int64_t>(rows.size()), N});
      std::vector<Settings> settings;
      for (size_t r = 0; r < rows.size(); ++r)
        for (const int k : {0, 2}) {
          for (int64_t i = 0; i < N; ++i) x(static_cast<int64_t>(settings.size()), i) = rows[r][i];
          settings.push_back({temperature, k, k ? 0.9 : 1, uniform});
        }
      sample_one(c, str("NaN and infinities at temperature ", temperature), x, settings);
    }
  sample_one(c, "one token", Array({3, 1}, -4),
             {{1, 0, 1, 0.99}, {1, 1, 0.5, 0}, {100, 7, 0.1, 0.5}});
  // Sums that are exact: a share that equals top_p reaches it.
  sample_one(c, "equal logits", Array({4, 8}, 1.5),
             {{1, 0, 0.25, 0.75}, {1, 4, 1, 0.75}, {1, 6, 0.9, 0.999}, {1, 0, 1, 0.625}});
}

}  // namespace

std::vector<Case> sample_cases() {
  return {{"sample/greedy", "sample", "", greedy},
          {"sample/distribution", "sample", "", distribution},
          {"sample/edges", "sample", "", edges}};
}

}  // namespace hypic::conformance
