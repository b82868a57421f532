// A block has 16 columns of the result, a warp one choice: its 16 rows of down, all of which are under way at once, while
// the kernel before this one still makes what they are multiplied by. A sum over the inner axis is one chain of m16n8k16
// from its begin to its end, as in experts_mma.
#include "kernels/ops/experts_row.cuh"

#include "kernels/common/mma.cuh"

namespace hypic::cuda {
namespace {

constexpr int kColumns = 16;
constexpr int kMaxWarps = 16;
constexpr int kMaxSharedBytes = 208 << 10;

struct Args {
  const __nv_bfloat16* inner;  // [k, I]
  const __nv_bfloat16* down;   // [E, N, I]
  const int32_t* experts;      // [k]
  const float* weights;        // [k]
  int k, N, I;
  __nv_bfloat16* out;          // [N]
  ExpertsMore more;
};

// Of a choice: its rows of down, then its inner row.
constexpr int choice_bytes(int I) { return (kColumns + 1) * I * 2; }

__global__ void __launch_bounds__(32 * kMaxWarps) down_row_kernel(Args a) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float parts[kMaxWarps][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % 32, choice = static_cast<int>(threadIdx.x) / 32;
  const int column = static_cast<int>(blockIdx.x) * kColumns, row_bytes = a.I * 2, chunks = a.I / 8;
  const uint32_t rows = shared_address(shared) + choice * choice_bytes(a.I), inner = rows + kColumns * row_bytes;
  // Known before follow(): the kernel under way is the one that makes `inner`, and has waited for those before it.
  const __nv_bfloat16* const down =
      a.down + (static_cast<int64_t>(__ldcg(a.experts + choice)) * a.N + column) * a.I;
  for (int row = 0; row < kColumns; ++row)
    for (int chunk = lane; chunk < chunks; chunk += 32)
      cp_async_16(rows + row * row_bytes + swizzle_128(row, chunk) * 16, down + row * a.I + chunk * 8);
  follow();
  for (int chunk = lane; chunk < chunks; chunk += 32)
    cp_async_16(inner + chunk * 16, a.inner + choice * a.I + chunk * 8);
  cp_async_commit();
  cp_async_wait<0>();
  __syncwarp();

  const int row = lane / 16 * 8 + lane % 8;
  float sum[kColumns / 8][4] = {};
#pragma unroll 4
  for (int k16 = 0; k16 < a.I / 16; ++k16) {
    uint32_t x[4], w[4];
    ldmatrix_x4(x, inner + (k16 * 2 + lane / 16) * 16);  // all 16 rows of A are the one that there is
    ldmatrix_x4(w, rows + row * row_bytes + swizzle_128(row, k16 * 2 + lane / 8 % 2) * 16);
    mma_bf16(sum[0], x, w[0], w[1]);
    mma_bf16(sum[1], x, w[2], w[3]);
  }
  if (lane < 4)
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i)
      parts[choice][i / 2 * 8 + lane * 2 + i % 2] = __bfloat162float(__float2bfloat16(sum[i / 2][i % 2]));
  __syncthreads();

  if (threadIdx.x >= kColumns / 8) return;
  const int first = static_cast<int>(threadIdx.x) * 8;
  Piece<__nv_bfloat16> sums(uint4{});
  for (int j = 0; j < a.k; ++j) {
    const float weight = a.weights[j];
#pragma unroll
    for (int i = 0; i < 8; ++i) sums.at[i] += weight * parts[j][first + i];
  }
  store_experts(sums, a.more, 0, column + first, a.out + column + first);
}

}  // namespace

bool experts_row_takes(const ExpertsArgs& a) {
  const int64_t N = a.down[1], I = a.down[2], k = a.experts[1];
  return a.x[0] == 1 && I % 64 == 0 && N % kColumns == 0 && 1 <= k && k <= kMaxWarps &&
         k * choice_bytes(static_cast<int>(I)) <= kMaxSharedBytes;
}

void experts_down_row(const __nv_bfloat16* inner, const ExpertsArgs& a, const ExpertsMore& more,
                      cudaStream_t stream) {
  HYPIC_CHECK(experts_row_takes(a));
  const Args args{.inner = inner,
                  .down = static_cast<const __nv_bfloat16*>(a.down.data),
                  .experts = a.experts.as<int32_t>(),
                  .weights = a.weights.as<float>(),
                  .k = static_cast<int>(a.experts[1]),
                  .N = static_cast<int>(a.down[1]),
                  .I = static_cast<int>(a.down[2]),
                  .out = view<__nv_bfloat16>(a.out).data,
                  .more = more};
  const int bytes = args.k * choice_bytes(args.I);
  check(cudaFuncSetAttribute(down_row_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes),
        "experts, shared memory");
  launch_next("experts, down", down_row_kernel, dim3(static_cast<unsigned>(args.N / kColumns)),
              dim3(static_cast<unsigned>(32 * args.k)), bytes, stream, args);
}

}  // namespace hypic::cuda
