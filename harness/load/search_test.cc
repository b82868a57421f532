#include "harness/load/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <queue>

#include "core/check.h"
#include "harness/load/schedule.h"
#include "harness/load/summary.h"

namespace hypic::load {
namespace {

// A server of `slots` that takes `service` seconds a request, in order: how many of n wait and run beyond `slo`.
int64_t simulated_misses(double rate, int64_t n, int slots, double service, double slo, uint64_t seed) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < slots; ++i) free.push(0);
  int64_t misses = 0;
  for (const double at : schedule({.rate = rate, .seed = seed}, n)) {
    const double begins = std::max(at, free.top());
    free.pop();
    free.push(begins + service);
    misses += begins + service - at > slo;
  }
  return misses;
}

Probe probe_of(double rate, int64_t n, double share) {
  return {.rate = rate, .requests = n, .misses = static_cast<int64_t>(std::lround(share * static_cast<double>(n)))};
}

// The rate at which exactly `allowed` of very many requests miss, by bisection.
double true_rate(int slots, double service, double slo, double allowed) {
  double low = 0.1, high = 100;
  for (int i = 0; i < 30; ++i) {
    const double rate = std::sqrt(low * high);
    (static_cast<double>(simulated_misses(rate, 100000, slots, service, slo, 99)) <= allowed * 1e5 ? low : high) = rate;
  }
  return low;
}

TEST(Search, FindsTheRateOfASimulatedServer) {
  const double truth = true_rate(4, 0.5, 1, 0.1);
  for (const double start : {0.25, 1.0, 64.0}) {
    uint64_t seed = 1;
    const SearchOptions options{.start = start, .probe_requests = 1000, .verify_requests = 4000};
    const SearchResult result = search_rate(
        options, [&](double rate, int64_t n) { return Probe{.misses = simulated_misses(rate, n, 4, 0.5, 1, seed++)}; });
    ASSERT_EQ(result.verdict, Verdict::pass) << result.why;
    EXPECT_LE(*result.rate, truth * 1.02);  // verified: not above
    EXPECT_GE(*result.rate, truth * 0.75);
    EXPECT_GT(*result.fails, *result.rate);
    EXPECT_EQ(result.probes.back().verdict, Verdict::pass);
  }
}

TEST(Search, ACliff) {
  const SearchOptions options{.start = 1, .probe_requests = 100, .verify_requests = 300};
  const SearchResult result = search_rate(options, [](double rate, int64_t n) {
    Probe probe{.misses = rate > 10 ? n : 0};
    probe.cut = rate > 10;
    return probe;
  });
  ASSERT_EQ(result.verdict, Verdict::pass);
  EXPECT_LE(*result.rate, 10);
  EXPECT_GE(*result.rate, 10 / 1.06);
  EXPECT_LE(*result.fails, 10 * 1.06);
}

TEST(Search, NoRateIsGoodEnough) {
  const SearchResult result =
      search_rate({.start = 1, .lowest = 0.1}, [](double, int64_t n) { return Probe{.misses = n}; });
  EXPECT_EQ(result.verdict, Verdict::fail);
  EXPECT_FALSE(result.rate);
  EXPECT_EQ(*result.fails, 0.1);
}

TEST(Search, EveryRateIs) {
  const SearchResult result = search_rate({.start = 1, .highest = 20}, [](double, int64_t) { return Probe{}; });
  EXPECT_EQ(result.verdict, Verdict::pass);
  EXPECT_EQ(*result.rate, 20);
  EXPECT_FALSE(result.fails);
}

TEST(Search, JustAtTheBoundIsUndecided) {
  const SearchResult result =
      search_rate({.start = 1}, [](double rate, int64_t n) { return probe_of(rate, n, rate > 4 ? 0.5 : 0.095); });
  EXPECT_EQ(result.verdict, Verdict::undecided);
  EXPECT_FALSE(result.rate);
}

TEST(Search, ALaggingClientDecidesNothing) {
  const SearchResult result = search_rate(
      {.start = 1}, [](double rate, int64_t) { return Probe{.invalid = rate >= 4 ? "the client lags" : ""}; });
  EXPECT_EQ(result.verdict, Verdict::invalid);
  EXPECT_NE(result.why.find("at 4 requests/s"), std::string::npos);
}

TEST(Search, TooFewToVerifyIsRefused) {
  EXPECT_THROW(search_rate({.allowed = 0.01, .verify_requests = 100}, [](double, int64_t) { return Probe{}; }), Error);
}

TEST(Search, OverSaturationIsAQueueThatGrows) {
  std::vector<InFlight> growing, steady;
  for (int i = 0; i < 200; ++i) {
    growing.push_back({0.1 * i, i / 2 + i % 3});
    steady.push_back({0.1 * i, 20 + (i * 7) % 11});
  }
  EXPECT_TRUE(over_saturated(growing, 10, 1));
  EXPECT_FALSE(over_saturated(growing, 1000, 1));  // its wait is still within the bound
  EXPECT_FALSE(over_saturated(steady, 10, 1));
  EXPECT_FALSE(over_saturated({growing.begin(), growing.begin() + 10}, 10, 0.01));
}

// One server that takes 20 ms a request, at 0.8 of its capacity and at 1.3 of it. No request in a hundred of the former
// waits longer than the bound, but each run has its bursts.
TEST(Search, BurstsThatAreWorkedOffAreNotOverSaturation) {
  const auto cut = [](double rate, uint64_t seed) {
    const std::vector<double> times = schedule({.rate = rate, .seed = seed}, 1000);
    std::vector<InFlight> samples;
    double end = 0;
    for (const double at : times) {
      end = std::max(end, at) + 0.02;
      const auto due = std::upper_bound(times.begin(), times.end(), end) - times.begin();
      samples.push_back({end, static_cast<int64_t>(due - std::ssize(samples) - 1)});
      if (samples.size() % 64 == 0 && over_saturated(samples, rate, 0.3)) return true;
    }
    return false;
  };
  int steady = 0, growing = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    steady += cut(0.8 * 50, seed);
    growing += cut(1.3 * 50, seed);
  }
  EXPECT_EQ(steady, 0);
  EXPECT_EQ(growing, 50);
}

}  // namespace
}  // namespace hypic::load
