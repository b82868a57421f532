#include "kernels/linear_attention/elementwise_plan.h"

#include <gtest/gtest.h>

namespace hypic::cuda {
namespace {

constexpr int kGpus[] = {78, 132};  // multiprocessors of an H20; of an H100 or H200

TEST(ElementwisePlan, CoversAllChannels) {
  for (const int sms : kGpus)
    for (const int chains : {0, 1, 3, 64, 100000})
      for (const int heads : {1, 2, 32})
        for (const int dv : {1, 12, 16, 17, 2048, 5120}) {
          const EntryPlan plan = plan_entries(sms, chains, heads, dv);
          EXPECT_GE(plan.parts * kEntryChannels, dv);
          EXPECT_LT((plan.parts - 1) * kEntryChannels, dv);
          EXPECT_TRUE(plan.keys == 1 || plan.keys == 2) << plan.keys;
          EXPECT_EQ(plan.threads() * plan.keys, kEntryChannels * kEntryKeys);
          EXPECT_EQ(plan.threads() % 32, 0);
        }
}

TEST(ElementwisePlan, ThreadsShareTheirChannelsWhereThereAreFew) {
  EXPECT_EQ(plan_entries(132, 1, 1, 2048).keys, 1);
  EXPECT_EQ(plan_entries(78, 1, 1, 2048).keys, 1);
  EXPECT_EQ(plan_entries(132, 1, 1, 4096).keys, 1);
  EXPECT_EQ(plan_entries(78, 1, 1, 4096).keys, 2);
  for (const int sms : kGpus) EXPECT_EQ(plan_entries(sms, 64, 1, 2048).keys, 2);
}

TEST(ElementwisePlan, AllChannelsOfAWideHead) {
  EXPECT_EQ(plan_entries(132, 1 << 20, 1 << 10, 1 << 20).parts, 1 << 16);
}

}  // namespace
}  // namespace hypic::cuda
