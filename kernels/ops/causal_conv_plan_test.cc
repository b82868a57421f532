#include "kernels/ops/causal_conv_plan.h"

#include <gtest/gtest.h>

#include <bit>

#include "core/check.h"

namespace hypic::cuda {
namespace {

ConvPlan plan(int sms, int64_t rows, int64_t items, int64_t chains) {
  return plan_conv({.sms = sms, .rows = rows, .pieces = 1024, .items = items, .chains = chains});
}

TEST(ConvPlan, RowsOfABlock) {
  for (const int sms : {78, 132}) {
    EXPECT_EQ(plan(sms, 32768, 1, 1).rows, 16);
    EXPECT_EQ(plan(sms, 32768, 192, 64).rows, 16);
    EXPECT_EQ(plan(sms, 576, 129, 1).rows, 8);
    EXPECT_EQ(plan(sms, 256, 256, 256).rows, sms == 78 ? 4 : 2);
    EXPECT_EQ(plan(sms, 64, 64, 64).rows, 2);
    EXPECT_EQ(plan(sms, 0, 1, 1).rows, 2);
  }
}

TEST(ConvPlan, ThreadsOfABlockOfEdges) {
  EXPECT_EQ(plan(132, 576, 129, 1).edge_items, 128);
  EXPECT_EQ(plan(132, 576, 129, 1).edge_pieces, 8);
  EXPECT_EQ(plan(132, 32768, 192, 64).edge_items, 4);
  EXPECT_EQ(plan(132, 256, 256, 256).edge_items, 2);
  EXPECT_EQ(plan(132, 256, 256, 256).edge_pieces, 128);
  EXPECT_EQ(plan(132, 0, 0, 0).edge_items, 1);
}

TEST(ConvPlan, SizesArePowersOfTwo) {
  for (const int sms : {78, 132})
    for (const int64_t rows : {0, 1, 7, 64, 577, 5000, 100000})
      for (const int64_t items : {1, 3, 129, 1000}) {
        const ConvPlan p = plan(sms, rows, items, 1);
        EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(p.rows)) && p.rows <= 16);
        EXPECT_GE(p.edge_pieces, 8);
        EXPECT_LE(p.edge_items * p.edge_pieces, 1024);
        EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(p.edge_items)));
      }
}

TEST(ConvPlan, SizesBeyondAllMeasureAreRefused) {
  EXPECT_EQ(plan(132, INT32_MAX, INT32_MAX, 1).rows, 4);
  EXPECT_EQ(plan(INT32_MAX, 16, 1, 1).rows, 2);
  EXPECT_THROW(plan(132, int64_t{1} << 60, 1, 1), InternalError);
  EXPECT_THROW(plan(132, 16, int64_t{1} << 60, 1), InternalError);
}

}  // namespace
}  // namespace hypic::cuda
