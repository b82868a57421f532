// What `walk` needs of every chunk where a decay is one a key dim: see chunked.cuh.
//
// With γ [64][d_k] the cumulative log decay, every sum over key dims has decays in it:
//
//   (I + L) X = β ⊙ (V − (exp(γ) ⊙ K) S)    L_ij = β_i Σ_c k_ic k_jc exp(γ_ic − γ_jc) for j < i
//   O = scale · ((exp(γ) ⊙ Q) S + P X)      P_ij = Σ_c q_ic k_jc exp(γ_ic − γ_jc) for j ≤ i
//   S ← exp(γ_C) ⊙ S + (exp(γ_C − γ) ⊙ K)ᵀ X
//
// With A = (I + L)⁻¹ diag(β), M = P A and Z = Aᵀ (exp(γ_C − γ) ⊙ K), and K and Q with exp(γ), what remains is the walk
// without a gate inside a chunk: Y = V − K S, O = scale · (Q S + M Y), S ← exp(γ_C) ⊙ S + Zᵀ Y. For Update::add,
// A = diag(β), Y = V.
//
// L and P are made by halves: with γ_r at the last row of the first 32, what lies below and left of it is a product on
// the tensor cores of exp(γ_i − γ_r) k_i and exp(γ_r − γ_j) k_j; so on in each half and quarter, down to blocks of 8
// rows by 8, where k_j exp(γ_i − γ_j) runs along i, a factor exp(γ_i − γ_{i−1}) a row. Every exponent is ≤ 0, nothing
// is divided by a decay, and no exponential is one of a pair of rows. With the delta rule what is multiplied is a sum
// of two bf16, for it cancels in M and Z.
#pragma once

#include "kernels/linear_attention/chunked_prepare.cuh"

namespace hypic::cuda {

// Of L and P a warp has what lies in half `warp / 2` of the rows, summed over half `warp % 2` of the key dims: tiles of
// 16 × 8, four below and left of row 32, two in its half of 32, and one that is two blocks of 8 × 8. Shared memory:
// where γ was, those sums, then L, and P, and A.
template <bool kDelta, int kDk>
struct DiagonalShared {
  static constexpr int kTile = kChunkRows * kDk * 2, kHalf = kChunkRows * kChunkRows * 2;
  static constexpr int kPitch = 72;            // of L in floats: eight rows apart by eight banks
  static constexpr int kGammaPitch = kDk + 4;  // two rows by four lanes' 16 bytes touch every bank once
  static constexpr int kTiles = 7, kKinds = kDelta ? 2 : 1;
  static constexpr int kK = 0, kQ = kTile;  // later Z's right side, its leading and its remaining part
  static constexpr int kBeta = 2 * kTile;
  static constexpr int kGamma = kBeta + kChunkRows * 4;
  static constexpr int kSums = kGamma, kTriangles = kSums + 2 * kTiles * kKinds * 512;
  static constexpr int kMatrix = kGamma, kMatrixBytes = kChunkRows * kPitch * 4;
  static constexpr int kLead = kMatrix + kMatrixBytes, kRest = kLead + kHalf;  // of P, then of A; of add M alone
  static constexpr int kEnd = kDelta ? kRest + kHalf : kLead + kHalf;
  static constexpr int kGammaEnd = kGamma + kChunkRows * kGammaPitch * 4;
  static constexpr int kBytes = kEnd > kGammaEnd ? kEnd : kGammaEnd;
  static_assert(kTriangles + 2 * 8 * 64 * 4 <= kLead);
};

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Eight numbers of float32 in a row.
__device__ inline void load_8(float (&x)[8], const float* from) {
  const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// Eight rows by 32 key dims, decayed, as a bf16 or (kSplit) a sum of two: lane 4 g + t has row g, dims 8 t on. They are
// the k of two products, dims 8 t + (0 … 3) those of the first, in an order that A and B share.
template <bool kSplit>
struct DecayedRows {
  uint32_t lead[4], rest[4];
  __device__ DecayedRows() : lead{}, rest{} {}
  __device__ DecayedRows(uint4 rows, const float (&decays)[8]) {
    const uint32_t pairs[4] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = halves_of(pairs[i]);
      const float x0 = x.x * decays[2 * i], x1 = x.y * decays[2 * i + 1];
      if constexpr (kSplit)
        split_bf16(x0, x1, lead[i], rest[i]);
      else
        lead[i] = pack_bf16(x0, x1);
    }
  }
};
// c += a · bᵀ, rows g of a from `low`, g + 8 from `high`.
template <bool kSplit>
__device__ inline void multiply_rows(float (&c)[4], const DecayedRows<kSplit>& low, const DecayedRows<kSplit>& high,
                                     const DecayedRows<kSplit>& b) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t lead[4] = {low.lead[i], high.lead[i], low.lead[i + 1], high.lead[i + 1]};
    if constexpr (kSplit) {
      const uint32_t rest[4] = {low.rest[i], high.rest[i], low.rest[i + 1], high.rest[i + 1]};
      mma_split_bf16(c, lead, rest, b.lead[i], b.lead[i + 1], b.rest[i], b.rest[i + 1]);
    } else {
      mma_bf16(c, lead, b.lead[i], b.lead[i + 1]);
    }
  }
}

// This warp's tiles: those below row 32, of its 16 rows; those in its half below the middle; that of its quarters.
template <bool kDelta, int kDk>
__device__ inline void multiply_tiles(float (&kk)[7][4], float (&qk)[7][4], const char* K, const char* Q,
                                      const float* gamma, int rows) {
  using Rows = DecayedRows<kDelta>;
  constexpr int kPitch = DiagonalShared<kDelta, kDk>::kGammaPitch;
  const int half = threadIdx.x / 64, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 7; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) kk[i][c] = qk[i][c] = 0;
#pragma unroll 1
  for (int part = 0; part < kDk / 64; ++part) {
    const int dim = static_cast<int>(threadIdx.x) / 32 % 2 * (kDk / 2) + 32 * part + 8 * t;
    float since[8], decays[8];  // γ_r
    const auto set_since = [&](int row) { load_8(since, gamma + row * kPitch + dim); };
    const auto set_decays = [&](int group, float sign) {
      load_8(decays, gamma + (8 * group + g) * kPitch + dim);
#pragma unroll
      for (int i = 0; i < 8; ++i) decays[i] = exp2_of(sign * (decays[i] - since[i]));
    };
    const auto rows_of = [&](const char* tile, int group) {
      return *reinterpret_cast<const uint4*>(tile + (8 * group + g) * kDk * 2 + (swizzle_128(g, dim / 8) << 4));
    };
    struct After {
      Rows k, q;
    };
    const auto after = [&](int group) {
      After x;
      set_decays(group, 1);
      if constexpr (kDelta) x.k = Rows(rows_of(K, group), decays);
      x.q = Rows(rows_of(Q, group), decays);
      return x;
    };
    const auto before = [&](int group) {
      set_decays(group, -1);
      return Rows(rows_of(K, group), decays);
    };
    const auto multiply = [&](int tile, const After& low, const After& high, const Rows& b) {
      if constexpr (kDelta) multiply_rows(kk[tile], low.k, high.k, b);
      multiply_rows(qk[tile], low.q, high.q, b);
    };
    if (32 + 16 * half < rows) {
      set_since(31);
      const After low = after(4 + 2 * half), high = after(5 + 2 * half);
#pragma unroll
      for (int n = 0; n < 4; ++n) multiply(n, low, high, before(n));
    }
    if (32 * half + 16 < rows) {
      set_since(32 * half + 15);
      const After low = after(4 * half + 2), high = after(4 * half + 3);
#pragma unroll
      for (int n = 0; n < 2; ++n) multiply(4 + n, low, high, before(4 * half + n));
    }
    if (32 * half < rows) {
      set_since(32 * half + 7);
      multiply(6, after(4 * half + 1), After(), before(4 * half));
      set_since(32 * half + 23);
      multiply(6, After(), after(4 * half + 3), before(4 * half + 2));
    }
  }
}

// Sums with the lane kStep apart: of 16 kStep numbers the first half is left in the one, the second in the other.
template <int kStep>
__device__ inline void keep_half(float (&x)[64]) {
  const bool second = threadIdx.x & kStep;
#pragma unroll
  for (int i = 0; i < 8 * kStep; ++i) {
    const float first_half = x[i], second_half = x[i + 8 * kStep];
    x[i] = (second ? second_half : first_half) + __shfl_xor_sync(0xffffffffu, second ? first_half : second_half, kStep);
  }
}

// The blocks of 8 × 8 on the diagonal, of this warp's half: x[b] of lane 8 m + a is of block m, for b ≤ a P's row a,
// column b, else L's row b, column a, but for β.
template <bool kDelta, int kDk>
__device__ inline void multiply_triangles(float (&x)[8], const char* K, const char* Q, const float* gamma) {
  constexpr int kPitch = DiagonalShared<kDelta, kDk>::kGammaPitch;
  const int lane = threadIdx.x % 32, first = static_cast<int>(threadIdx.x) / 64 * 32 + lane / 8 * 8;
  float sums[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] = 0;
#pragma unroll 1
  for (int part = 0; part < kDk / 64; ++part) {
    const int dim = static_cast<int>(threadIdx.x) / 32 % 2 * (kDk / 2) + 32 * part + 4 * (lane % 8);
    float run[8][4];  // k_j exp(γ_i − γ_j)
    float4 last{};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = (first + i) * kDk * 2 + (swizzle_128(i, dim / 8) << 4) + dim % 8 * 2;
      const auto four = [&](const char* tile, float(&to)[4]) {
        const uint2 pairs = *reinterpret_cast<const uint2*>(tile + at);
        const float2 low = halves_of(pairs.x), high = halves_of(pairs.y);
        to[0] = low.x, to[1] = low.y, to[2] = high.x, to[3] = high.y;
      };
      float q[4];
      four(K, run[i]);
      four(Q, q);
      const float4 now = *reinterpret_cast<const float4*>(gamma + (first + i) * kPitch + dim);
      const float decay[4] = {exp2_of(now.x - last.x), exp2_of(now.y - last.y), exp2_of(now.z - last.z),
                              exp2_of(now.w - last.w)};
      last = now;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
#pragma unroll
        for (int j = 0; j < i; ++j) {
          run[j][c] *= decay[c];
          if constexpr (kDelta) sums[8 * j + i] += run[i][c] * run[j][c];
          sums[8 * i + j] += q[c] * run[j][c];
        }
        sums[9 * i] += q[c] * run[i][c];
      }
    }
  }
  // Over the eight lanes of a block; each keeps a row.
  keep_half<4>(sums);
  keep_half<2>(sums);
  keep_half<1>(sums);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = sums[i];
}

// Block x: chunk; y: value head. Leaves p.K, p.Q (delta: both), p.M, p.Z and p.decays.
template <bool kDelta, int kDk>
__global__ void __launch_bounds__(kPrepareThreads, 3) prepare_diagonal_kernel(ChunkedArgs p) {
  using Shared = DiagonalShared<kDelta, kDk>;
  constexpr int kPitch = Shared::kPitch, kGammaPitch = Shared::kGammaPitch;
  constexpr float kLog2e = 1.44269504f;
  extern __shared__ __align__(128) char shared[];
  char* const K = shared + Shared::kK;
  char* const Q = shared + Shared::kQ;
  float* const beta = reinterpret_cast<float*>(shared + Shared::kBeta);
  float* const gamma = reinterpret_cast<float*>(shared + Shared::kGamma);  // · log₂ e
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const RowChunk chunk = p.table.chunks[blockIdx.x];
  const int rows = chunk.end - chunk.begin;
  const int h = static_cast<int>(blockIdx.y), kh = h / p.group;
  const int64_t at = static_cast<int64_t>(chunk.begin) * p.Hv + h;

  const auto copy = [&](const char* tile, const __nv_bfloat16* from, int64_t stride) {
    copy_rows<8, kDk / 64>(from, stride, rows, 8, 128, [=](int row, int piece) {
      return shared_address(tile) + row * kDk * 2 + (swizzle_128(row, piece) << 4);
    });
  };
  copy(K, p.k.row(chunk.begin, kh), p.k.stride_r);
  copy(Q, p.q.row(chunk.begin, kh), p.q.stride_r);
  copy_rows<kDk / 4>(reinterpret_cast<const __nv_bfloat16*>(p.g.row(chunk.begin, h)), 2 * p.g.stride_r, rows, kDk / 4,
                     0, [=](int row, int piece) { return shared_address(gamma) + row * kGammaPitch * 4 + piece * 16; });
  cp_async_commit();
  if (thread < kChunkRows) beta[thread] = thread >= rows ? 0.0f : p.beta ? p.beta.row(chunk.begin + thread)[h] : 1.0f;
  cp_async_wait<0>();
  __syncthreads();
  if (thread < kDk) {
    float sum = 0;
#pragma unroll 16
    for (int i = 0; i < kChunkRows; ++i) {
      sum += gamma[i * kGammaPitch + thread];
      gamma[i * kGammaPitch + thread] = sum * kLog2e;
    }
    p.decays[(decays_slot(p.table.item_of[chunk.begin], chunk.begin) * p.Hv + h) * kDk + thread] = decay_factor(sum);
  }
  __syncthreads();

  float triangle[8], kk[7][4], qk[7][4];
  multiply_triangles<kDelta, kDk>(triangle, K, Q, gamma);
  multiply_tiles<kDelta, kDk>(kk, qk, K, Q, gamma, rows);
  __syncthreads();

  // K and Q decayed from the chunk's begin, and K decayed to its end: a thread eight key dims at a time, always the
  // same ones.
  {
    constexpr int kPieces = kDk / 8;
    const int piece = thread % kPieces;
    float end[8];
    load_8(end, gamma + (kChunkRows - 1) * kGammaPitch + 8 * piece);
#pragma unroll 1
    for (int row = thread / kPieces; row < kChunkRows; row += kPrepareThreads / kPieces) {
      const int place = row * kDk * 2 + (swizzle_128(row, piece) << 4);
      uint4* const k_at = reinterpret_cast<uint4*>(K + place);
      uint4* const q_at = reinterpret_cast<uint4*>(Q + place);
      const uint4 k_row = *k_at, q_row = *q_at;
      const uint32_t k_pairs[4] = {k_row.x, k_row.y, k_row.z, k_row.w};
      const uint32_t q_pairs[4] = {q_row.x, q_row.y, q_row.z, q_row.w};
      float since[8];
      load_8(since, gamma + row * kGammaPitch + 8 * piece);
      uint32_t k[4], q[4], z[4], z_rest[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 k_of = halves_of(k_pairs[i]), q_of = halves_of(q_pairs[i]);
        const float x0 = exp2_of(since[2 * i]), x1 = exp2_of(since[2 * i + 1]);
        const float z0 = k_of.x * exp2_of(end[2 * i] - since[2 * i]);
        const float z1 = k_of.y * exp2_of(end[2 * i + 1] - since[2 * i + 1]);
        q[i] = pack_bf16(q_of.x * x0, q_of.y * x1);
        if constexpr (kDelta) {
          k[i] = pack_bf16(k_of.x * x0, k_of.y * x1);
          split_bf16(z0, z1, z[i], z_rest[i]);
        } else {
          z[i] = pack_bf16(beta[row] * z0, beta[row] * z1);
        }
      }
      const auto store = [&](__nv_bfloat16* to, const uint32_t(&x)[4]) {
        if (row < rows)
          *reinterpret_cast<uint4*>(to + (at + row * static_cast<int64_t>(p.Hv)) * kDk + 8 * piece) = {x[0], x[1], x[2],
                                                                                                       x[3]};
      };
      store(p.Q, q);
      if constexpr (kDelta) {
        store(p.K, k);
        *k_at = {z[0], z[1], z[2], z[3]};
        *q_at = {z_rest[0], z_rest[1], z_rest[2], z_rest[3]};
      } else {
        store(p.Z, z);
      }
    }
  }
  __syncthreads();  // γ has been read

  // The other half of the key dims: of each two warps one has the sums of tiles 0, 1 and 6, the other of the others.
  const int half = warp / 2, dims = warp % 2;
  const auto owns = [&](int tile) { return (tile > 1 && tile < 6) == (dims == 1); };
  float4* const sums = reinterpret_cast<float4*>(shared + Shared::kSums) + half * Shared::kTiles * Shared::kKinds * 32;
  float* const triangles = reinterpret_cast<float*>(shared + Shared::kTriangles);  // [2][8 blocks][64]
  const auto place_of = [&](int tile, int kind) -> float4& { return sums[(tile * Shared::kKinds + kind) * 32 + lane]; };
#pragma unroll
  for (int i = 0; i < 7; ++i)
    if (!owns(i)) {
      place_of(i, 0) = {qk[i][0], qk[i][1], qk[i][2], qk[i][3]};
      if constexpr (kDelta) place_of(i, 1) = {kk[i][0], kk[i][1], kk[i][2], kk[i][3]};
    }
#pragma unroll
  for (int i = 0; i < 8; i += 4)
    *reinterpret_cast<float4*>(triangles + (8 * dims + 4 * half) * 64 + 8 * lane + i) = {
        triangle[i], triangle[i + 1], triangle[i + 2], triangle[i + 3]};
  __syncthreads();

  const auto put_pair = [&](int i, int j, float x0, float x1) {  // P's, then A's, (i, j) and (i, j + 1)
    uint32_t x_lead, x_rest;
    split_bf16(x0, x1, x_lead, x_rest);
    const int place = i * kChunkRows * 2 + (swizzle_128(i, j / 8) << 4) + j % 8 * 2;
    *reinterpret_cast<uint32_t*>(shared + Shared::kLead + place) = x_lead;
    if constexpr (kDelta) *reinterpret_cast<uint32_t*>(shared + Shared::kRest + place) = x_rest;
  };
  const auto put_P = [&](int i, int j, float x0, float x1) {  // of add M, with β and scale
    if constexpr (!kDelta) x0 *= p.scale * beta[j], x1 *= p.scale * beta[j + 1];
    put_pair(i, j, x0, x1);
  };
  // Rows and columns of a tile's first eight rows, of the others.
  const auto row_of = [&](int tile, int part) {
    return g + (tile < 4   ? 32 + 16 * half + 8 * part
                : tile < 6 ? 32 * half + 16 + 8 * part
                           : 32 * half + 8 + 16 * part);
  };
  const auto column_of = [&](int tile, int part) {
    return 2 * t + (tile < 4 ? 8 * tile : tile < 6 ? 32 * half + 8 * (tile - 4) : 32 * half + 16 * part);
  };
#pragma unroll
  for (int i = 0; i < 7; ++i)
    if (owns(i)) {
      const auto add = [](float(&x)[4], float4 y) { x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w; };
      add(qk[i], place_of(i, 0));
      if constexpr (kDelta) add(kk[i], place_of(i, 1));
#pragma unroll
      for (int part = 0; part < 2; ++part)
        put_P(row_of(i, part), column_of(i, part), qk[i][2 * part], qk[i][2 * part + 1]);
    }
  const int block = thread / 16, a = thread % 16 / 2, b = thread % 2 * 4;  // of a triangle, four numbers
  float of_triangle[4];
  {
    const float4 x = *reinterpret_cast<const float4*>(triangles + block * 64 + 8 * a + b);
    const float4 y = *reinterpret_cast<const float4*>(triangles + (8 + block) * 64 + 8 * a + b);
    of_triangle[0] = x.x + y.x, of_triangle[1] = x.y + y.y, of_triangle[2] = x.z + y.z, of_triangle[3] = x.w + y.w;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      put_P(8 * block + a, 8 * block + b + i, b + i <= a ? of_triangle[i] : 0.0f,
            b + i + 1 <= a ? of_triangle[i + 1] : 0.0f);
      if (block % 2 == 0) put_P(8 * block + a, 8 * block + 8 + b + i, 0, 0);
    }
  }
  __syncthreads();
  if constexpr (!kDelta) {
    for (int e = thread; e < rows * 8; e += kPrepareThreads)
      if (const int row = e / 8, piece = e % 8; piece / 2 <= row / 16)
        *reinterpret_cast<uint4*>(p.M + (at + row * static_cast<int64_t>(p.Hv)) * kChunkRows + 8 * piece) =
            *reinterpret_cast<const uint4*>(shared + Shared::kLead + row * kChunkRows * 2 +
                                            (swizzle_128(row, piece) << 4));
    return;
  }

  float* const matrix = reinterpret_cast<float*>(shared + Shared::kMatrix);
  const uint32_t lead = shared_address(shared) + Shared::kLead, rest = shared_address(shared) + Shared::kRest;
  const TileLane<kDk> lanes;
  const TileLane<kChunkRows> square;
  uint32_t p_lead[4][4], p_rest[4][4];
#pragma unroll
  for (int l = 0; l < 4; ++l)
    if (l <= warp) {
      square.m_by_k(p_lead[l], lead, warp, l);
      square.m_by_k(p_rest[l], rest, warp, l);
    }
#pragma unroll
  for (int i = 0; i < 7; ++i)
    if (owns(i))
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int row = row_of(i, part);
        *reinterpret_cast<float2*>(matrix + row * kPitch + column_of(i, part)) = {beta[row] * kk[i][2 * part],
                                                                                  beta[row] * kk[i][2 * part + 1]};
      }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (const int row = 8 * block + b + i; b + i > a) matrix[row * kPitch + 8 * block + a] = beta[row] * of_triangle[i];
  invert<kPitch>(matrix, rows,
                 [&](int i, int j, float x0, float x1) { put_pair(i, j, x0 * beta[j], x1 * beta[j + 1]); });

  if (16 * warp < rows) {
    float m[8][4] = {};
#pragma unroll
    for (int l = 0; l < 4; ++l)
      if (l <= warp) multiply_block_of_A(m, p_lead[l], p_rest[l], square, lead, rest, l);
    RowsOut<8> out(reinterpret_cast<char*>(matrix) + warp * 16 * kChunkRows * 2);
#pragma unroll
    for (int n = 0; n < 8; ++n)
      if (n / 2 <= warp)
        out.put(n, {pack_bf16(p.scale * m[n][0], p.scale * m[n][1]), pack_bf16(p.scale * m[n][2], p.scale * m[n][3])});
    out.write(p.M + (at + 16 * warp * static_cast<int64_t>(p.Hv)) * kChunkRows, p.Hv * kChunkRows, rows - 16 * warp,
              2 * (warp + 1));
  }

  // Z: of each warp a quarter of its columns, so that all have as much to do.
  constexpr int kWide = kDk / 64;  // times 16 columns
  float z[4][2 * kWide][4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (16 * i < rows) {
      uint32_t k_lead[kWide][4], k_rest[kWide][4];
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        lanes.k_by_n(k_lead[j], shared_address(K), i, warp * kWide + j);
        lanes.k_by_n(k_rest[j], shared_address(Q), i, warp * kWide + j);
      }
#pragma unroll
      for (int r = 0; r <= i; ++r) {
        uint32_t a_lead[4], a_rest[4];
        square.k_by_m(a_lead, lead, i, r);
        square.k_by_m(a_rest, rest, i, r);
#pragma unroll
        for (int j = 0; j < kWide; ++j)
#pragma unroll
          for (int n = 0; n < 2; ++n)
            mma_split_bf16(z[r][2 * j + n], a_lead, a_rest, k_lead[j][2 * n], k_lead[j][2 * n + 1], k_rest[j][2 * n],
                           k_rest[j][2 * n + 1]);
      }
    }
  __syncwarp();
  // By way of its right side, whose columns here no other warp reads.
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int n = 0; n < 2 * kWide; ++n)
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int row = 16 * r + g + 8 * part;
        *reinterpret_cast<uint32_t*>(K + row * kDk * 2 + (swizzle_128(row, warp * 2 * kWide + n) << 4) + 4 * t) =
            pack_bf16(z[r][n][2 * part], z[r][n][2 * part + 1]);
      }
  __syncwarp();
  constexpr int kPieces = 2 * kWide;
  const int piece = warp * kPieces + lane % kPieces;
  for (int row = lane / kPieces; row < rows; row += 32 / kPieces)
    *reinterpret_cast<uint4*>(p.Z + (at + row * static_cast<int64_t>(p.Hv)) * kDk + 8 * piece) =
        *reinterpret_cast<const uint4*>(K + row * kDk * 2 + (swizzle_128(row, piece) << 4));
}

}  // namespace hypic::cuda
