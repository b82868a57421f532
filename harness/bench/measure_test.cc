#include "harness/bench/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/bench/table.h"

namespace hypic::bench {
namespace {

constexpr ReplayOptions kFew = {.warmup = 1, .replays = 3, .budget = 0.05};

TEST(Measure, EveryBenchmarkRunsSmall) {
  const auto backend = make_backend("cpu");
  std::set<std::string> names;
  for (const Bench& bench : all_benches({.small = true})) {
    EXPECT_TRUE(names.insert(bench.name).second) << bench.name << " comes twice";
    const Measured m = measure(bench, *backend, kFew);
    EXPECT_EQ(m.failure, "") << m.name;
    EXPECT_FALSE(m.seconds.empty()) << m.name;
    EXPECT_GT(m.cost.bytes, 0) << m.name;
  }
}

// No time stands beside outputs that cannot be right.
TEST(Measure, WrongOutputsHaveNoTime) {
  const auto backend = make_backend("cpu");
  const auto failure = [&](const std::function<void(Job&)>& prepare) {
    const Measured m = measure({"x", prepare}, *backend, kFew);
    EXPECT_TRUE(m.seconds.empty());
    return m.failure;
  };
  EXPECT_EQ(failure([](Job& job) {
              job.output("out", {4, 4});
              job.enqueue = [] {};
            }),
            "out holds NaN or infinity");
  EXPECT_EQ(failure([](Job& job) {
              job.index_output("chosen", {4});
              job.enqueue = [] {};
            }),
            "chosen holds an index below 0");
  EXPECT_EQ(failure([](Job& job) {
              const Tensor out = job.output("out", {4, 4});
              job.enqueue = [&job, out] { job.backend.fill_zero(out); };
            }),
            "out is all zero");
  // The last elements of a large tensor are looked at as well, and once more after the replays.
  EXPECT_EQ(failure([](Job& job) {
              const Tensor out = job.output("out", {1000, 1000}), some = job.normal({999, 1000});
              job.enqueue = [&job, out, some] { job.backend.copy(out.rows(0, 999), some); };
            }),
            "out holds NaN or infinity");
  EXPECT_EQ(failure([](Job& job) {
              const Tensor x = job.normal({4, 4}), y = job.normal({4, 4});
              job.watch("x", x);
              job.enqueue = [&job, x, y] { job.backend.add({x, y, 1e30, 1}); };
            }),
            "x holds NaN or infinity after the replays");
  EXPECT_EQ(failure([](Job&) { fail("no memory"); }), "no memory");
}

TEST(Measure, BudgetLimitsTheReplays) {
  const auto backend = make_backend("cpu");
  const auto runs = [&](const ReplayOptions& options) {
    int count = 0;
    const auto seconds = replay_seconds(
        *backend, [&] { ++count; }, options);
    return std::pair(static_cast<int>(seconds.size()), count);
  };
  EXPECT_EQ(runs({.warmup = 2, .replays = 5}), std::pair(5, 7));
  EXPECT_EQ(runs({.warmup = 2, .replays = 5, .budget = 1000}), std::pair(5, 8));
  EXPECT_EQ(runs({.warmup = 2, .replays = 5, .budget = 1e-12}), std::pair(1, 1));
}

TEST(Measure, DrawnValues) {
  const auto backend = make_backend("cpu");
  Job job(*backend);
  // More than is drawn on the host: repeated to the end.
  const std::vector<double> x = to_doubles(*backend, job.normal({700, 1000}, 2));
  double sum = 0;
  for (const double e : x) sum += e * e;
  EXPECT_NEAR(sum / static_cast<double>(x.size()), 4, 0.1);
  EXPECT_EQ(x[0], x[262 * 1000]);
  const std::vector<double> k = to_doubles(*backend, job.unit({3, 2, 8}));
  for (int r = 0; r < 6; ++r) {
    double length = 0;
    for (int i = 0; i < 8; ++i) length += k[r * 8 + i] * k[r * 8 + i];
    EXPECT_NEAR(length, 1, 1e-6);
  }
  for (const double g : to_doubles(*backend, job.log_decay({100, 4}))) {
    EXPECT_LE(g, -1e-3);
    EXPECT_GE(g, -0.1);
  }
  EXPECT_EQ(to_doubles(*backend, job.unit({4, 8}, 1, 7)),
            to_doubles(*backend, job.unit({4, 8}, 1, 7)));
  EXPECT_EQ(job.normal({0, 4}).size(), 0);
}

TEST(Measure, Median) {
  EXPECT_EQ(median({1, 2, 9}), 2);
  EXPECT_EQ(median({1, 2, 4, 9}), 3);
  EXPECT_EQ(median({5}), 5);
}

TEST(BenchTable, RowsAndVerdict) {
  const Ceilings ceilings{1e9, 1e12};
  Measured good{
      .name = "rope/R8", .seconds = {1e-3, 2e-3, 4e-3}, .cost = {1e6, 0}, .kernels = "rope/plain"};
  Report report = to_report({good}, ceilings, {});
  EXPECT_EQ(report.results[0].verdict, Verdict::pass);
  const std::vector<Cell> want = {
      "rope/R8", 2.0, 1.0, 4.0, 3, 0.5, "–", {0.5, Format::percent, 0}, "rope/plain"};
  EXPECT_EQ(report.results[0].tables[0].rows[0], want);
  report = to_report({good, {.name = "bad", .failure = "out is all zero"}}, ceilings, {});
  EXPECT_EQ(report.results[0].verdict, Verdict::fail);
  EXPECT_EQ(report.results[0].why, "bad: out is all zero");
  EXPECT_EQ(report.results[0].tables[0].rows[1].back(), Cell("out is all zero"));
}

}  // namespace
}  // namespace hypic::bench
