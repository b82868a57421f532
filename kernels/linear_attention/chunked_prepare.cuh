// M and Z of every chunk, of a block's heads one after the other: see chunked.cuh.
//
// A = (I + L')⁻¹ is made in float32: its two 32 × 32 diagonal blocks by forward substitution, a thread a column,
// the block below them as −A₂₂ (L'₂₁ A₁₁). It is multiplied as a sum of two bf16: what cancels in M and Z needs
// its digits.
#pragma once

#include "kernels/linear_attention/chunked_args.cuh"

namespace hypic::cuda {

inline constexpr int kPrepareThreads = 128;  // warp w has the rows from 16 w

// Shared memory of a block. The halves of A lie where Q was, whose products are in registers by then.
template <bool kDelta, int kDk>
struct PrepareShared {
  static constexpr int kTile = kChunkRows * kDk * 2, kHalf = kChunkRows * kChunkRows * 2;
  static constexpr int kPitch = 72;  // of the matrix in floats: eight rows apart by eight banks
  static constexpr int kQ = 0, kLead = 0, kRest = kHalf;
  static constexpr int kK = kDelta && kTile < 2 * kHalf ? 2 * kHalf : kTile;
  static constexpr int kGates = kK + kTile;                    // β, then γ
  static constexpr int kMatrix = kGates + 2 * kChunkRows * 4;  // L', then A
  static constexpr int kBytes = kMatrix + (kDelta ? kChunkRows * kPitch * 4 : 0);
};

// The column `lane` of (I + L)⁻¹ for the 32 × 32 at L, of which rows from `rows` on are zero.
template <int kPitch>
__device__ inline void solve_column(float (&a)[32], const float* L, int lane, int rows) {
#pragma unroll
  for (int i = 0; i < 32; ++i) a[i] = i == lane ? 1.0f : 0.0f;
#pragma unroll
  for (int begin = 0; begin < 32; begin += 8) {
    if (begin >= rows) break;
#pragma unroll
    for (int i = begin; i < begin + 8; ++i) {
      float sum[4] = {a[i], 0, 0, 0};
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
}

// c += a · b, 16 × 32 by 32 × 16 in float32 (three products of bf16), of one warp.
template <int kPitch>
__device__ inline void multiply_16(float (&c)[2][4], const float* a, const float* b, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int k = 0; k < 32; k += 16) {
    uint32_t lead[4], rest[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = *reinterpret_cast<const float2*>(a + (g + i % 2 * 8) * kPitch + k + i / 2 * 8 + 2 * t);
      split_bf16(x.x, x.y, lead[i], rest[i]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t b_lead[2], b_rest[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* x = b + (k + i * 8 + 2 * t) * kPitch + n * 8 + g;
        split_bf16(x[0], x[kPitch], b_lead[i], b_rest[i]);
      }
      mma_bf16(c[n], lead, b_lead[0], b_lead[1]);
      mma_bf16(c[n], lead, b_rest[0], b_rest[1]);
      mma_bf16(c[n], rest, b_lead[0], b_lead[1]);
    }
  }
}

// Rows of M from `m`, of this warp: with scale and decay.
__device__ inline void put_M(const ChunkedArgs& p, const float (&m)[8][4], int32_t begin, int rows, int h,
                             const float* gamma) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = 16 * warp + g + half * 8;
    if (i >= rows) continue;
    const float at = gamma[i];
    __nv_bfloat16* to = p.M + ((begin + i) * static_cast<int64_t>(p.Hv) + h) * kChunkRows;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (n / 2 > warp) continue;
      const int j = 8 * n + 2 * t;
      const float2 of = *reinterpret_cast<const float2*>(gamma + j);
      const float m0 = j <= i ? p.scale * m[n][2 * half] * __expf(at - of.x) : 0.0f;
      const float m1 = j + 1 <= i ? p.scale * m[n][2 * half + 1] * __expf(at - of.y) : 0.0f;
      *reinterpret_cast<uint32_t*>(to + j) = pack_bf16(m0, m1);
    }
  }
}

// Block x: chunk; y: value heads [y · heads, (y + 1) · heads) of one key head.
template <bool kDelta, int kDk>
__global__ void __launch_bounds__(kPrepareThreads, 3) prepare_kernel(ChunkedArgs p, int heads) {
  using Shared = PrepareShared<kDelta, kDk>;
  extern __shared__ __align__(128) char shared[];
  const uint32_t Q = shared_address(shared) + Shared::kQ, K = shared_address(shared) + Shared::kK;
  float* const beta = reinterpret_cast<float*>(shared + Shared::kGates);
  float* const gamma = beta + kChunkRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const RowChunk chunk = p.table.chunks[blockIdx.x];
  const int rows = chunk.end - chunk.begin, padded = (rows + 15) / 16 * 16;
  const int first_head = static_cast<int>(blockIdx.y) * heads, kh = first_head / p.group;
  const TileLane<kDk> lanes;
  const TileLane<kChunkRows> square;

  copy_tile<kDk>(K, p.k.row(chunk.begin, kh), p.k.stride_r, rows, padded, warp, kPrepareThreads / 32);
  copy_tile<kDk>(Q, p.q.row(chunk.begin, kh), p.q.stride_r, rows, padded, warp, kPrepareThreads / 32);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();

  // K Kᵀ and Q Kᵀ of this warp's rows, up to the diagonal.
  const bool active = 16 * warp < rows;
  float kk[8][4] = {}, qk[8][4] = {};
  if (active) {
#pragma unroll 2
    for (int m = 0; m < kDk / 16; ++m) {
      uint32_t k_rows[4], q_rows[4];
      if constexpr (kDelta) lanes.m_by_k(k_rows, K, warp, m);
      lanes.m_by_k(q_rows, Q, warp, m);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (j <= warp) {
          uint32_t b[4];
          lanes.n_by_k(b, K, j, m);
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            if constexpr (kDelta) mma_bf16(kk[2 * j + n], k_rows, b[2 * n], b[2 * n + 1]);
            mma_bf16(qk[2 * j + n], q_rows, b[2 * n], b[2 * n + 1]);
          }
        }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (8 * n + 2 * t + c % 2 > 16 * warp + g + c / 2 * 8) qk[n][c] = 0;
  }

  for (int h = first_head; h < first_head + heads; ++h) {
    if (warp == 0) {  // two rows a lane
      float before[2], sum = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 2 * lane + i;
        const bool valid = row < rows;
        beta[row] = !valid ? 0.0f : p.beta ? p.beta.row(chunk.begin + row)[h] : 1.0f;
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
      gamma[2 * lane] = earlier + before[0];
      gamma[2 * lane + 1] = total;
      const float last = __shfl_sync(0xffffffffu, total, 31);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 2 * lane + i;
        const float at = gamma[row];
        if (row < rows) p.gates[h * p.rows + chunk.begin + row] = {beta[row], expf(at), expf(last - at), at};
      }
    }
    __syncthreads();

    if constexpr (kDelta) {
      constexpr int kPitch = Shared::kPitch;
      float* const matrix = reinterpret_cast<float*>(shared + Shared::kMatrix);
      const uint32_t lead = shared_address(shared) + Shared::kLead, rest = shared_address(shared) + Shared::kRest;
      const auto put_half = [&](int i, int j, float x0, float x1) {  // A's (i, j) and (i, j + 1)
        uint32_t x_lead, x_rest;
        split_bf16(x0, x1, x_lead, x_rest);
        const int at = i * kChunkRows * 2 + (swizzle_128(i, j / 8) << 4) + j % 8 * 2;
        *reinterpret_cast<uint32_t*>(shared + Shared::kLead + at) = x_lead;
        *reinterpret_cast<uint32_t*>(shared + Shared::kRest + at) = x_rest;
      };
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = 16 * warp + g + half * 8, j = 8 * n + 2 * t;
          *reinterpret_cast<float2*>(matrix + i * kPitch + j) = {j < i ? beta[i] * kk[n][2 * half] : 0.0f,
                                                                 j + 1 < i ? beta[i] * kk[n][2 * half + 1] : 0.0f};
        }
      __syncthreads();
      if (32 * warp < rows && warp < 2) {
        float a[32];
        float* const block = matrix + 32 * warp * (kPitch + 1);
        solve_column<kPitch>(a, block, lane, rows - 32 * warp);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 32; ++i) block[i * kPitch + lane] = a[i];
      }
      __syncthreads();
      const int rt = warp / 2 * 16, ct = warp % 2 * 16;  // of a 32 × 32, this warp's 16 × 16
      if (rows > 32) {
        float y[2][4] = {}, x[2][4] = {};
        float* const product = matrix + 32;  // above the diagonal, L'₂₁ A₁₁
        multiply_16<kPitch>(y, matrix + (32 + rt) * kPitch, matrix + ct, lane);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            *reinterpret_cast<float2*>(product + (rt + g + half * 8) * kPitch + ct + n * 8 + 2 * t) = {
                y[n][2 * half], y[n][2 * half + 1]};
        __syncthreads();
        multiply_16<kPitch>(x, matrix + (32 + rt) * kPitch + 32, product + ct, lane);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            put_half(32 + rt + g + half * 8, ct + n * 8 + 2 * t, -x[n][2 * half], -x[n][2 * half + 1]);
      }
      for (int e = threadIdx.x; e < 2 * 32 * 16; e += kPrepareThreads) {  // the diagonal blocks
        const int i = e / 16, j = i / 32 * 32 + e % 16 * 2;
        if (i < padded) put_half(i, j, matrix[i * kPitch + j], matrix[i * kPitch + j + 1]);
      }
      __syncthreads();

      if (active) {
        float m[8][4] = {};
#pragma unroll
        for (int l = 0; l < 4; ++l)
          if (l <= warp) {
            uint32_t q_lead[4], q_rest[4];
            split_A(q_lead, q_rest, qk[2 * l], qk[2 * l + 1]);
#pragma unroll
            for (int j = 0; j <= l; ++j) {
              uint32_t a_lead[4], a_rest[4];
              square.k_by_n(a_lead, lead, l, j);
              square.k_by_n(a_rest, rest, l, j);
#pragma unroll
              for (int n = 0; n < 2; ++n) {
                mma_bf16(m[2 * j + n], q_lead, a_lead[2 * n], a_lead[2 * n + 1]);
                mma_bf16(m[2 * j + n], q_lead, a_rest[2 * n], a_rest[2 * n + 1]);
                mma_bf16(m[2 * j + n], q_rest, a_lead[2 * n], a_lead[2 * n + 1]);
              }
            }
          }
        put_M(p, m, chunk.begin, rows, h, gamma);

        // Z in halves of its columns, for registers.
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          float z[kDk / 16][4] = {};
          for (int i = warp; 16 * i < rows; ++i) {
            uint32_t a_lead[4], a_rest[4];
            square.k_by_m(a_lead, lead, i, warp);
            square.k_by_m(a_rest, rest, i, warp);
#pragma unroll
            for (int j = 0; j < kDk / 32; ++j) {
              uint32_t b[4];
              lanes.k_by_n(b, K, i, part * (kDk / 32) + j);
#pragma unroll
              for (int n = 0; n < 2; ++n) {
                mma_bf16(z[2 * j + n], a_lead, b[2 * n], b[2 * n + 1]);
                mma_bf16(z[2 * j + n], a_rest, b[2 * n], b[2 * n + 1]);
              }
            }
          }
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = 16 * warp + g + half * 8;
            if (row >= rows) continue;
            __nv_bfloat16* to =
                p.Z + ((chunk.begin + row) * static_cast<int64_t>(p.Hv) + h) * kDk + part * (kDk / 2);
#pragma unroll
            for (int n = 0; n < kDk / 16; ++n)
              *reinterpret_cast<uint32_t*>(to + n * 8 + 2 * t) = pack_bf16(z[n][2 * half], z[n][2 * half + 1]);
          }
        }
      }
    } else if (active) {
      put_M(p, qk, chunk.begin, rows, h, gamma);
    }
    if (h + 1 < first_head + heads) __syncthreads();
  }
}

}  // namespace hypic::cuda
