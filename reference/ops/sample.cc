#include "reference/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/ops/threads.h"

namespace hypic::reference {
namespace {

// The first of the largest; NaN counts as nothing.
template <class T>
int32_t greedy(const T* logits, int64_t N) {
  int64_t best = -1;
  for (int64_t i = 0; i < N; ++i)
    if (!std::isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
  return static_cast<int32_t>(std::max<int64_t>(best, 0));
}

// The `count` first tokens (0: all) by falling logit, without those that cannot be drawn.
template <class T>
std::vector<int32_t> by_falling_logit(const T* logits, int64_t N, int64_t count) {
  std::vector<int32_t> order;
  for (int64_t i = 0; i < N; ++i)
    if (logits[i] > -INFINITY) order.push_back(static_cast<int32_t>(i));  // no NaN either
  const auto first = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  if (count <= 0 || count > static_cast<int64_t>(order.size()))
    count = static_cast<int64_t>(order.size());
  std::partial_sort(order.begin(), order.begin() + count, order.end(), first);
  order.resize(count);
  return order;
}

// Sums are float64 whatever T is.
template <class T>
int32_t draw(const T* logits, int64_t N, double temperature, int32_t top_k, double top_p,
             double uniform) {
  const int32_t best = greedy(logits, N);
  if (!(temperature > 0) || !std::isfinite(logits[best])) return best;
  const std::vector<int32_t> order = by_falling_logit(logits, N, top_k);
  std::vector<double> mass;  // relative to that of the best
  double total = 0;
  for (const int32_t i : order) {
    mass.push_back(std::exp((static_cast<double>(logits[i]) - static_cast<double>(logits[best])) /
                            temperature));
    total += mass.back();
  }
  if (top_p < 1) {
    const double enough = top_p * total;
    size_t kept = 1;
    for (total = mass[0]; total < enough && kept < mass.size(); ++kept) total += mass[kept];
    mass.resize(kept);
  }
  size_t n = 0;  // where uniform · total rounds up to the total: the last that has a mass
  for (double sum = mass[0]; sum <= uniform * total && n + 1 < mass.size() && mass[n + 1] > 0;)
    sum += mass[++n];
  return order[n];
}

}  // namespace

template <class T>
void sample(const SampleArgs& args) {
  Shapes shapes("sample");
  shapes.bind(args.logits, "logits", {"R", "N"}).bind(args.out, "out", {"R"});
  if (args.temperature)
    shapes.bind(args.temperature, "temperature", {"R"}).bind(args.uniform, "uniform", {"R"});
  if (args.top_k) shapes.bind(args.top_k, "top_k", {"R"});
  if (args.top_p) shapes.bind(args.top_p, "top_p", {"R"});
  check_dtype<T>(args.logits, args.temperature, args.top_p, args.uniform);
  check_dtype<int32_t>(args.top_k, args.out);
  const int64_t R = shapes["R"], N = shapes["N"];
  HYPIC_CHECK(N >= 1 && (R == 0 || args.logits.at(0).contiguous()), "sample: logits ",
              args.logits.shape_string());
  parallel_for(R, 32 * R * N, [&](int64_t r) {
    const auto at = [&](const Tensor& t, auto none) {
      return t ? t.as<decltype(none)>()[r * t.stride[0]] : none;
    };
    args.out.as<int32_t>()[r * args.out.stride[0]] =
        draw(args.logits.as<T>() + r * args.logits.stride[0], N, at(args.temperature, T{0}),
             at(args.top_k, int32_t{0}), at(args.top_p, T{1}), at(args.uniform, T{0}));
  });
}

template void sample<float>(const SampleArgs&);
template void sample<double>(const SampleArgs&);

}  // namespace hypic::reference
