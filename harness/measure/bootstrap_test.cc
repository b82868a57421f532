#include "harness/measure/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace hypic {
namespace {

TEST(Bootstrap, QuantilesInterpolate) {
  const std::vector<double> x = {4, 1, 3, 2};
  EXPECT_EQ(quantile(x, 0), 1);
  EXPECT_EQ(quantile(x, 1), 4);
  EXPECT_EQ(median(x), 2.5);
  EXPECT_NEAR(quantile(x, 0.9), 3.7, 1e-12);
  EXPECT_EQ(median(std::vector<double>{7}), 7);
}

TEST(Bootstrap, TailsNeedSamples) {
  EXPECT_EQ(samples_for(0.5), 2);
  EXPECT_EQ(samples_for(0.9), 10);
  EXPECT_EQ(samples_for(0.99), 100);
}

TEST(Bootstrap, OfConstantsIsAPoint) {
  const std::vector<double> two(20, 2), six(20, 6);
  const Interval median = median_interval(two, 1), ratio = ratio_interval(six, two, 1);
  EXPECT_EQ(median.low, 2);
  EXPECT_EQ(median.high, 2);
  EXPECT_EQ(ratio.low, 3);
  EXPECT_EQ(ratio.high, 3);
}

TEST(Bootstrap, TheSameForTheSameSeed) {
  const std::vector<double> x = {1, 5, 2, 8, 3, 9, 4};
  EXPECT_EQ(median_interval(x, 3).low, median_interval(x, 3).low);
  EXPECT_EQ(median_interval(x, 3).high, median_interval(x, 3).high);
}

// Of 300 experiments about 95 % of the intervals hold the true median; the count is exact for these
// seeds.
TEST(Bootstrap, CoversTheMedianOfKnownDistributions) {
  int normal = 0, skewed = 0;
  for (uint64_t experiment = 0; experiment < 300; ++experiment) {
    std::mt19937_64 bits(experiment);
    const auto uniform = [&] { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; };
    std::vector<double> gaussian, exponential;
    for (int i = 0; i < 40; ++i) {
      gaussian.push_back(std::sqrt(-2 * std::log(uniform())) * std::cos(2 * M_PI * uniform()));
      exponential.push_back(-std::log(uniform()));
    }
    const Interval a = median_interval(gaussian, experiment, 400),
                   b = median_interval(exponential, experiment, 400);
    normal += a.low <= 0 && 0 <= a.high;
    skewed += b.low <= std::log(2) && std::log(2) <= b.high;
  }
  EXPECT_GE(normal, 270);
  EXPECT_LE(normal, 297);
  EXPECT_GE(skewed, 270);
  EXPECT_LE(skewed, 297);
}

// A round that is slow for both leaves their ratio alone; drawn apart, it would not.
TEST(Bootstrap, RatiosKeepRoundsTogether) {
  std::vector<double> slow, fast;
  for (int i = 0; i < 20; ++i) {
    fast.push_back(1 + i);
    slow.push_back(3 * fast.back());
  }
  const Interval ratio = ratio_interval(slow, fast, 5);
  EXPECT_NEAR(ratio.low, 3, 1e-12);
  EXPECT_NEAR(ratio.high, 3, 1e-12);
}

TEST(Bootstrap, MeansOfGroups) {
  const std::vector<std::vector<double>> constants = {{2, 2, 2}, {4, 4}};
  const Interval in = mean_interval(constants, 1);
  EXPECT_EQ(in.low, 3);
  EXPECT_EQ(in.high, 3);
  const std::vector<double> x = {0, 1, 0, 1, 1, 0, 1, 0, 0, 1};
  const Interval one = mean_interval({&x, 1}, 2);
  EXPECT_GE(one.low, 0.1);
  EXPECT_LT(one.low, 0.5);
  EXPECT_GT(one.high, 0.5);
  EXPECT_LE(one.high, 0.9);
  EXPECT_TRUE(std::isnan(mean_interval({}, 1).low));
  EXPECT_TRUE(std::isnan(mean_interval(std::vector<std::vector<double>>(1), 1).low));
}

// Items keep their three scores together: a mode that keeps half of every gain keeps half of any draw.
TEST(Bootstrap, RecoveredSharesDrawItems) {
  std::vector<double> floor, full, half;
  for (int i = 0; i < 20; ++i) {
    floor.push_back(i % 3);
    full.push_back(i % 3 + 1 + i);
    half.push_back((floor.back() + full.back()) / 2);
  }
  const Interval in = recovered_interval(half, floor, full, 4);
  EXPECT_NEAR(in.low, 0.5, 1e-12);
  EXPECT_NEAR(in.high, 0.5, 1e-12);
  EXPECT_TRUE(std::isnan(recovered_interval(half, full, full, 4).low)) << "nothing is gained";
}

}  // namespace
}  // namespace hypic
