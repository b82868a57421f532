#include "kernels/linear_attention/chunked_plan.h"

#include <gtest/gtest.h>

#include "core/check.h"

namespace hypic::cuda {
namespace {

constexpr int kGpus[] = {78, 132};  // multiprocessors of an H20; of an H100 or H200

TEST(ChunkedPlan, CoversAllColumns) {
  for (const int sms : kGpus)
    for (const int chains : {0, 1, 3, 64, 1000})
      for (const int op_steps : {0, 1, 64})
        for (const int heads : {1, 4, 32, 48})
          for (const int dk : {64, 128})
            for (const int dv : {16, 48, 64, 128, 256})
              for (const bool dense : {false, true}) {
                const WalkPlan plan = plan_walk(sms, chains, op_steps, heads, dk, dv, dense);
                EXPECT_TRUE(plan.columns == 64 || plan.columns == 128) << plan.columns;
                EXPECT_GE(plan.v_parts * plan.columns, dv);
                EXPECT_LT((plan.v_parts - 1) * plan.columns, dv);
                if (dense) {
                  EXPECT_GE(plan.t_parts * plan.columns, dk);
                } else {
                  EXPECT_EQ(plan.t_parts, 0);
                }
                EXPECT_EQ(plan.chain_works, chains * heads * plan.v_parts);
                EXPECT_EQ(plan.op_works, op_steps * heads * (plan.v_parts + plan.t_parts));
                EXPECT_LE(plan.blocks, sms);
                EXPECT_LE(plan.blocks, plan.works());
                EXPECT_EQ(plan.blocks == 0, plan.works() == 0);
              }
}

TEST(ChunkedPlan, FewChainsTakeFewColumns) {
  EXPECT_EQ(plan_walk(132, 1, 0, 32, 128, 128, true).blocks, 64);
  EXPECT_EQ(plan_walk(78, 1, 0, 32, 128, 128, true).blocks, 64);
  EXPECT_EQ(plan_walk(132, 2, 0, 32, 128, 128, true).blocks, 128);
  EXPECT_EQ(plan_walk(78, 2, 0, 32, 128, 128, true).blocks, 64);  // two rounds of 64 columns would take longer
}

TEST(ChunkedPlan, ManyChainsShareTheirOperands) {
  for (const int sms : kGpus) {
    EXPECT_GE(plan_walk(sms, 64, 0, 32, 128, 128, true).columns, 64);
    EXPECT_EQ(plan_walk(sms, 64, 64, 32, 128, 128, true).columns, 128);
  }
}

TEST(ChunkedPlan, ClustersOfJumpsHaveOneHead) {
  for (const int chains : {0, 1, 5})
    for (const int heads : {1, 4, 32})
      for (const int dv : {16, 48, 64, 96, 128, 256})
        for (const bool dense : {false, true}) {
          const JumpsPlan plan = plan_jumps(chains, heads, dv, dense);
          EXPECT_GE(plan.parts * kJumpsColumns, dv);
          EXPECT_LT((plan.parts - 1) * kJumpsColumns, dv);
          EXPECT_EQ(plan.blocks, chains * heads * plan.parts);
          EXPECT_EQ(plan.parts % plan.cluster, 0);
          if (!dense) {
            EXPECT_EQ(plan.cluster, 1);  // there is no T to share
          }
        }
  EXPECT_EQ(plan_jumps(1, 32, 128, true).cluster, 2);
}

TEST(ChunkedPlan, HeadsOfABlockDivideTheGroup) {
  for (const int sms : kGpus)
    for (const int chunks : {1, 8, 128, 4096})
      for (const int group : {1, 2, 3, 6, 8}) {
        const int heads = plan_prepare_heads(sms, chunks, 4, 4 * group);
        EXPECT_EQ(group % heads, 0);
        EXPECT_TRUE(heads == 1 || chunks * 4 * group / heads >= sms) << "blocks of several heads on idle SMs";
      }
  EXPECT_EQ(plan_prepare_heads(132, 512, 16, 32), 2);
  EXPECT_EQ(plan_prepare_heads(132, 8, 16, 32), 1);
}

TEST(ChunkedPlan, PrepareRunsBesideAWalkThatLeavesHalfOfTheGpu) {
  EXPECT_EQ(plan_prepare_beside(132, 64, 128, 16, 32), 51);
  EXPECT_EQ(plan_prepare_beside(132, 64, 128, 32, 32), 68);
  EXPECT_EQ(plan_prepare_beside(132, 64, 8, 16, 32), 0);  // done at once in any case
  EXPECT_EQ(plan_prepare_beside(132, 128, 128, 16, 32), 0);
  EXPECT_EQ(plan_prepare_beside(78, 64, 128, 16, 32), 0);
  EXPECT_EQ(plan_prepare_beside(78, 32, 128, 16, 16), 46);
  EXPECT_EQ(plan_prepare_beside(132, 0, 128, 16, 32), 0);
  for (const int sms : kGpus)
    for (const int blocks : {0, 1, 16, 64, 78, 132})
      if (blocks <= sms) {
        EXPECT_LE(plan_prepare_beside(sms, blocks, 4096, 16, 32) + blocks, sms);
      }
}

TEST(ChunkedPlan, SizesBeyondAllMeasureAreRefused) {
  EXPECT_EQ(plan_walk(132, 1 << 20, 0, 1 << 8, 128, 128, true).blocks, 132);
  EXPECT_THROW(plan_walk(132, 1 << 20, 0, 1 << 20, 128, 128, true), InternalError);
  EXPECT_THROW(plan_walk(132, 1 << 20, 1 << 20, 1 << 8, 128, 128, true), InternalError);
  EXPECT_THROW(plan_jumps(1 << 20, 1 << 20, 128, true), InternalError);
}

}  // namespace
}  // namespace hypic::cuda
