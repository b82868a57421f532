#include "harness/measure/cold_simulation.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

namespace hypic {
namespace {

ColdPlan even(int workers) {
  return {.segments = std::vector<int64_t>(64, 512), .question = 64, .seam = 8, .layers = 40, .workers = workers};
}

TEST(ColdSimulation, OneWorkerComputesAll) {
  ColdPlan plan = even(1);
  plan.rows = 1 << 20;
  const ColdTimes times = simulate_cold(plan, {.forward = 0.01, .token = 1e-5, .request = 0.001});
  EXPECT_NEAR(times.total, 0.001 + 0.01 + 1e-5 * (64 * 512 + 64 * 8 + 64), 1e-12);
  EXPECT_EQ(times.scatter, 0);
  EXPECT_EQ(times.arrived, 0);
}

TEST(ColdSimulation, WithoutCostsBesideTokensSpeedupIsNearlyLinear) {
  const ColdCosts costs{.token = 1e-5};
  const double one = simulate_cold(even(1), costs).total;
  for (const int m : {2, 4, 8, 16, 64}) {  // 64: who combines has no time for a segment, so one has two
    const double speedup = one / simulate_cold(even(m), costs).total;
    EXPECT_LE(speedup, m);
    EXPECT_GT(speedup, 0.4 * m) << m;
  }
}

TEST(ColdSimulation, LayersInFlightOverlap) {
  ColdPlan plan = even(4);
  plan.residue_bytes = 1e6;
  const ColdCosts costs{.forward = 0.01, .token = 1e-5, .send_byte = 1e-9, .receive_byte = 1e-10};
  const ColdTimes pipelined = simulate_cold(plan, costs);
  plan.pipelined = false;
  const ColdTimes whole = simulate_cold(plan, costs);
  EXPECT_LT(pipelined.total, whole.total);
  EXPECT_GE(whole.total, whole.arrived);
  EXPECT_GE(whole.arrived, whole.scatter);
}

TEST(ColdSimulation, LptBeatsRoundRobinOnUnevenSegments) {
  ColdPlan plan = even(4);
  for (size_t i = 0; i < plan.segments.size(); ++i) plan.segments[i] = i % 4 == 1 ? 2000 : 100;
  const ColdCosts costs{.token = 1e-5};
  const ColdTimes lpt = simulate_cold(plan, costs);
  plan.policy = Policy::round_robin;
  EXPECT_GT(simulate_cold(plan, costs).total, 1.8 * lpt.total);
}

TEST(ColdSimulation, NeverFasterThanItsPartsNorSlowerThanAllInARow) {
  EXPECT_TRUE(rc::check([] {
    ColdPlan plan;
    const auto lengths = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 3000)));
    plan.segments.assign(lengths.begin(), lengths.end());
    plan.workers = *rc::gen::inRange(1, 12);
    plan.layers = *rc::gen::inRange(1, 50);
    plan.rows = *rc::gen::inRange(100, 9000);
    plan.residue_bytes = *rc::gen::inRange(0, 1000);
    plan.token_bytes = *rc::gen::inRange(0, 10);
    plan.pipelined = *rc::gen::arbitrary<bool>();
    plan.policy = *rc::gen::element(Policy::lpt, Policy::round_robin);
    const ColdCosts costs{.forward = 1e-3, .token = 1e-5, .send_byte = 1e-8, .receive_byte = 1e-9, .request = 1e-4};
    const ColdTimes times = simulate_cold(plan, costs);
    const double slack = 1e-9;
    for (const double busy : times.busy) RC_ASSERT(times.total >= busy - slack);
    RC_ASSERT(times.total >= times.arrived - slack);
    double bytes = 0;
    for (const int64_t n : plan.segments) bytes += plan.residue_bytes + plan.token_bytes * static_cast<double>(n);
    const double all = std::accumulate(times.busy.begin(), times.busy.end(), 0.0) +
                       bytes * (costs.send_byte + costs.receive_byte) + 2 * costs.request;
    RC_ASSERT(times.total <= all + slack);
  }));
}

}  // namespace
}  // namespace hypic
