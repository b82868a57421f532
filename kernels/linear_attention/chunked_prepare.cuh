// M of every chunk without the delta rule, of a block's heads one after the other (see chunked.cuh), and what the other
// kernels that prepare chunks share with it.
//
// invert: A = (I + L')⁻¹ is made in float32: its four 16 × 16 diagonal blocks by forward substitution, a lane a column,
// then what lies below them, of 32 × 32 twice and of 64 × 64, as −A₂₂ L'₂₁ A₁₁. It is multiplied as a sum of two bf16:
// what cancels in M and Z needs its digits.
#pragma once

#include "kernels/linear_attention/chunked_args.cuh"
#include "kernels/linear_attention/hopper.cuh"

namespace hypic::cuda {

inline constexpr int kPrepareThreads = 128;  // warp w has the rows from 16 w
inline constexpr int kPrepareGates = 4;      // heads whose gates are made at once, a warp each

// Shared memory of a block. A warp's rows of M are put together where Q was, whose products are in registers then.
template <int kDk>
struct PrepareShared {
  static constexpr int kTile = kChunkRows * kDk * 2;
  static constexpr int kQ = 0, kK = kTile, kGates = kK + kTile;  // β, then γ, of each head
  static constexpr int kBytes = kGates + kPrepareGates * 2 * kChunkRows * 4;
  static constexpr int kRows = kQ, kWarpRows = 16 * kDk * 2;
  static_assert(kWarpRows >= 16 * kChunkRows * 2);
};

// The column `column` of (I + L)⁻¹ for the 16 × 16 at L.
template <int kPitch>
__device__ inline void solve_column(float (&a)[16], const float* L, int column) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum[4] = {i == column ? 1.0f : 0.0f, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 l = *reinterpret_cast<const float4*>(L + i * kPitch + j);
      sum[0] -= l.x * a[j];
      if (j + 1 < i) sum[1] -= l.y * a[j + 1];
      if (j + 2 < i) sum[2] -= l.z * a[j + 2];
      if (j + 3 < i) sum[3] -= l.w * a[j + 3];
    }
    a[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
}

// Float32 as A, as a sum of two bf16: the 16 × 16 at x.
template <int kPitch>
__device__ inline void load_A(uint32_t (&lead)[4], uint32_t (&rest)[4], const float* x, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair =
        *reinterpret_cast<const float2*>(x + (lane / 4 + i % 2 * 8) * kPitch + i / 2 * 8 + 2 * (lane % 4));
    split_bf16(pair.x, pair.y, lead[i], rest[i]);
  }
}
// c += a · b, 16 × 16 by 16 × 8 kTiles in float32 (three products of bf16), of one warp.
template <int kPitch, int kTiles>
__device__ inline void multiply_16(float (&c)[kTiles][4], const uint32_t (&lead)[4], const uint32_t (&rest)[4],
                                   const float* b, int lane) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    uint32_t b_lead[2], b_rest[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* x = b + (i * 8 + 2 * (lane % 4)) * kPitch + n * 8 + lane / 4;
      split_bf16(x[0], x[kPitch], b_lead[i], b_rest[i]);
    }
    mma_split_bf16(c[n], lead, rest, b_lead[0], b_lead[1], b_rest[0], b_rest[1]);
  }
}

// m += p · A of 16 rows of P, or Q Kᵀ, their columns [16 l, 16 l + 16) here as two bf16; of A, in shared memory as two,
// the rows of these columns, up to the diagonal.
__device__ inline void multiply_block_of_A(float (&m)[8][4], const uint32_t (&p_lead)[4], const uint32_t (&p_rest)[4],
                                           const TileLane<kChunkRows>& square, uint32_t lead, uint32_t rest, int l) {
#pragma unroll
  for (int j = 0; j <= l; ++j) {
    uint32_t a_lead[4], a_rest[4];
    square.k_by_n(a_lead, lead, l, j);
    square.k_by_n(a_rest, rest, l, j);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      mma_split_bf16(m[2 * j + n], p_lead, p_rest, a_lead[2 * n], a_lead[2 * n + 1], a_rest[2 * n], a_rest[2 * n + 1]);
  }
}

// A = (I + L)⁻¹ for the L at `matrix`, [64][kPitch], which is overwritten, by all warps: see above. Of L the part below
// the diagonal counts, of the 16 × 16 blocks that have rows < `rows`. put(i, j, x0, x1) takes A's (i, j) and (i, j + 1)
// of all blocks up to the diagonal, which other threads may read when this returns.
template <int kPitch, class Put>
__device__ inline void invert(float* matrix, int rows, Put put) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const auto block = [&](int i, int j) { return matrix + 16 * (i * kPitch + j); };
  __syncthreads();
  if (16 * warp < rows) {
    float a[16];
    solve_column<kPitch>(a, block(warp, warp), lane % 16);
    __syncwarp();
    if (lane < 16)
#pragma unroll
      for (int i = 0; i < 16; ++i) block(warp, warp)[i * kPitch + lane] = a[i];
  }
  __syncthreads();
  for (int e = threadIdx.x; e < 4 * 16 * 8; e += kPrepareThreads) {  // the diagonal blocks
    const int i = e / 8, j = i / 16 * 16 + e % 8 * 2;
    put(i, j, matrix[i * kPitch + j], matrix[i * kPitch + j + 1]);
  }
  uint32_t a_lead[4], a_rest[4];
  if (const int low = warp / 2 * 2; 16 * (low + 1) < rows) {  // below them, in 32 × 32: a warp 8 columns
    const int column = warp % 2 * 8;
    float y[2][4] = {}, x[1][4] = {};
    load_A<kPitch>(a_lead, a_rest, block(low + 1, low + 1), lane);
    multiply_16<kPitch>(y, a_lead, a_rest, block(low + 1, low), lane);
    split_A(a_lead, a_rest, y[0], y[1]);
    multiply_16<kPitch>(x, a_lead, a_rest, block(low, low) + column, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = g + half * 8, j = column + 2 * t;
      const float2 below = {-x[0][2 * half], -x[0][2 * half + 1]};
      *reinterpret_cast<float2*>(block(low, low + 1) + i * kPitch + j) = below;  // above, for L is still read
      put(16 * (low + 1) + i, 16 * low + j, below.x, below.y);
    }
  }
  __syncthreads();
  if (const int rt = warp / 2, ct = warp % 2; 16 * (2 + rt) < rows) {  // in 64 × 64: a warp 16 × 16
    float y[4][4] = {}, x[2][4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k)
      if (k <= rt) {
        load_A<kPitch>(a_lead, a_rest, k == rt ? block(2 + rt, 2 + rt) : block(2, 3), lane);
        multiply_16<kPitch>(y, a_lead, a_rest, block(2 + k, 0), lane);
      }
#pragma unroll
    for (int k = 0; k < 2; ++k)
      if (k >= ct) {
        split_A(a_lead, a_rest, y[2 * k], y[2 * k + 1]);
        multiply_16<kPitch>(x, a_lead, a_rest, k == ct ? block(ct, ct) : block(0, 1), lane);
      }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        put(32 + 16 * rt + g + half * 8, 16 * ct + 8 * n + 2 * t, -x[n][2 * half], -x[n][2 * half + 1]);
  }
  __syncthreads();
}

// A warp's 16 rows of kChunks 16-byte pieces, of which the first `pieces` are written, by way of its part of shared
// memory, as whole pieces. put: fragments of columns 8 n.
template <int kChunks>
class RowsOut {
 public:
  __device__ explicit RowsOut(char* part) : part_(part) { __syncwarp(); }  // what lay there has been read
  __device__ void put(int n, const uint32_t (&pair)[2]) {
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint32_t*>(part_ + (g + half * 8) * kChunks * 16 + (swizzle_128(g, n) << 4) + lane % 4 * 4) =
          pair[half];
  }
  __device__ void write(__nv_bfloat16* to, int64_t stride, int rows, int pieces) {
    constexpr int kAtATime = 32 / kChunks;
    const int lane = threadIdx.x % 32, chunk = lane % kChunks;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; i += kAtATime) {
      const int row = i + lane / kChunks;
      if (row < rows && chunk < pieces)
        *reinterpret_cast<uint4*>(to + row * stride + chunk * 8) =
            *reinterpret_cast<const uint4*>(part_ + row * kChunks * 16 + (swizzle_128(row, chunk) << 4));
    }
    __syncwarp();
  }

 private:
  char* const part_;
};

// Rows of M from `m`, of this warp: with scale and decay.
__device__ inline void put_M(const ChunkedArgs& p, const float (&m)[8][4], int32_t begin, int rows, int h,
                             const float* gamma, char* part) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const float at[2] = {gamma[16 * warp + g], gamma[16 * warp + g + 8]};
  RowsOut<8> out(part);
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n / 2 > warp) continue;
    const int j = 8 * n + 2 * t;
    const float2 of = *reinterpret_cast<const float2*>(gamma + j);
    uint32_t pair[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * warp + g + half * 8;
      const float m0 = j <= i ? p.scale * m[n][2 * half] * __expf(at[half] - of.x) : 0.0f;
      const float m1 = j + 1 <= i ? p.scale * m[n][2 * half + 1] * __expf(at[half] - of.y) : 0.0f;
      pair[half] = pack_bf16(m0, m1);
    }
    out.put(n, pair);
  }
  out.write(p.M + ((begin + 16 * warp) * static_cast<int64_t>(p.Hv) + h) * kChunkRows, p.Hv * kChunkRows,
            rows - 16 * warp, 2 * (warp + 1));
}

// What one warp makes of a head's gates: β and γ at `beta` and `gamma`, and p.gates.
__device__ inline void make_gates(const ChunkedArgs& p, const RowChunk& chunk, int h, float* beta, float* gamma) {
  const int lane = threadIdx.x % 32, rows = chunk.end - chunk.begin;
  float betas[2], before[2], sum = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // two rows a lane
    const int row = 2 * lane + i;
    const bool valid = row < rows;
    betas[i] = !valid ? 0.0f : p.beta ? p.beta.row(chunk.begin + row)[h] : 1.0f;
    sum += valid && p.g ? p.g.row(chunk.begin + row)[h] : 0.0f;
    before[i] = sum;
  }
  float total = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, total, offset);
    if (lane >= offset) total += other;
  }
  float earlier = __shfl_up_sync(0xffffffffu, total, 1);
  if (lane == 0) earlier = 0;
  const float at[2] = {earlier + before[0], total}, last = __shfl_sync(0xffffffffu, total, 31);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    beta[row] = betas[i];
    gamma[row] = at[i];
    if (row < rows) p.gates[h * p.rows + chunk.begin + row] = {betas[i], expf(at[i]), expf(last - at[i]), at[i]};
  }
}

// Block x: chunk; y: value heads [y · heads, (y + 1) · heads) of one key head.
template <int kDk>
__global__ void __launch_bounds__(kPrepareThreads, 3) prepare_kernel(ChunkedArgs p, int heads) {
  using Shared = PrepareShared<kDk>;
  extern __shared__ __align__(1024) char shared[];
  const uint32_t Q = shared_address(shared) + Shared::kQ, K = shared_address(shared) + Shared::kK;
  float* const gates = reinterpret_cast<float*>(shared + Shared::kGates);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const RowChunk chunk = p.table.chunks[blockIdx.x];
  const int rows = chunk.end - chunk.begin, padded = (rows + 15) / 16 * 16;
  const int first_head = static_cast<int>(blockIdx.y) * heads, kh = first_head / p.group;
  const TileLane<kDk> lanes;

  copy_tile<kDk>(K, p.k.row(chunk.begin, kh), p.k.stride_r, rows, padded, warp, kPrepareThreads / 32);
  copy_tile<kDk>(Q, p.q.row(chunk.begin, kh), p.q.stride_r, rows, padded, warp, kPrepareThreads / 32);
  cp_async_commit();
  const auto make = [&](int h) {
    float* const of = gates + 2 * kChunkRows * warp;
    if (h + warp < first_head + heads) make_gates(p, chunk, h + warp, of, of + kChunkRows);
  };
  make(first_head);
  cp_async_wait<0>();
  __syncthreads();

  // Q Kᵀ of this warp's rows, up to the diagonal.
  const bool active = 16 * warp < rows;
  float qk[8][4] = {};
  if (active) {
#pragma unroll 2
    for (int m = 0; m < kDk / 16; ++m) {
      uint32_t q_rows[4];
      lanes.m_by_k(q_rows, Q, warp, m);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (j <= warp) {
          uint32_t b[4];
          lanes.n_by_k(b, K, j, m);
#pragma unroll
          for (int n = 0; n < 2; ++n) mma_bf16(qk[2 * j + n], q_rows, b[2 * n], b[2 * n + 1]);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (8 * n + 2 * t + c % 2 > 16 * warp + g + c / 2 * 8) qk[n][c] = 0;
  }

  for (int h = first_head; h < first_head + heads; ++h) {
    const float* const beta = gates + 2 * kChunkRows * ((h - first_head) % kPrepareGates);
    const float* const gamma = beta + kChunkRows;
    char* const part = shared + Shared::kRows + Shared::kWarpRows * warp;

    if (active) put_M(p, qk, chunk.begin, rows, h, gamma, part);
    if (h + 1 == first_head + heads) break;
    __syncthreads();
    if ((h + 1 - first_head) % kPrepareGates == 0) {
      make(h + 1);
      __syncthreads();
    }
  }
}

}  // namespace hypic::cuda
