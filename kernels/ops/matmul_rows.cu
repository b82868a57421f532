// A block takes 16 rows of w at a time, its warps parts of the inner axis; their sums are added in the order of the
// warps. w goes from memory into the registers that are the A operand of m16n8k16, 64 KiB a block at a time; the next
// tile's are asked for before this one's are summed over the warps.
//
// A lane has eight consecutive elements of a row, which are k = 2t, 2t + 1, 2t + 8, 2t + 9 of one product and of the
// next: another order of the inner axis, and the same one for x.
#include "kernels/ops/matmul_rows.cuh"

#include "kernels/common/launch_next.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/view.cuh"
#include "kernels/ops/matmul_rows_plan.h"

namespace hypic::cuda {
namespace {

constexpr int kWarps = kRowsProductWarps, kThreads = 32 * kWarps;
constexpr int kTile = kRowsProductTile, kSteps = kRowsProductSteps;

template <class Out>
struct Args {
  const __nv_bfloat16* w;
  View<__nv_bfloat16> x;
  View<Out> out;
  int R, N, K;
  int tiles, batches;
  float scale;
  bool constant_weights;
};

// Sixteen bytes that are read once; volatile: where the program asks for them.
__device__ inline uint4 load_once(const __nv_bfloat16* from) {
  uint4 bits;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from));
  return bits;
}

// kEights: of 8 rows of x.
template <int kEights, class Out>
__global__ void __launch_bounds__(kThreads, kEights == 1 ? 2 : 1) rows_kernel(Args<Out> a) {
  constexpr int kRowStride = kTile + 4;  // stores of a warp touch every bank once
  __shared__ float partial[2][kWarps][8 * kEights][kRowStride];
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

  int tile = static_cast<int>(blockIdx.x), batch = 0, buffer = 0;
  if (a.constant_weights) fetch(tile, 0);
  follow();
  if (!a.constant_weights) fetch(tile, 0);
  float sum[kEights][2][4] = {};
  while (tile < a.tiles) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int k = rows_product_at(batch, s, warp) + t * 8;
#pragma unroll
      for (int n = 0; n < kEights; ++n) {
        const int r = n * 8 + g;
        const uint4 x = r < a.R && k < a.K ? *reinterpret_cast<const uint4*>(a.x.row(r) + k) : uint4{};
        mma_bf16(sum[n][0], {w[s][0].x, w[s][1].x, w[s][0].y, w[s][1].y}, x.x, x.y);
        mma_bf16(sum[n][1], {w[s][0].z, w[s][1].z, w[s][0].w, w[s][1].w}, x.z, x.w);
      }
    }
    const int first = tile * kTile;
    const bool last = ++batch == a.batches;
    if (last) {
      batch = 0;
      tile += static_cast<int>(gridDim.x);
    }
    if (tile < a.tiles) fetch(tile, batch);
    if (!last) continue;

#pragma unroll
    for (int n = 0; n < kEights; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        partial[buffer][warp][n * 8 + 2 * t + i % 2][i / 2 * 8 + g] = sum[n][0][i] + sum[n][1][i];
        sum[n][0][i] = sum[n][1][i] = 0;
      }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < a.R * kTile; i += kThreads) {
      const int r = i / kTile, row = i % kTile;
      float total = 0;
#pragma unroll
      for (int of = 0; of < kWarps; ++of) total += partial[buffer][of][r][row];
      if (first + row < a.N) store(a.out.row(r) + first + row, a.scale * total);
    }
    buffer ^= 1;  // so that one barrier a tile is enough
  }
}

}  // namespace

bool matmul_rows_takes(const MatmulArgs& a) {
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  constexpr int64_t kMaxSize = 1 << 30;
  constexpr int64_t kMaxN = 1 << 16;  // cublasLt reads a whole vocabulary at 97 % of what memory gives, this at 86 %
  return a.x.rank == 2 && a.w.rank == 2 && a.out.rank == 2 && 1 <= a.x[0] && a.x[0] <= kRowsProductRows &&
         a.x.dtype == DType::bf16 && a.w.dtype == DType::bf16 &&
         (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32) && 1 <= a.w[0] && a.w[0] <= kMaxN && 8 <= a.w[1] &&
         a.w[1] < kMaxSize && a.w[1] % 8 == 0 && a.w.contiguous() && aligned(a.w) && aligned(a.x) &&
         a.x.stride[1] == 1 && a.x.stride[0] % 8 == 0 && a.out.stride[1] == 1;
}

void matmul_rows(const MatmulArgs& a, bool constant_weights, int sms, cudaStream_t stream) {
  Shapes shapes("matmul");
  shapes.bind(a.x, "x", {"R", "K"}).bind(a.w, "w", {"N", "K"}).bind(a.out, "out", {"R", "N"});
  HYPIC_CHECK(matmul_rows_takes(a));
  const int64_t R = shapes["R"], N = shapes["N"], K = shapes["K"];
  const RowsProductPlan plan = plan_matmul_rows(sms, R, N, K);
  visit_device(a.out.dtype, [&](auto zero) {
    using Out = decltype(zero);
    const Args<Out> args{.w = static_cast<const __nv_bfloat16*>(a.w.data),
                         .x = view<__nv_bfloat16>(a.x),
                         .out = view<Out>(a.out),
                         .R = static_cast<int>(R),
                         .N = static_cast<int>(N),
                         .K = static_cast<int>(K),
                         .tiles = plan.tiles,
                         .batches = plan.batches,
                         .scale = static_cast<float>(a.scale),
                         .constant_weights = constant_weights};
    launch_next("product of rows", R <= 8 ? rows_kernel<1, Out> : rows_kernel<2, Out>,
                dim3(static_cast<unsigned>(plan.blocks)), dim3(kThreads), 0, stream, args);
  });
}

}  // namespace hypic::cuda
