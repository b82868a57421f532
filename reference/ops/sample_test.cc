#include "reference/ops/sample.h"

#include <gtest/gtest.h>

#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

template <class T>
Owned<T> values(const std::vector<double>& x, std::vector<int64_t> shape) {
  Owned<T> t(std::move(shape));
  std::copy(x.begin(), x.end(), t.memory.begin());
  return t;
}

struct Settings {
  double temperature = 1;
  int32_t top_k = 0;
  double top_p = 1;
};

// The tokens of one row of logits for many uniforms.
template <class T>
std::vector<int32_t> draws(const std::vector<double>& logits, const Settings& settings,
                           const std::vector<double>& uniforms) {
  const auto R = static_cast<int64_t>(uniforms.size()), N = static_cast<int64_t>(logits.size());
  std::vector<double> rows;
  for (int64_t r = 0; r < R; ++r) rows.insert(rows.end(), logits.begin(), logits.end());
  const auto all = [&](double x) { return values<T>(std::vector<double>(R, x), {R}); };
  const Owned<int32_t> out({R});
  sample<T>({.logits = values<T>(rows, {R, N}),
             .temperature = all(settings.temperature),
             .top_k = integers(std::vector<int32_t>(R, settings.top_k)),
             .top_p = all(settings.top_p),
             .uniform = values<T>(uniforms, {R}),
             .out = out});
  return out.memory;
}

constexpr int kGrid = 4096;

std::vector<double> grid() {
  std::vector<double> uniforms;
  for (int i = 0; i < kGrid; ++i) uniforms.push_back((i + 0.5) / kGrid);
  return uniforms;
}

// That the tokens of a grid of uniforms come as often as `p` says, to one point of the grid.
void expect_shares(const std::vector<double>& logits, const Settings& settings,
                   const std::vector<double>& p) {
  for (const std::vector<int32_t>& tokens :
       {draws<float>(logits, settings, grid()), draws<double>(logits, settings, grid())}) {
    std::vector<int> count(p.size());
    for (const int32_t token : tokens) ++count.at(token);
    for (size_t i = 0; i < p.size(); ++i)
      EXPECT_NEAR(count[i], kGrid * p[i], 1.01) << "token " << i;
  }
}

std::vector<double> softmax(const std::vector<double>& logits, double temperature) {
  std::vector<double> p;
  double sum = 0;
  for (const double x : logits) sum += p.emplace_back(std::exp(x / temperature));
  for (double& x : p) x /= sum;
  return p;
}

const std::vector<double> kLogits = {0.5, -1, 2, 2, -30, 1.25, 0.5, 0};

TEST(Sample, TheLowestIndexWinsATieWhereGreedy) {
  const std::vector<double> logits = {1,  3,  3,  2,  /**/ 5,         5, 5,    5,
                                      -4, -3, -2, -1, /**/ -INFINITY, 0, -0.0, -1};
  const Owned<double> x = values<double>(logits, {4, 4}), cold = values<double>({0, 0, 0, 0}, {4}),
                      last = values<double>({0.9, 0.9, 0.9, 0.9}, {4});
  const std::vector<int32_t> best = {1, 0, 3, 1};
  for (const bool given : {false, true}) {
    const Owned<int32_t> out = integers({-1, -1, -1, -1});
    sample<double>({.logits = x,
                    .temperature = given ? cold.tensor : Tensor(),
                    .uniform = given ? last.tensor : Tensor(),
                    .out = out});
    EXPECT_EQ(out.memory, best);
  }
  for (const Settings& settings :
       {Settings{.top_k = 1}, Settings{.top_p = 1e-9}, Settings{.temperature = 1e-9, .top_k = 1}})
    for (int row = 0; row < 4; ++row) {
      const std::vector<double> one(logits.begin() + 4 * row, logits.begin() + 4 * row + 4);
      EXPECT_EQ(draws<double>(one, settings, {0, 0.5, 0.99}), std::vector<int32_t>(3, best[row]));
      EXPECT_EQ(draws<float>(one, settings, {0, 0.5, 0.99}), std::vector<int32_t>(3, best[row]));
    }
}

TEST(Sample, UniformsReproduceTheProbabilities) {
  for (const double temperature : {0.3, 1.0, 2.5})
    expect_shares(kLogits, {temperature}, softmax(kLogits, temperature));
}

TEST(Sample, TokensComeInFallingOrder) {
  const std::vector<int32_t> order = {2, 3, 5, 0, 6, 7, 1, 4};
  const std::vector<int32_t> tokens = draws<double>(kLogits, {}, grid());
  size_t at = 0;
  for (const int32_t token : tokens) {
    while (at < order.size() && order[at] != token) ++at;
    ASSERT_LT(at, order.size()) << "token " << token << " out of order";
  }
  EXPECT_EQ(draws<double>(kLogits, {}, {0})[0], 2);
  EXPECT_EQ(draws<double>(kLogits, {}, {1 - 0x1p-53})[0], 4);  // e⁻³² of the best is still a part
}

TEST(Sample, TopKKeepsTheFirstOfEqualLogits) {
  // By falling logit: 2, 3, 5, 0, 6, …; 0 and 6 are equal.
  for (const int32_t k : {1, 2, 3, 4, 5}) {
    std::vector<double> p = softmax(kLogits, 1);
    const int order[] = {2, 3, 5, 0, 6, 7, 1, 4};
    double rest = 0;
    for (int n = 0; n < 8; ++n) (n < k ? rest : p[order[n]]) += n < k ? p[order[n]] : -p[order[n]];
    for (double& x : p) x /= rest;
    expect_shares(kLogits, {.top_k = k}, p);
  }
  for (const int32_t k : {0, 8, 9, 1 << 30})
    expect_shares(kLogits, {.top_k = k}, softmax(kLogits, 1));
}

TEST(Sample, TopPKeepsTheTokenThatReachesTheMass) {
  const std::vector<double> logits = {std::log(2), std::log(4), 0, 0};  // p = 1/4, 1/2, 1/8, 1/8
  expect_shares(logits, {.top_p = 0.4}, {0, 1, 0, 0});
  expect_shares(logits, {.top_p = 0.51}, {1.0 / 3, 2.0 / 3, 0, 0});
  expect_shares(logits, {.top_p = 0.74}, {1.0 / 3, 2.0 / 3, 0, 0});
  expect_shares(logits, {.top_p = 0.76}, {2.0 / 7, 4.0 / 7, 1.0 / 7, 0});
  expect_shares(logits, {.top_p = 0.88}, {0.25, 0.5, 0.125, 0.125});
  expect_shares(logits, {.top_p = 0}, {0, 1, 0, 0});
  // Where sums are exact a prefix that reaches the mass exactly is enough.
  expect_shares({0, 0, 0, 0}, {.top_p = 0.5}, {0.5, 0.5, 0, 0});
  expect_shares({0, 0, 0, 0}, {.top_p = 0.75}, {1.0 / 3, 1.0 / 3, 1.0 / 3, 0});
  // The mass is that of the top_k.
  expect_shares(logits, {.top_k = 2, .top_p = 0.66}, {0, 1, 0, 0});
  expect_shares(logits, {.top_k = 2, .top_p = 0.67}, {1.0 / 3, 2.0 / 3, 0, 0});
  // Temperature comes first: p = 4/22, 16/22, 1/22, 1/22.
  expect_shares(logits, {.temperature = 0.5, .top_p = 0.72}, {0, 1, 0, 0});
}

TEST(Sample, ExtremeTemperatures) {
  const std::vector<double> logits = {3, 3.125, -1e4, 3.125};
  expect_shares(logits, {.temperature = 1e-3}, {0, 0.5, 0, 0.5});
  expect_shares({-4, 4, 0, 2}, {.temperature = 100}, softmax({-4, 4, 0, 2}, 100));
  expect_shares({3e38, -3e38, 3e38, 0}, {.temperature = 100}, {0.5, 0, 0.5, 0});
  expect_shares({0, 1, 2, -INFINITY}, {.temperature = INFINITY}, {1.0 / 3, 1.0 / 3, 1.0 / 3, 0});
}

TEST(Sample, LogitsThatAreNotFinite) {
  const double inf = INFINITY, nan = NAN;
  const auto always = [](const std::vector<double>& logits, int32_t token) {
    for (const double temperature : {0.0, 1.0})
      for (const int32_t top_k : {0, 2}) {
        const Settings settings{temperature, top_k};
        EXPECT_EQ(draws<float>(logits, settings, {0, 0.999}), std::vector<int32_t>(2, token));
        EXPECT_EQ(draws<double>(logits, settings, {0, 0.999}), std::vector<int32_t>(2, token));
      }
  };
  always({-inf, -inf, -2, -inf}, 2);
  always({nan, -inf, -2, nan}, 2);
  always({-inf, -inf, -inf}, 0);
  always({nan, -inf, -inf}, 1);
  always({nan, nan, nan}, 0);
  always({5, nan, inf, inf}, 2);
  always({nan}, 0);
  always({-3}, 0);
  expect_shares({nan, 0, nan, 0}, {.top_k = 3}, {0, 0.5, 0, 0.5});
}

TEST(Sample, RowsAreOnTheirOwnAndMayBeStrided) {
  const Owned<double> wide = random<double>({3, 7}, 1);
  const Tensor logits = wide.tensor.columns(1, 6);
  const Owned<int32_t> out({3});
  sample<double>({.logits = logits,
                  .temperature = values<double>({0, 1, 2}, {3}),
                  .top_k = integers({0, 3, 0}),
                  .top_p = values<double>({1, 1, 0.7}, {3}),
                  .uniform = values<double>({0.9, 0.7, 0.4}, {3}),
                  .out = out});
  const Settings settings[] = {{0}, {1, 3}, {2, 0, 0.7}};
  const double uniforms[] = {0.9, 0.7, 0.4};
  for (int r = 0; r < 3; ++r)
    EXPECT_EQ(out[r], draws<double>(elements(logits.at(r)), settings[r], {uniforms[r]})[0]);
  sample<double>({.logits = Owned<double>({0, 5}), .out = Owned<int32_t>({0})});
}

TEST(Sample, ChecksItsShapesAndTypes) {
  const Owned<double> x = random<double>({4, 5}, 1), four({4}), three({3});
  const Owned<int32_t> out({4});
  EXPECT_THROW(sample<double>({.logits = x, .out = integers({0, 0, 0})}), InternalError);
  EXPECT_THROW(sample<double>({.logits = x, .out = four}), InternalError);
  EXPECT_THROW(sample<float>({.logits = x, .out = out}), InternalError);
  EXPECT_THROW(sample<double>({.logits = x, .temperature = four, .out = out}), InternalError);
  EXPECT_THROW(sample<double>({.logits = x, .temperature = three, .uniform = four, .out = out}),
               InternalError);
  EXPECT_THROW(sample<double>(
                   {.logits = x, .temperature = four, .top_p = three, .uniform = four, .out = out}),
               InternalError);
}

}  // namespace
}  // namespace hypic::reference
