#include "serving/assignment.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace hypic {
namespace {

std::vector<AssignmentItem> items_of(const std::vector<double>& costs, double transfer = 0) {
  std::vector<AssignmentItem> items;
  for (const double cost : costs) items.push_back({cost, transfer});
  return items;
}

Assignment lpt(const std::vector<AssignmentItem>& items, const std::vector<double>& loads) {
  size_t turn = 0;
  return assign(items, loads, Policy::lpt, turn);
}

TEST(Assignment, TheLongestGoFirst) {
  const Assignment found = lpt(items_of({2, 3, 7, 5}), {0, 0});
  EXPECT_EQ(found.makespan(), 9);  // 7 + 2 against 5 + 3
  EXPECT_EQ(found.worker, (std::vector<int>{0, 1, 0, 1}));
}

TEST(Assignment, RoundRobinTakesTurnsAcrossRequests) {
  size_t turn = 1;
  const Assignment found = assign(items_of({9, 1, 9, 1}), {0, 0}, Policy::round_robin, turn);
  EXPECT_EQ(found.worker, (std::vector<int>{1, 0, 1, 0}));
  EXPECT_EQ(found.makespan(), 18);
  EXPECT_EQ(turn, 5u);
}

TEST(Assignment, TheOneThatCombinesIsChargedWithIt) {
  const Assignment found = lpt(items_of({1, 1, 1, 1}), {2, 0, 0});
  EXPECT_EQ(std::count(found.worker.begin(), found.worker.end(), 0), 0);
}

TEST(Assignment, NothingIsSentThatCostsMoreThanItSaves) {
  const Assignment found = lpt(items_of({1, 1}, 10), {0, 0, 0});
  EXPECT_EQ(found.worker, (std::vector<int>{0, 0}));
}

TEST(Assignment, WhoHasItOnlySendsIt) {
  std::vector<AssignmentItem> items = items_of({5, 5}, 1);
  items[0].cached = {false, false, true};
  const Assignment found = lpt(items, {0, 0, 0});
  EXPECT_EQ(found.worker[0], 2);
  EXPECT_EQ(found.finish[2], 1);
}

TEST(Assignment, LptIsWithinFourThirdsOfTheBound) {
  EXPECT_TRUE(rc::check([] {
    const auto costs = *rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 1000));
    const int workers = *rc::gen::inRange(1, 9);
    std::vector<double> given(costs.begin(), costs.end());
    const Assignment found = lpt(items_of(given), std::vector<double>(workers));
    const double sum = std::accumulate(given.begin(), given.end(), 0.0);
    RC_ASSERT(std::accumulate(found.finish.begin(), found.finish.end(), 0.0) == sum);
    // Graham's bound holds against the optimum, which is at least each of these.
    const double largest = given.empty() ? 0 : *std::max_element(given.begin(), given.end());
    RC_ASSERT(found.makespan() <= sum / workers + largest);
  }));
}

TEST(Assignment, PoliciesHaveNames) {
  EXPECT_EQ(policy_named("lpt"), Policy::lpt);
  EXPECT_EQ(policy_named(name_of(Policy::round_robin)), Policy::round_robin);
  EXPECT_THROW(policy_named("random"), Error);
}

}  // namespace
}  // namespace hypic
