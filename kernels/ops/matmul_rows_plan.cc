#include "kernels/ops/matmul_rows_plan.h"

#include <algorithm>

namespace hypic::cuda {

RowsProductPlan plan_matmul_rows(int sms, int64_t R, int64_t N, int64_t K) {
  const int64_t tiles = (N + kRowsProductTile - 1) / kRowsProductTile;
  const int blocks_per_sm = R <= 8 ? 2 : 1;  // registers: see matmul_rows.cu
  return {.tiles = static_cast<int>(tiles),
          .batches = static_cast<int>((K + kRowsProductBatch - 1) / kRowsProductBatch),
          .blocks = static_cast<int>(std::min<int64_t>(tiles, int64_t{sms} * blocks_per_sm))};
}

}  // namespace hypic::cuda
