// M and Z of every chunk under the delta rule with decay none or scalar: see chunked.cuh.
//
// A warpgroup makes those of a chunk and a key head. K Kᵀ and Q Kᵀ are made once for the key head's value heads and
// split into two bf16 once; L' of a head differs in β alone. A = (I + L')⁻¹ of two heads at a time: a lane has a column
// of a 16 × 16 on the diagonal, by substitution in float32; what lies below them, of 32 × 32 and of 64 × 64, is
// −A₂₂ L'₂₁ A₁₁, a warp a block. All of this is held transposed: then L' is B as it is, and what it leaves is A of the
// next product as it is. Aᵀ, as a sum of two bf16, is K-major for M = (Q Kᵀ) A and for Z = Aᵀ K alike.
#pragma once

#include "kernels/linear_attention/chunked_prepare.cuh"

namespace hypic::cuda {

inline constexpr int kPrepareSlots = 2;   // value heads whose A are made at once
inline constexpr int kPrepareGroups = 3;  // warpgroups of an SM

// Shared memory of a warpgroup. K and Q in parts of 64 key dims, [64][64]. Where Q was, P comes to lie; where the A of
// a slot was that has been multiplied, M and Z on their way out.
template <int kDk>
struct PrepareDeltaShared {
  static constexpr int kPart = kChunkRows * 128, kTile = kDk / 64 * kPart;
  static constexpr int kHalf = kChunkRows * kChunkRows * 2, kSlot = 2 * kHalf;  // a leading, then a remaining part
  static constexpr int kK = 0, kQ = kTile, kP = kQ, kA = kP + kSlot;
  static constexpr int kBlock = 16 * 16 * 2, kBlocks = 6;  // of K Kᵀ, below the diagonal
  static constexpr int kLead = kA + kPrepareSlots * kSlot, kRest = kLead + kBlocks * kBlock;
  static constexpr int kGates = kRest + kBlocks * kBlock;  // β, then γ, of each slot
  static constexpr int kBytes = kGates + kPrepareSlots * 2 * kChunkRows * 4;
  static constexpr int kDiagonalPitch = 20;  // floats: eight rows by four pairs touch every bank
  static_assert(kTile <= kSlot && kBytes % 1024 == 0 && kPrepareGroups * (kBytes + 1024) <= 228 * 1024);
};

// 16 bytes of a block of 16 × 16, the half `half` of a row; eight rows touch every bank once.
__device__ inline int block_at(int row, int half) { return row * 32 + ((half ^ (row >> 2 & 1)) << 4); }

__device__ inline void stmatrix_x4(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// c = a · b (kFirst), or c += a · b, 64 × 64 by 16: a in shared memory, K-major, b as well, K-major or (kDown) N-major.
template <bool kFirst, bool kDown>
__device__ inline void wgmma_shared(float (&c)[8][4], uint64_t a, uint64_t b) {
#define HYPIC_C4(as, i) as(c[i][0]), as(c[i][1]), as(c[i][2]), as(c[i][3])
#define HYPIC_C(as)                                                                                     \
  HYPIC_C4(as, 0), HYPIC_C4(as, 1), HYPIC_C4(as, 2), HYPIC_C4(as, 3), HYPIC_C4(as, 4), HYPIC_C4(as, 5), \
      HYPIC_C4(as, 6), HYPIC_C4(as, 7)
#define HYPIC_WGMMA(add, as)                                                                        \
  asm volatile("{.reg .pred add; setp.ne.b32 add, " add                                             \
               ", 0;\n"                                                                             \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                              \
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "            \
               " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " \
               "%32, %33, add, 1, 1, 0, %34;}"                                                      \
               : HYPIC_C(as)                                                                        \
               : "l"(a), "l"(b), "n"(kDown ? 1 : 0))
  if constexpr (kFirst)
    HYPIC_WGMMA("0", "=f");
  else
    HYPIC_WGMMA("1", "+f");
#undef HYPIC_WGMMA
#undef HYPIC_C
#undef HYPIC_C4
}

__device__ inline float exp2_approximately(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A warpgroup, whose warp w has rows 16 w … 16 w + 15 of all products with wgmma.
template <int kDk, int kGroups>
class PrepareDelta {
 public:
  __device__ PrepareDelta(const ChunkedArgs& p, char* shared, int barrier)
      : p_(p), shared_(shared), base_(shared_address(shared)), barrier_(barrier) {}

  // Value heads [first, first + heads) of one key head.
  __device__ void run(RowChunk chunk, int first, int heads) {
    const int rows = chunk.end - chunk.begin, kh = first / p_.group;
    copy(Shared::kK, p_.k.row(chunk.begin, kh), p_.k.stride_r, rows);
    copy(Shared::kQ, p_.q.row(chunk.begin, kh), p_.q.stride_r, rows);
    cp_async_commit();
    const auto make = [&](int h) {
      if (warp_ < kPrepareSlots && h + warp_ < first + heads)
        make_gates(p_, chunk, h + warp_, beta_of(warp_), beta_of(warp_) + kChunkRows);
    };
    make(first);
    cp_async_wait<0>();
    shared_fence();
    sync();

    multiply_keys();
    for (int h = first; h < first + heads; h += kPrepareSlots) {
      const int count = min(kPrepareSlots, first + heads - h);
      if (h > first) {
        sync();
        make(h);
        sync();
      }
      solve(count, rows);
      sync();
      const bool has_slot = warp_ / 2 < count;
      if (has_slot) join_pair(warp_ / 2, warp_ % 2, rows);
      sync();
      if (has_slot) join_halves(warp_ / 2, warp_ % 2, rows);
      shared_fence();
      sync();
      for (int slot = 0; slot < count; ++slot) multiply(chunk, h + slot, slot);
    }
  }
  __device__ void sync() const {
    if constexpr (kGroups == 1)
      __syncthreads();
    else
      named_barrier(barrier_, kPrepareThreads);
  }

 private:
  using Shared = PrepareDeltaShared<kDk>;

  __device__ void copy(int tile, const __nv_bfloat16* from, int64_t stride, int rows) const {
    copy_rows<8, kDk / 64>(from, stride, rows, 8, Shared::kPart, [&](int row, int piece) {
      return base_ + tile + row * 128 + (swizzle_128(row, piece) << 4);
    });
  }
  __device__ float* beta_of(int slot) const {
    return reinterpret_cast<float*>(shared_ + Shared::kGates) + slot * 2 * kChunkRows;
  }
  __device__ uint32_t lead_of(int slot) const { return base_ + Shared::kA + slot * Shared::kSlot; }

  // P = scale (Q Kᵀ)_{j ≤ i} and K Kᵀ: blocks below the diagonal to shared memory.
  __device__ void multiply_keys() {
    float kk[8][4], qk[8][4];
    const uint64_t K = wgmma_tile(base_ + Shared::kK), Q = wgmma_tile(base_ + Shared::kQ);
    wgmma_begin();
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m) {
      const int at = m / 4 * Shared::kPart + m % 4 * 32;
      if (m == 0) {
        wgmma_shared<true, false>(kk, K, K);
        wgmma_shared<true, false>(qk, Q, K);
      } else {
        wgmma_shared<false, false>(kk, matrix_at(K, at), matrix_at(K, at));
        wgmma_shared<false, false>(qk, matrix_at(Q, at), matrix_at(K, at));
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_operand(kk);
    wgmma_operand(qk);
    sync();  // all have read Q
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      uint32_t lead[4] = {}, rest[4] = {};
      if (l < warp_) {
        split_A(lead, rest, kk[2 * l], kk[2 * l + 1]);
        const int at = block(warp_, l) + block_at(lane_ % 16, lane_ / 16);
        stmatrix_x4(base_ + Shared::kLead + at, lead);
        stmatrix_x4(base_ + Shared::kRest + at, rest);
      } else if (l == warp_) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            diagonal_[n][c] = kk[2 * l + n][c];
            if (8 * n + 2 * t_ + c % 2 > g_ + c / 2 * 8) qk[2 * l + n][c] = 0;
          }
      }
      if (l <= warp_) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) qk[2 * l + n][c] *= p_.scale;
        split_A(lead, rest, qk[2 * l], qk[2 * l + 1]);
      }
      put(base_ + Shared::kP, warp_, l, lead, rest);
    }
  }
  // Where block (i, j) of K Kᵀ lies among those below the diagonal.
  __device__ static int block(int i, int j) { return (i * (i - 1) / 2 + j) * Shared::kBlock; }

  // This warp's 16 × 16 on the diagonal of A, of the slots side by side: a lane a column. And the zeros left of it in
  // Aᵀ.
  // Where a chunk has no rows any number will do, for K has none either: zeros.
  __device__ void solve(int count, int rows) const {
    constexpr int kPitch = Shared::kDiagonalPitch;
    float* const kk = reinterpret_cast<float*>(shared_ + Shared::kA + Shared::kSlot + Shared::kHalf + warp_ * 16 * 128);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(kk + (g_ + 8 * half) * kPitch + 8 * n + 2 * t_) = {diagonal_[n][2 * half],
                                                                                      diagonal_[n][2 * half + 1]};
    __syncwarp();
    const int slot = lane_ / 16, column = lane_ % 16;
    const float* const beta = beta_of(slot < count ? slot : 0) + 16 * warp_;
    const bool has_rows = 16 * warp_ < rows;
    float a[16];
    if (has_rows)
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < i; j += 4) {
          const float4 x = *reinterpret_cast<const float4*>(kk + i * kPitch + j);
          sum += x.x * a[j];
          if (j + 1 < i) sum += x.y * a[j + 1];
          if (j + 2 < i) sum += x.z * a[j + 2];
          if (j + 3 < i) sum += x.w * a[j + 3];
        }
        a[i] = (i == column ? 1.0f : 0.0f) - beta[i] * sum;
      }
    __syncwarp();
    const int row = 16 * warp_ + column;
    const auto put = [&](uint32_t half, int piece, const uint32_t(&x)[8], int first) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(half + row * 128 + (swizzle_128(row, piece) << 4)),
                   "r"(x[first]), "r"(x[first + 1]), "r"(x[first + 2]), "r"(x[first + 3])
                   : "memory");
    };
    const uint32_t zeros[8] = {};
    for (int of = 0; of < count; ++of)
      for (int piece = slot; piece < 2 * (has_rows ? warp_ : warp_ + 1); piece += 2) {
        put(lead_of(of), piece, zeros, 0);
        put(lead_of(of) + Shared::kHalf, piece, zeros, 0);
      }
    if (slot < count && has_rows) {
      uint32_t lead[8], rest[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) split_bf16(a[2 * i], a[2 * i + 1], lead[i], rest[i]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        put(lead_of(slot), 2 * warp_ + i, lead, 4 * i);
        put(lead_of(slot) + Shared::kHalf, 2 * warp_ + i, rest, 4 * i);
      }
    }
    __syncwarp();
  }

  // w += (L'₂₁ A₁₁)ᵀ, but for β: block (l, j) of A by block (i, l) of K Kᵀ, i > l.
  __device__ void add_W(float (&w)[2][4], int slot, int i, int l, int j) const {
    uint32_t a_lead[4], a_rest[4], b_lead[4], b_rest[4];
    square_.m_by_k(a_lead, lead_of(slot), j, l);
    square_.m_by_k(a_rest, lead_of(slot) + Shared::kHalf, j, l);
    const int at = block(i, l) + block_at(lane_ / 16 * 8 + lane_ % 8, lane_ / 8 % 2);
    ldmatrix_x4(b_lead, base_ + Shared::kLead + at);
    ldmatrix_x4(b_rest, base_ + Shared::kRest + at);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      mma_split_bf16(w[n], a_lead, a_rest, b_lead[2 * n], b_lead[2 * n + 1], b_rest[2 * n], b_rest[2 * n + 1]);
  }
  // −β w, of rows 16 i of L', as what is multiplied next.
  __device__ void finish_W(uint32_t (&lead)[4], uint32_t (&rest)[4], float (&w)[2][4], int slot, int i) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 beta = *reinterpret_cast<const float2*>(beta_of(slot) + 16 * i + 8 * n + 2 * t_);
#pragma unroll
      for (int c = 0; c < 4; ++c) w[n][c] *= c % 2 ? -beta.y : -beta.x;
    }
    split_A(lead, rest, w[0], w[1]);
  }
  // x += (A₂₂ W)ᵀ with block (i, l) of A.
  __device__ void add_X(float (&x)[2][4], const uint32_t (&lead)[4], const uint32_t (&rest)[4], int slot, int i,
                        int l) const {
    uint32_t b_lead[4], b_rest[4];
    square_.k_by_n(b_lead, lead_of(slot), l, i);
    square_.k_by_n(b_rest, lead_of(slot) + Shared::kHalf, l, i);
#pragma unroll
    for (int n = 0; n < 2; ++n)
      mma_split_bf16(x[n], lead, rest, b_lead[2 * n], b_lead[2 * n + 1], b_rest[2 * n], b_rest[2 * n + 1]);
  }
  // The 16 × 16 at row 16 i and column 16 j of a matrix in two parts.
  __device__ void put(uint32_t matrix, int i, int j, const uint32_t (&lead)[4], const uint32_t (&rest)[4]) const {
    const int row = 16 * i + lane_ % 16;
    const uint32_t at = matrix + row * 128 + (swizzle_128(row, 2 * j + lane_ / 16) << 4);
    stmatrix_x4(at, lead);
    stmatrix_x4(at + Shared::kHalf, rest);
  }
  // Block (i, j) of A, transposed in x.
  __device__ void put_X(const float (&x)[2][4], int slot, int i, int j) const {
    uint32_t lead[4], rest[4];
    split_A(lead, rest, x[0], x[1]);
    put(lead_of(slot), j, i, lead, rest);
  }
  // Block (2 q + 1, 2 q).
  __device__ void join_pair(int slot, int q, int rows) const {
    float w[2][4] = {}, x[2][4] = {};
    if (16 * (2 * q + 1) >= rows) return put_X(x, slot, 2 * q + 1, 2 * q);
    uint32_t lead[4], rest[4];
    add_W(w, slot, 2 * q + 1, 2 * q, 2 * q);
    finish_W(lead, rest, w, slot, 2 * q + 1);
    add_X(x, lead, rest, slot, 2 * q + 1, 2 * q + 1);
    put_X(x, slot, 2 * q + 1, 2 * q);
  }
  // Blocks (2, j) and (3, j).
  __device__ void join_halves(int slot, int j, int rows) const {
    float w[2][2][4] = {}, x[2][2][4] = {};
    uint32_t lead[2][4], rest[2][4];
    if (32 >= rows) {
#pragma unroll
      for (int i = 0; i < 2; ++i) put_X(x[i], slot, 2 + i, j);
      return;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int l = 0; l < 2; ++l)
        if (l >= j) add_W(w[i], slot, 2 + i, l, j);
#pragma unroll
    for (int i = 0; i < 2; ++i) finish_W(lead[i], rest[i], w[i], slot, 2 + i);
    add_X(x[0], lead[0], rest[0], slot, 2, 2);
    add_X(x[1], lead[0], rest[0], slot, 3, 2);
    add_X(x[1], lead[1], rest[1], slot, 3, 3);
#pragma unroll
    for (int i = 0; i < 2; ++i) put_X(x[i], slot, 2 + i, j);
  }

  // M and Z of head h, whose A is in `slot`.
  __device__ void multiply(RowChunk chunk, int h, int slot) {
    const uint64_t lead = wgmma_tile(lead_of(slot)), rest = matrix_at(lead, Shared::kHalf);
    const uint64_t P_lead = wgmma_tile(base_ + Shared::kP), P_rest = matrix_at(P_lead, Shared::kHalf);
    const uint64_t K = matrix_in_shared(base_ + Shared::kK, Shared::kPart, 1024);
    float m[8][4], z[kDk / 64][8][4];
    wgmma_begin();
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      if (l == 0)
        wgmma_shared<true, false>(m, P_lead, lead);
      else
        wgmma_shared<false, false>(m, matrix_at(P_lead, 32 * l), matrix_at(lead, 32 * l));
      wgmma_shared<false, false>(m, matrix_at(P_lead, 32 * l), matrix_at(rest, 32 * l));
      wgmma_shared<false, false>(m, matrix_at(P_rest, 32 * l), matrix_at(lead, 32 * l));
    }
    wgmma_commit();
#pragma unroll
    for (int b = 0; b < 4; ++b)
#pragma unroll
      for (int part = 0; part < kDk / 64; ++part) {
        const uint64_t rows = matrix_at(K, part * Shared::kPart + 2048 * b);
        if (b == 0)
          wgmma_shared<true, true>(z[part], lead, rows);
        else
          wgmma_shared<false, true>(z[part], matrix_at(lead, 32 * b), rows);
        wgmma_shared<false, true>(z[part], matrix_at(rest, 32 * b), rows);
      }
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_operand(m);
    uint32_t M[8][2];
    decay(M, m, beta_of(slot) + kChunkRows);
    wgmma_wait<0>();
    wgmma_operand(z);
    sync();  // all have read A: M and Z may lie there

    char* const part = shared_ + Shared::kA + slot * Shared::kSlot + warp_ * (Shared::kSlot / 4);
    const int row = lane_ % 16, rows = chunk.end - chunk.begin - 16 * warp_;
    if (rows <= 0) return;
    const int64_t at = (chunk.begin + 16 * warp_) * static_cast<int64_t>(p_.Hv) + h;
    const auto put_rows = [&](int pitch, int n, const uint32_t(&x)[4]) {
      stmatrix_x4(shared_address(part) + row * pitch + (swizzle_128(row, n + lane_ / 16) << 4), x);
    };
#pragma unroll
    for (int n = 0; n < 8; n += 2)
      if (n / 2 <= warp_) put_rows(128, n, {M[n][0], M[n][1], M[n + 1][0], M[n + 1][1]});
    write_rows<8>(p_.M + at * kChunkRows, int64_t{p_.Hv} * kChunkRows, part, rows, 2 * (warp_ + 1));
#pragma unroll
    for (int n = 0; n < kDk / 8; n += 2) {
      uint32_t x[4];
      as_A(x, z[n / 8][n % 8], z[n / 8][n % 8 + 1]);
      put_rows(kDk * 2, n, x);
    }
    write_rows<kDk / 8>(p_.Z + at * kDk, int64_t{p_.Hv} * kDk, part, rows, kDk / 8);
  }
  // The warp's rows, 16 or the first `rows` of them, of kPieces 16-byte pieces, of which the first `pieces` count.
  template <int kPieces>
  __device__ void write_rows(__nv_bfloat16* to, int64_t stride, const char* part, int rows, int pieces) const {
    constexpr int kAtATime = 32 / kPieces;
    const int first = lane_ / kPieces, piece = lane_ % kPieces;
    __syncwarp();
    if (piece < pieces) {
      to += first * stride + piece * 8;
      const auto write = [&](int row) {
        *reinterpret_cast<uint4*>(to) =
            *reinterpret_cast<const uint4*>(part + row * kPieces * 16 + (swizzle_128(row, piece) << 4));
        to += kAtATime * stride;
      };
      if (rows >= 16) {
#pragma unroll
        for (int i = 0; i < 16; i += kAtATime) write(first + i);
      } else {
#pragma unroll 1
        for (int row = first; row < rows; row += kAtATime) write(row);
      }
    }
    __syncwarp();
  }
  // Right of the diagonal m is zero, and stays so.
  __device__ void decay(uint32_t (&to)[8][2], const float (&m)[8][4], const float* gamma) const {
    constexpr float kLog2e = 1.44269504f;
    const float since[2] = {gamma[16 * warp_ + g_] * kLog2e, gamma[16 * warp_ + g_ + 8] * kLog2e};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (n / 2 > warp_) continue;
      const float2 of = *reinterpret_cast<const float2*>(gamma + 8 * n + 2 * t_);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto factor = [&](float x) { return exp2_approximately(fminf(fmaf(x, -kLog2e, since[half]), 126.0f)); };
        to[n][half] = pack_bf16(m[n][2 * half] * factor(of.x), m[n][2 * half + 1] * factor(of.y));
      }
    }
  }

  const ChunkedArgs& p_;
  char* const shared_;
  const uint32_t base_;
  const int barrier_;
  const int warp_ = threadIdx.x % kPrepareThreads / 32, lane_ = threadIdx.x % 32, g_ = lane_ / 4, t_ = lane_ % 4;
  const TileLane<kChunkRows> square_;
  float diagonal_[2][4];  // of K Kᵀ, this warp's 16 × 16
};

// A word becomes 1, after all that this thread has written or seen written.
__device__ inline void store_release(int32_t* p) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(1) : "memory");
}

// Units, each `heads` value heads of one key head in a chunk, chunk after chunk: warpgroup after warpgroup takes one.
// kGroups 1: several blocks share a multiprocessor. kPrepareGroups: a block has one to itself, beside `walk`, which may
// start when all blocks have; it learns by p.ready which chunks are there, so a unit has all value heads of a key head.
template <int kDk, int kGroups>
__global__ void __launch_bounds__(kGroups* kPrepareThreads, kPrepareGroups / kGroups)
    prepare_delta_kernel(ChunkedArgs p, int heads, int units) {
  extern __shared__ __align__(1024) char shared[];
  const int group = kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / kPrepareThreads, of_chunk = p.Hv / heads;
  if constexpr (kGroups > 1) cudaTriggerProgrammaticLaunchCompletion();
  PrepareDelta<kDk, kGroups> prepare(p, shared + group * PrepareDeltaShared<kDk>::kBytes, 1 + group);
  for (int unit = static_cast<int>(blockIdx.x) * kGroups + group; unit < units;
       unit += static_cast<int>(gridDim.x) * kGroups) {
    const RowChunk chunk = p.table.chunks[unit / of_chunk];
    prepare.run(chunk, unit % of_chunk * heads, heads);
    prepare.sync();  // what lies in shared memory has been read, all has been written
    if constexpr (kGroups > 1)
      if (threadIdx.x % kPrepareThreads == 0) {
        const int64_t slot = decays_slot(p.table.item_of[chunk.begin], chunk.begin);
        __threadfence();
        store_release(p.ready + slot * of_chunk + unit % of_chunk);
      }
  }
}

}  // namespace hypic::cuda
