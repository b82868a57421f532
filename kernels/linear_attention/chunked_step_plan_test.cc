#include "kernels/linear_attention/chunked_step_plan.h"

#include <gtest/gtest.h>

namespace hypic::cuda {
namespace {

constexpr int kGpus[] = {78, 132};  // multiprocessors of an H20; of an H100 or H200

TEST(ChunkedStepPlan, NoMoreColumnsThanThereAre) {
  for (const int sms : kGpus)
    for (const int rows : {1, 2, 3, 64, 100000})
      for (const int heads : {1, 4, 32})
        for (const int dv : {16, 32, 48, 64, 96, 128, 144, 256}) {
          const int columns = plan_step_columns(sms, rows, heads, dv);
          EXPECT_TRUE(columns == 32 || columns == 64) << columns;
          EXPECT_TRUE(columns == 32 || columns <= dv) << columns << " of " << dv;
        }
}

TEST(ChunkedStepPlan, LongPiecesWhereThereAreMany) {
  for (const int sms : kGpus) {
    EXPECT_EQ(plan_step_columns(sms, 64, 32, 128), 64);
    EXPECT_EQ(plan_step_columns(sms, 64, 32, 64), 32);
    EXPECT_EQ(plan_step_columns(sms, 1, 32, 128), 32);
  }
  EXPECT_EQ(plan_step_columns(132, 8, 32, 128), 32);
  EXPECT_EQ(plan_step_columns(78, 8, 32, 128), 64);
}

}  // namespace
}  // namespace hypic::cuda
