#include "harness/load/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/load/clock.h"

namespace hypic::load {
namespace {

// Mean and coefficient of variation of the gaps.
std::pair<double, double> gaps(const std::vector<double>& times) {
  double sum = 0, squares = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    sum += times[i] - times[i - 1];
    squares += (times[i] - times[i - 1]) * (times[i] - times[i - 1]);
  }
  const double n = static_cast<double>(times.size() - 1), mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean) / mean};
}

TEST(Schedule, ConstantAndBurst) {
  EXPECT_EQ(schedule({.arrivals = Arrivals::constant, .rate = 4}, 4), (std::vector<double>{0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(schedule({.arrivals = Arrivals::burst, .rate = 2, .burst = 2}, 5), (std::vector<double>{0, 0, 1, 1, 2}));
}

TEST(Schedule, RandomGapsHaveTheirMeanAndSpread) {
  for (const double rate : {0.5, 40.0}) {
    const auto [poisson, cv] = gaps(schedule({.rate = rate}, 20001));
    EXPECT_NEAR(poisson * rate, 1, 0.03);
    EXPECT_NEAR(cv, 1, 0.03);
    for (const double shape : {0.25, 4.0}) {
      const auto [mean, spread] =
          gaps(schedule({.arrivals = Arrivals::gamma, .rate = rate, .burstiness = shape}, 20001));
      EXPECT_NEAR(mean * rate, 1, 0.06);
      EXPECT_NEAR(spread, 1 / std::sqrt(shape), 0.08 / std::sqrt(shape));
    }
  }
}

TEST(Schedule, SameSeedSameGapsAtEveryRate) {
  const auto one = schedule({.rate = 1, .seed = 3}, 100), ten = schedule({.rate = 10, .seed = 3}, 100);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_DOUBLE_EQ(one[i], 10 * ten[i]);
  EXPECT_NE(one, schedule({.rate = 1, .seed = 4}, 100));
  EXPECT_TRUE(std::is_sorted(one.begin(), one.end()));
}

TEST(Schedule, TraceIsScaledFromItsFirstRequest) {
  Trace trace;
  for (const double at : {10.0, 11.0, 13.0, 17.0}) trace.requests.push_back({.timestamp = at, .output_tokens = 1});
  EXPECT_EQ(schedule(trace, 1, 3, 2), (std::vector<double>{0, 1, 3}));
}

TEST(Schedule, TimesThatNeverComeCanBeCounted) {
  EXPECT_EQ(seconds(1e300), seconds(1e9));
  EXPECT_GT(Clock::now() + seconds(1e300), Clock::now());
}

}  // namespace
}  // namespace hypic::load
