// How the product of a few rows is laid over a GPU. Pure functions of the sizes.
#pragma once

#include <cstdint>

namespace hypic::cuda {

inline constexpr int kRowsProductRows = 16;  // at most, of x
inline constexpr int kRowsProductWarps = 8;  // of a block; they share the inner axis
inline constexpr int kRowsProductTile = 16;  // rows of w that a block takes at a time
inline constexpr int kRowsProductSteps = 8;  // of 32 elements of the inner axis, under way in a warp
inline constexpr int kRowsProductBatch = kRowsProductWarps * kRowsProductSteps * 32;  // elements of the inner axis

struct RowsProductPlan {
  int tiles;    // of w
  int batches;  // along the inner axis
  int blocks;   // they walk the tiles with the stride of the grid
};

// R ≤ kRowsProductRows rows of K numbers by N rows of weights. What a row's sum is made of follows from K alone.
RowsProductPlan plan_matmul_rows(int sms, int64_t R, int64_t N, int64_t K);

// First element of the inner axis of step `step` of `warp` in `batch`: a warp reads 128 bytes of a row of w in two
// steps, and the warps of a block the bytes that follow.
constexpr int rows_product_at(int batch, int step, int warp) {
  return batch * kRowsProductBatch + step / 2 * (kRowsProductWarps * 64) + warp * 64 + step % 2 * 32;
}

}  // namespace hypic::cuda
