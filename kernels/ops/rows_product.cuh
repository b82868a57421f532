// The product of a few rows by weights, as the blocks of a kernel compute it: of matmul_rows, and of those that have
// more than one product, or something else beside it, in a launch.
//
// A block takes 16 rows of w at a time, its warps parts of the inner axis; their sums are added in the order of the
// warps. w goes from memory into the registers that are the A operand of m16n8k16, 64 KiB a block at a time; the next
// tile's are asked for before this one's are summed over the warps.
//
// A lane has eight consecutive elements of a row, which are k = 2t, 2t + 1, 2t + 8, 2t + 9 of one product and of the
// next: another order of the inner axis, and the same one for x.
#pragma once

#include "core/backend.h"
#include "kernels/common/launch_next.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/piece.cuh"
#include "kernels/common/view.cuh"
#include "kernels/ops/matmul_rows_plan.h"
#include "kernels/ops/pieces.cuh"

namespace hypic::cuda {

inline constexpr int kRowsProductThreads = 32 * kRowsProductWarps;
inline constexpr int kMaxSharedPieces = 1024;  // of x, where a block makes it

template <class Out>
struct RowsProduct {
  const __nv_bfloat16* w;  // [N, K]
  View<Out> out;
  int R, N, K;
  int tiles, batches, blocks;
  float scale;
  bool constant_weights;
};

// Where eight consecutive numbers of a row of x come from: `at`, after all threads of a block have called prepare.
struct GivenRows {
  View<__nv_bfloat16> x;
  struct Shared {};
  __device__ void prepare(Shared&) const {}
  __device__ uint4 at(const Shared&, int r, int k) const { return *reinterpret_cast<const uint4*>(x.row(r) + k); }
};
struct GatedRows {  // activation(gate) ⊙ x as gate_mul rounds it; every block computes all rows
  View<__nv_bfloat16> x, gate;  // [R, H, D]; x optional
  int R, pieces, D, activation;  // pieces: of a row
  struct Shared {
    uint4 rows[kMaxSharedPieces];
  };
  __device__ void prepare(Shared& shared) const {
    using Eight = Piece<__nv_bfloat16>;
    for (int i = static_cast<int>(threadIdx.x); i < R * pieces; i += kRowsProductThreads) {
      const int r = i / pieces, k = (i - r * pieces) * Eight::kSize, h = k / D, d = k - h * D;
      Eight product(Eight::bits(gate.row(r, h) + d));
      const Eight values(x ? Eight::bits(x.row(r, h) + d) : uint4{});
      activate_all(product, activation);
      if (x) {
#pragma unroll
        for (int j = 0; j < Eight::kSize; ++j) product.at[j] *= values.at[j];
      }
      shared.rows[i] = product.rounded();
    }
    __syncthreads();
  }
  __device__ uint4 at(const Shared& shared, int r, int k) const { return shared.rows[r * pieces + k / 8]; }
};
// Whether GatedRows makes x, all its rows.
inline bool gated_rows_takes(const GateMulArgs& a, const Tensor& x) {
  return gate_mul_pieces_takes(a) && a.gate.shape == a.out.shape && x.data == a.out.data && x.size() == a.out.size() &&
         x[0] == a.out[0] && (a.out.rank == 2 || a.out.stride[1] == a.out[2]) && x.size() <= 8 * kMaxSharedPieces;
}
inline GatedRows gated_rows_of(const GateMulArgs& a) {
  return {.x = view<__nv_bfloat16>(a.x),
          .gate = view<__nv_bfloat16>(a.gate),
          .R = static_cast<int>(a.out[0]),
          .pieces = static_cast<int>(a.out.size() / a.out[0] / 8),
          .D = static_cast<int>(a.out[a.out.rank - 1]),
          .activation = static_cast<int>(a.activation)};
}

// kEights: of 8 rows of x. Stores of a warp touch every bank once.
template <int kEights, class X>
struct RowsShared {
  float partial[2][kRowsProductWarps][8 * kEights][kRowsProductTile + 4];
  typename X::Shared x;
};

// Sixteen bytes that are read once; volatile: where the program asks for them.
__device__ inline uint4 load_once(const __nv_bfloat16* from) {
  uint4 bits;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from));
  return bits;
}

// For all threads of `block`, one of a.blocks; calls follow() once.
template <int kEights, class Out, class X>
__device__ void rows_product(const RowsProduct<Out>& a, const X& x, int block, RowsShared<kEights, X>& shared) {
  constexpr int kTile = kRowsProductTile, kSteps = kRowsProductSteps, kWarps = kRowsProductWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4;

  uint4 w[kSteps][2];
  const auto fetch = [&](int tile, int batch) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int k = rows_product_at(batch, s, warp) + t * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile * kTile + half * 8 + g;
        w[s][half] = row < a.N && k < a.K ? load_once(a.w + static_cast<int64_t>(row) * a.K + k) : uint4{};
      }
    }
  };

  int tile = block, batch = 0, buffer = 0;
  if (a.constant_weights) fetch(tile, 0);
  follow();
  if (!a.constant_weights) fetch(tile, 0);
  x.prepare(shared.x);
  float sum[kEights][2][4] = {};
  while (tile < a.tiles) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int k = rows_product_at(batch, s, warp) + t * 8;
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const int r = n * 8 + g;
        const uint4 b = r < a.R && k < a.K ? x.at(shared.x, r, k) : uint4{};
        mma_bf16(sum[n][0], {w[s][0].x, w[s][1].x, w[s][0].y, w[s][1].y}, b.x, b.y);
        mma_bf16(sum[n][1], {w[s][0].z, w[s][1].z, w[s][0].w, w[s][1].w}, b.z, b.w);
      }
    }
    const int first = tile * kTile;
    const bool last = ++batch == a.batches;
    if (last) {
      batch = 0;
      tile += a.blocks;
    }
    if (tile < a.tiles) fetch(tile, batch);
    if (!last) continue;

#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        shared.partial[buffer][warp][n * 8 + 2 * t + i % 2][i / 2 * 8 + g] = sum[n][0][i] + sum[n][1][i];
        sum[n][0][i] = sum[n][1][i] = 0;
      }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.R * kTile; i += kRowsProductThreads) {
      const int r = i / kTile, row = i % kTile;
      float total = 0;
#pragma unroll
      for (int of = 0; of < kWarps; ++of) total += shared.partial[buffer][of][r][row];
      if (first + row < a.N) store(a.out.row(r) + first + row, a.scale * total);
    }
    buffer ^= 1;  // so that one barrier a tile is enough
  }
}

// Of tensors that matmul_rows takes.
template <class Out>
RowsProduct<Out> rows_product_of(const MatmulArgs& a, bool constant_weights, int sms) {
  Shapes shapes("matmul");
  shapes.bind(a.x, "x", {"R", "K"}).bind(a.w, "w", {"N", "K"}).bind(a.out, "out", {"R", "N"});
  const int64_t R = shapes["R"], N = shapes["N"], K = shapes["K"];
  const RowsProductPlan plan = plan_matmul_rows(sms, R, N, K);
  return {.w = static_cast<const __nv_bfloat16*>(a.w.data),
          .out = view<Out>(a.out),
          .R = static_cast<int>(R),
          .N = static_cast<int>(N),
          .K = static_cast<int>(K),
          .tiles = plan.tiles,
          .batches = plan.batches,
          .blocks = plan.blocks,
          .scale = static_cast<float>(a.scale),
          .constant_weights = constant_weights};
}

}  // namespace hypic::cuda
