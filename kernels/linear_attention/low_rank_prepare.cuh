// What `walk` needs of every chunk: see low_rank.cuh.
//
// Two groups of four warps: one has the rows of B (L, G, then Z_a and Z_k), one those of Q (P_a, P_k, then M and Q̂).
// All products are of sums of two bf16 on the tensor cores, for L, G and P cancel in what is left.
//
// exp(γ_i − γ_j) is a product of a number of i and one of j, each relative to half of γ_C, wherever no key dim decays
// by more than kMaxDecay within the chunk: both factors are far from the ends of float32, and what has overflowed lies
// above the diagonal and is not read. The decays of a chunk then are a factor of each key dim, which leaves the products
// and is multiplied to what they have made. A chunk with a harder gate has L, G and P from an exponential for each pair
// of rows and key dim; all else is as before, with decays relative to the chunk's begin or end, which are ≤ 1.
//
// Where a is k (kJoined), G = L, so that P_k − M G = M and Z_k = Z_a: half of the products are left.
#pragma once

#include "kernels/linear_attention/chunked_diagonal.cuh"
#include "kernels/linear_attention/low_rank_args.cuh"

namespace hypic::cuda {

inline constexpr int kLowRankThreads = 256;
inline constexpr float kMaxDecay = 120;  // exp(±60) times a number, its rest as a bf16, and a sum of both are normal

// Shared memory: of each 64 key dims the leading parts of A and K, which together are one operand, their remaining
// parts, then those of B and Q; γ, where later L and the decayed Z_a lie, then G; (I + L)⁻¹.
template <int kDk>
struct LowRankShared {
  static constexpr int kParts = kDk / 64, kPart = kChunkRows * 128;
  static constexpr int kA = 0, kK = kPart, kAKRest = 2 * kPart, kStep = 4 * kPart;  // from 64 key dims to the next
  static constexpr int kB = kParts * kStep, kQ = kB + kPart;
  static constexpr int kGamma = 2 * kParts * kStep;  // [64][kDk] · log₂ e
  static constexpr int kPitch = 64;
  static constexpr int kMatrix = kGamma, kG = kMatrix + kChunkRows * kPitch * 4, kInverse = kG + 2 * kPart;
  static constexpr int kScale = kInverse + 2 * kPart;  // exp of half of γ_C, which what is relative to it lacks
  static constexpr int kBeta = kScale + kDk * 4;
  static constexpr int kBytes = kBeta + kChunkRows * 4;
  static constexpr int kBlocks = kDk == 64 ? 2 : 1;  // of an SM
  static_assert(kInverse >= kGamma + kChunkRows * kDk * 4 && kDk * 64 * 2 <= kChunkRows * kPitch * 4);
  static_assert(kBlocks * (kBytes + 1024) <= 228 * 1024);
};

// From shared to global memory, by one thread; bulk_stored waits until shared memory has been read.
__device__ inline void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_stored() {
  asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 0;" ::: "memory");
}

// c += (lead + rest)(b + b_rest) but for rest · b_rest, 64 × kN by 64: b's and its rest's rows are the inner dims.
template <int kN>
__device__ inline void multiply_down(float (&c)[kN / 8][4], const uint32_t (&lead)[4][4], const uint32_t (&rest)[4][4],
                                     uint64_t b, uint64_t b_rest) {
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    wgmma_down<kN>(c, lead[m], matrix_at(b, m * 2048));
    wgmma_down<kN>(c, lead[m], matrix_at(b_rest, m * 2048));
    wgmma_down<kN>(c, rest[m], matrix_at(b, m * 2048));
  }
}

// Accumulators of 64 × 64, with this sign, as A.
__device__ inline void split_square(uint32_t (&lead)[4][4], uint32_t (&rest)[4][4], const float (&c)[8][4],
                                    float sign) {
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const float(&x)[4] = c[2 * m];
    const float(&y)[4] = c[2 * m + 1];
    const float left[4] = {sign * x[0], sign * x[1], sign * x[2], sign * x[3]};
    const float right[4] = {sign * y[0], sign * y[1], sign * y[2], sign * y[3]};
    split_A(lead[m], rest[m], left, right);
  }
}

// Eight of 16-byte pieces' numbers by eight decays, times `factor`, as pairs of bf16 and what those lack.
__device__ inline void decay_piece(uint4& lead, uint4& rest, uint4 row, const float (&decays)[8], float factor = 1) {
  const uint32_t pairs[4] = {row.x, row.y, row.z, row.w};
  uint32_t l[4], r[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = halves_of(pairs[i]);
    split_bf16(x.x * decays[2 * i] * factor, x.y * decays[2 * i + 1] * factor, l[i], r[i]);
  }
  lead = {l[0], l[1], l[2], l[3]};
  rest = {r[0], r[1], r[2], r[3]};
}

// Block x: chunk; y: value head. Leaves p.tiles.
template <int kDk, bool kJoined>
__global__ void __launch_bounds__(kLowRankThreads, LowRankShared<kDk>::kBlocks) prepare_low_rank_kernel(LowRankArgs p) {
  using Shared = LowRankShared<kDk>;
  using Tile = LowRankTile<kDk>;
  constexpr int kPart = Shared::kPart, kParts = Shared::kParts, kStep = Shared::kStep, kAKRest = Shared::kAKRest;
  constexpr float kLog2e = 1.44269504f;
  extern __shared__ __align__(1024) char low_rank_shared[];
  char* const shared = low_rank_shared;
  const uint32_t base = shared_address(shared);
  float* const gamma = reinterpret_cast<float*>(shared + Shared::kGamma);
  float* const matrix = reinterpret_cast<float*>(shared + Shared::kMatrix);
  float* const scale = reinterpret_cast<float*>(shared + Shared::kScale);
  float* const beta = reinterpret_cast<float*>(shared + Shared::kBeta);
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128, warp = thread % 128 / 32;
  const int lane = thread % 32, g = lane / 4, t = lane % 4;
  const RowChunk chunk = p.table.chunks[blockIdx.x];
  const int rows = chunk.end - chunk.begin;
  const int h = static_cast<int>(blockIdx.y), kh = h / p.group;
  char* const tile = tile_of<kDk>(p, static_cast<int32_t>(blockIdx.x), h);

  // A thread has one piece of eight key dims, of every kRows-th row.
  constexpr int kPieces = kDk / 8, kRows = kLowRankThreads / kPieces;
  const int piece = thread % kPieces;
  const auto place = [&](int row) { return piece / 8 * kStep + row * 128 + (swizzle_128(row, piece % 8) << 4); };
  const auto copy = [&](int to, const __nv_bfloat16* from, int64_t stride) {
    for (int row = thread / kPieces; row < kChunkRows; row += kRows)
      cp_async_16(base + to + place(row), from + (row < rows ? row : 0) * stride + 8 * piece, row < rows);
  };
  const auto copy_key = [&](int to, const View<__nv_bfloat16>& own) {
    if (own)
      copy(to, own.row(chunk.begin, h), own.stride_r);
    else
      copy(to, p.k.row(chunk.begin, kh), p.k.stride_r);
  };
  copy_key(Shared::kA, p.a);
  if constexpr (!kJoined) copy(Shared::kK, p.k.row(chunk.begin, kh), p.k.stride_r);
  copy_key(Shared::kB, p.b);
  copy(Shared::kQ, p.q.row(chunk.begin, kh), p.q.stride_r);
  if (!p.scalar)
    for (int e = thread; e < kChunkRows * kDk / 4; e += kLowRankThreads) {
      const int row = e / (kDk / 4), dim = e % (kDk / 4) * 4;
      cp_async_16(base + Shared::kGamma + e * 16, p.g.row(chunk.begin + (row < rows ? row : 0), h) + dim, row < rows);
    }
  cp_async_commit();
  if (thread < kChunkRows) beta[thread] = thread >= rows ? 0.0f : p.beta ? p.beta.row(chunk.begin + thread)[h] : 1.0f;
  if (p.scalar)
    for (int e = thread; e < kChunkRows * kDk; e += kLowRankThreads)
      gamma[e] = e / kDk < rows ? p.g.row(chunk.begin + e / kDk)[h] : 0.0f;
  cp_async_wait<0>();
  __syncthreads();

  // γ, of each key dim in so many runs of rows, a thread each.
  constexpr int kRuns = kLowRankThreads / kDk, kRun = kChunkRows / kRuns;
  bool hard;
  {
    float* const sums = reinterpret_cast<float*>(shared + Shared::kInverse);  // [kRuns][kDk]
    const int dim = thread % kDk, run = thread / kDk;
    float* const own = gamma + run * kRun * kDk + dim;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kRun; ++i) sum += own[i * kDk];
    sums[run * kDk + dim] = sum;
    __syncthreads();
    float before = 0, end = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      if (i < run) before += sums[i * kDk + dim];
      end += sums[i * kDk + dim];
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      before += own[i * kDk];
      own[i * kDk] = before * kLog2e;
    }
    hard = __syncthreads_or(end < -kMaxDecay);
    if (run == 0) {
      scale[dim] = hard ? 1.0f : expf(0.5f * end);
      reinterpret_cast<float*>(tile + Tile::kDecays)[dim] = decay_factor(end);
    }
  }

  constexpr int kProducts = kJoined ? 8 : 16;
  float products[kProducts][4];  // of rows of B or Q: with A, then with K
  const auto clear = [&] {
#pragma unroll
    for (int n = 0; n < kProducts; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) products[n][c] = 0;
  };
  if (hard) {
    clear();
    const char* const X = shared + (group == 0 ? Shared::kB : Shared::kQ);
    const int row = 16 * warp + g;
    const auto pair_at = [&](const char* of, int i, int dim) {
      return halves_of(*reinterpret_cast<const uint32_t*>(of + dim / 64 * kStep + i * 128 +
                                                          (swizzle_128(i, dim % 64 / 8) << 4) + dim % 8 * 2));
    };
    const auto gamma_at = [&](int i, int dim) {
      return i < 0 ? float2{0, 0} : *reinterpret_cast<const float2*>(gamma + i * kDk + dim);
    };
    const int earlier = group == 0 && p.before ? 1 : 0;
#pragma unroll 1
    for (int dim = 0; dim < kDk; dim += 2) {
      const float2 x[2] = {pair_at(X, row, dim), pair_at(X, row + 8, dim)};
      const float2 now[2] = {gamma_at(row - earlier, dim), gamma_at(row + 8 - earlier, dim)};
#pragma unroll
      for (int n = 0; n < 8; ++n)
        if (n / 2 <= warp)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int j = 8 * n + 2 * t + c;
            const float2 since = gamma_at(j, dim), a = pair_at(shared + Shared::kA, j, dim);
            const float2 k = kJoined ? a : pair_at(shared + Shared::kK, j, dim);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const float x0 = x[half].x * exp2_of(now[half].x - since.x);
              const float x1 = x[half].y * exp2_of(now[half].y - since.y);
              products[n][2 * half + c] += x0 * a.x + x1 * a.y;
              if constexpr (!kJoined) products[8 + n][2 * half + c] += x0 * k.x + x1 * k.y;
            }
          }
    }
    if (group == 0 && !p.b)
#pragma unroll
      for (int n = 0; n < kProducts; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) products[n][c] *= beta[row + c / 2 * 8];
    __syncthreads();  // what was multiplied has been read
  }

  // A, K, B and Q with their decays, in place; B from the chunk's begin for `walk`.
  {
    float from[8], to[8], lacking[8];
    load_8(to, gamma + (kChunkRows - 1) * kDk + 8 * piece);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      from[i] = hard ? 0.0f : 0.5f * to[i];
      to[i] = hard ? to[i] : from[i];
      lacking[i] = exp2_of(from[i]);
    }
#pragma unroll 1
    for (int row = thread / kPieces; row < kChunkRows; row += kRows) {
      char* const at = shared + place(row);
      float now[8], decays[8];
      load_8(now, gamma + row * kDk + 8 * piece);
      const auto put = [&](int of, float factor = 1) {
        uint4 lead, rest;
        uint4* const x = reinterpret_cast<uint4*>(at + of);
        decay_piece(lead, rest, *x, decays, factor);
        *x = lead;
        *reinterpret_cast<uint4*>(at + of + kAKRest) = rest;
      };
#pragma unroll
      for (int i = 0; i < 8; ++i) decays[i] = exp2_of(to[i] - now[i]);
      put(Shared::kA);
      if constexpr (!kJoined) put(Shared::kK);
#pragma unroll
      for (int i = 0; i < 8; ++i) decays[i] = exp2_of(now[i] - from[i]);
      put(Shared::kQ);
      if (p.before) {
        if (row > 0) load_8(now, gamma + (row - 1) * kDk + 8 * piece);
#pragma unroll
        for (int i = 0; i < 8; ++i) decays[i] = exp2_of((row > 0 ? now[i] : 0.0f) - from[i]);
      }
      const float factor = p.b ? 1.0f : beta[row];
      uint4 of_walk, unused;
      float whole[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) whole[i] = decays[i] * lacking[i];
      decay_piece(of_walk, unused, *reinterpret_cast<const uint4*>(at + Shared::kB), whole, factor);
      put(Shared::kB, factor);
      *reinterpret_cast<uint4*>(tile + Tile::kB + piece / 8 * Tile::kBQPart + row * 128 +
                                (swizzle_128(row, piece % 8) << 4)) = of_walk;
    }
    // Nothing right of the diagonal's 16 × 16 is written of the inverse.
    for (int e = thread; e < kChunkRows * 8; e += kLowRankThreads)
      if (const int row = e / 8, chunk_of = e % 8; chunk_of / 2 > row / 16) {
        const int to = Shared::kInverse + row * 128 + (swizzle_128(row, chunk_of) << 4);
        *reinterpret_cast<uint4*>(shared + to) = *reinterpret_cast<uint4*>(shared + to + kPart) = {};
      }
  }
  shared_fence();
  __syncthreads();

  const TileLane<kChunkRows> lanes;
  uint32_t lead[4][4], rest[4][4];
  if (!hard) {
    clear();
    const uint32_t X = base + (group == 0 ? Shared::kB : Shared::kQ);
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        lanes.m_by_k(lead[m], X + part * kStep, warp, m);
        lanes.m_by_k(rest[m], X + part * kStep + kAKRest, warp, m);
      }
      const uint64_t AK = wgmma_tile(base + Shared::kA + part * kStep);
      wgmma_operand(lead);
      wgmma_operand(rest);
      wgmma_operand(products);
      wgmma_begin();
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        wgmma<8 * kProducts>(products, lead[m], matrix_at(AK, 32 * m), true);
        wgmma<8 * kProducts>(products, lead[m], matrix_at(AK, 32 * m + kAKRest), true);
        wgmma<8 * kProducts>(products, rest[m], matrix_at(AK, 32 * m), true);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_operand(products);
    }
  }
  __syncthreads();  // γ has been read

  // A pair in a part and its rest, at row i and columns j and j + 1.
  const auto pair_place = [](int i, int j) { return i * 128 + (swizzle_128(i, j / 8) << 4) + j % 8 * 2; };
  const auto put_split = [&](int at, int to_rest, float x0, float x1) {
    uint32_t x_lead, x_rest;
    split_bf16(x0, x1, x_lead, x_rest);
    *reinterpret_cast<uint32_t*>(shared + at) = x_lead;
    *reinterpret_cast<uint32_t*>(shared + at + to_rest) = x_rest;
  };
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * warp + g + 8 * half, j = 8 * n + 2 * t, last = group == 0 ? i - 1 : i;
      float(&own)[4] = products[n];
      float(&with_K)[4] = products[kProducts - 8 + n];
      if (group == 0 && n / 2 <= warp)  // L's part above the diagonal does not count
        *reinterpret_cast<float2*>(matrix + i * Shared::kPitch + j) = {own[2 * half], own[2 * half + 1]};
      if (j > last) own[2 * half] = with_K[2 * half] = 0;
      if (j + 1 > last) own[2 * half + 1] = with_K[2 * half + 1] = 0;
      if (!kJoined && group == 0) put_split(Shared::kG + pair_place(i, j), kPart, with_K[2 * half], with_K[2 * half + 1]);
    }
  invert<Shared::kPitch>(matrix, kChunkRows, [&](int i, int j, float x0, float x1) {
    put_split(Shared::kInverse + pair_place(i, j), kPart, x0, x1);
  });
  shared_fence();
  __syncthreads();

  const auto square = [&](int at) { return matrix_in_shared(base + at, 0, 1024); };
  const auto dims = [&](int at) { return matrix_in_shared(base + at, kStep, 1024); };
  // Of fragments 8 key dims at a time: their place in a tile of A, K, B or Q.
  const auto dims_place = [&](int i, int n) { return n / 8 * kStep + pair_place(i, n % 8 * 8 + 2 * t); };
  const auto restore = [&](int at) {
    const float2 x = halves_of(*reinterpret_cast<const uint32_t*>(shared + at));
    const float2 y = halves_of(*reinterpret_cast<const uint32_t*>(shared + at + kAKRest));
    return float2{x.x + y.x, x.y + y.y};
  };
  const auto scale_at = [&](int n) { return *reinterpret_cast<const float2*>(scale + 8 * n + 2 * t); };
  float x[kDk / 8][4];
#pragma unroll
  for (int n = 0; n < kDk / 8; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) x[n][c] = 0;

  if (group == 0) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      lanes.k_by_m(lead[m], base + Shared::kInverse, m, warp);
      lanes.k_by_m(rest[m], base + Shared::kInverse + kPart, m, warp);
    }
    wgmma_operand(lead);
    wgmma_operand(rest);
    wgmma_operand(x);
    wgmma_begin();
    multiply_down<kDk>(x, lead, rest, dims(Shared::kA), dims(Shared::kA + kAKRest));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_operand(x);
    named_sync<1, 128>();  // A has been read
#pragma unroll
    for (int n = 0; n < kDk / 8; ++n) {
      const float2 by = scale_at(n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 16 * warp + g + 8 * half;
        if constexpr (kJoined)
          *reinterpret_cast<uint32_t*>(shared + Shared::kK + dims_place(i, n)) =
              pack_bf16(beta[i] * by.x * x[n][2 * half], beta[i] * by.y * x[n][2 * half + 1]);
        else
          put_split(Shared::kA + dims_place(i, n), kAKRest, x[n][2 * half], x[n][2 * half + 1]);
        *reinterpret_cast<uint32_t*>(shared + Shared::kMatrix + n / 8 * kPart + pair_place(i, n % 8 * 8 + 2 * t)) =
            pack_bf16(-by.x * x[n][2 * half], -by.y * x[n][2 * half + 1]);
        x[n][2 * half] = x[n][2 * half + 1] = 0;
      }
    }
    if constexpr (!kJoined) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        lanes.k_by_m(lead[m], base + Shared::kG, m, warp);
        lanes.k_by_m(rest[m], base + Shared::kG + kPart, m, warp);
      }
      shared_fence();
      named_sync<1, 128>();
      wgmma_operand(lead);
      wgmma_operand(rest);
      wgmma_operand(x);
      wgmma_begin();
      multiply_down<kDk>(x, lead, rest, dims(Shared::kA), dims(Shared::kA + kAKRest));
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_operand(x);
#pragma unroll
      for (int n = 0; n < kDk / 8; ++n) {
        const float2 by = scale_at(n);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = 16 * warp + g + 8 * half, at = Shared::kK + dims_place(i, n);
          const float2 k = restore(at);
          *reinterpret_cast<uint32_t*>(shared + at) =
              pack_bf16(beta[i] * by.x * (k.x - x[n][2 * half]), beta[i] * by.y * (k.y - x[n][2 * half + 1]));
        }
      }
    }
    shared_fence();
    named_sync<1, 128>();
    if (thread == 0) {
      bulk_store(tile + Tile::kZa, base + Shared::kMatrix, kParts * kPart);
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        bulk_store(tile + Tile::kZk + part * kPart, base + Shared::kK + part * kStep, kPart);
      bulk_stored();
    }
  } else {
    float m[8][4];
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) m[n][c] = 0;
    split_square(lead, rest, reinterpret_cast<const float(&)[8][4]>(products), 1);
    wgmma_operand(lead);
    wgmma_operand(rest);
    wgmma_operand(m);
    wgmma_begin();
    multiply_down<64>(m, lead, rest, square(Shared::kInverse), square(Shared::kInverse + kPart));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_operand(m);
    split_square(lead, rest, m, -1);
    auto& own = kJoined ? m : reinterpret_cast<float(&)[8][4]>(products[kProducts - 8]);  // P_k, then P_k − M G
    wgmma_operand(lead);
    wgmma_operand(rest);
    if constexpr (!kJoined) wgmma_operand(own);
    wgmma_operand(x);
    wgmma_begin();
    if constexpr (!kJoined) multiply_down<64>(own, lead, rest, square(Shared::kG), square(Shared::kG + kPart));
    multiply_down<kDk>(x, lead, rest, dims(Shared::kB), dims(Shared::kB + kAKRest));
    wgmma_commit();
    wgmma_wait<0>();
    if constexpr (!kJoined) wgmma_operand(own);
    wgmma_operand(x);
#pragma unroll
    for (int n = 0; n < kDk / 8; ++n) {
      const float2 by = scale_at(n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = Shared::kQ + dims_place(16 * warp + g + 8 * half, n);
        const float2 q = restore(at);
        *reinterpret_cast<uint32_t*>(shared + at) =
            pack_bf16(by.x * (q.x + x[n][2 * half]), by.y * (q.y + x[n][2 * half + 1]));
      }
    }
    named_sync<2, 128>();  // the rest of Q has been read
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int j = 8 * n + 2 * t;
      const float by[2] = {p.scale * beta[j], p.scale * beta[j + 1]};
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<uint32_t*>(shared + Shared::kQ + kAKRest + pair_place(16 * warp + g + 8 * half, j)) =
            pack_bf16(by[0] * own[n][2 * half], by[1] * own[n][2 * half + 1]);
    }
    shared_fence();
    named_sync<2, 128>();
    if (thread == 128) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        bulk_store(tile + Tile::kQ + part * Tile::kBQPart, base + Shared::kQ + part * kStep, kPart);
      bulk_store(tile + Tile::kM, base + Shared::kQ + kAKRest, kPart);
      bulk_stored();
    }
  }
}

}  // namespace hypic::cuda
