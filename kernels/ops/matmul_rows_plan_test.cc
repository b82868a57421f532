#include "kernels/ops/matmul_rows_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace hypic::cuda {
namespace {

TEST(MatmulRowsPlan, BlocksFillTheGpuAndNoMoreThanTheTiles) {
  for (const int sms : {78, 132}) {
    EXPECT_EQ(plan_matmul_rows(sms, 1, 248320, 2048).blocks, 2 * sms);
    EXPECT_EQ(plan_matmul_rows(sms, 9, 248320, 2048).blocks, sms);
    EXPECT_EQ(plan_matmul_rows(sms, 1, 256, 2048).blocks, 16);
    EXPECT_EQ(plan_matmul_rows(sms, 16, 1, 8).blocks, 1);
  }
}

TEST(MatmulRowsPlan, TilesAndBatchesCoverTheMatrix) {
  const RowsProductPlan plan = plan_matmul_rows(132, 1, 1025, 4104);
  EXPECT_EQ(plan.tiles, 65);
  EXPECT_EQ(plan.batches, 3);
}

TEST(MatmulRowsPlan, StepsOfAllWarpsCoverTheInnerAxisOnce) {
  constexpr int kBatches = 2;
  std::vector<int> seen(kBatches * kRowsProductBatch / 32);
  for (int batch = 0; batch < kBatches; ++batch)
    for (int step = 0; step < kRowsProductSteps; ++step)
      for (int warp = 0; warp < kRowsProductWarps; ++warp) ++seen.at(rows_product_at(batch, step, warp) / 32);
  for (const int count : seen) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace hypic::cuda
