// What the kernels of chunked linear attention are given, and which fragments they read from shared memory.
#pragma once

#include <cfloat>

#include "core/backend.h"
#include "kernels/common/device_table.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/rotation_table.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {

struct ChunkedArgs {
  View<__nv_bfloat16> q, k, v, o;
  View<float> g, beta;               // or empty
  const float* skip;                 // [Hv] or null
  float *state, *log_scale, *T, *U;  // pools: [slots, Hv, …]
  int Hv, group, dv;
  float scale;
  RotationTable rotations;  // of key dims
  DeviceTable table;
  // What `prepare` leaves to `walk`, by rows of the forward; of the delta rule Z as well.
  int64_t rows;
  __nv_bfloat16* M;  // [R, Hv, 64] · scale · decay; nothing right of the diagonal's 16 × 16
  __nv_bfloat16* Z;  // [R, Hv, dk]
  float4* gates;     // [Hv, R]: β, exp(γ), exp(γ_C − γ), γ
  int32_t* ready;  // [decays_slot, Hk] ≠ 0 where `prepare` has left these of a chunk's key head, beside `walk`; or null
  // Where a decay is one a key dim, instead of gates, and Z also of Update::add:
  __nv_bfloat16 *K, *Q;  // [R, Hv, dk], decayed from the chunk's begin; K of the delta rule only
  float* decays;         // [decays_slot, Hv, dk]: decay_factor of a chunk; see decays_of
};

// Of the chunk that begins at row `begin`, of a step that is item `item`: items and their rows rise together.
__host__ __device__ constexpr int64_t decays_slot(int32_t item, int32_t begin) { return item + begin / kChunkRows; }

template <int kDk>
__device__ inline const float* decays_of(const ChunkedArgs& p, int32_t item, int32_t begin, int h) {
  return p.decays + (decays_slot(item, begin) * p.Hv + h) * kDk;
}

// A log decay g ≤ 0 as a number by which float32 numbers decay as by Decaying: the complement expm1(g) ≤ 0 for slow
// ones, else exp(g), which stays > 0. decay_by has no branch.
__device__ inline float decay_factor(float g) { return g > -0.5f ? expm1f(g) : fmaxf(expf(g), FLT_MIN); }
__device__ inline float decay_by(float factor, float x) { return fmaf(factor, x, factor > 0 ? 0.0f : x); }

// A lane's place in the fragments of a bf16 tile in shared memory, rows of kWidth elements under swizzle_128; (i, j)
// is the 16 × 16 at row 16 i and column 16 j.
template <int kWidth>
class TileLane {
 public:
  __device__ TileLane() {
    const uint32_t lane = threadIdx.x % 32, low = lane % 8;
    across_ = {(lane / 16 * 8 + low) * kPitch, lane / 8 % 2 ^ low};
    down_ = {(lane / 8 % 2 * 8 + low) * kPitch, lane / 16 ^ low};
  }
  // B of a tile [n][k]: r[0..1] of the first 8 n, r[2..3] of the others.
  __device__ void n_by_k(uint32_t (&r)[4], uint32_t tile, int i, int j) const {
    ldmatrix_x4(r, at(across_, tile, i, j));
  }
  // The same of [k][n].
  __device__ void k_by_n(uint32_t (&r)[4], uint32_t tile, int i, int j) const {
    ldmatrix_x4_trans(r, at(down_, tile, i, j));
  }
  // A of [m][k] and of [k][m].
  __device__ void m_by_k(uint32_t (&r)[4], uint32_t tile, int i, int j) const { ldmatrix_x4(r, at(down_, tile, i, j)); }
  __device__ void k_by_m(uint32_t (&r)[4], uint32_t tile, int i, int j) const {
    ldmatrix_x4_trans(r, at(across_, tile, i, j));
  }

 private:
  static constexpr uint32_t kPitch = kWidth * 2;
  struct Place {
    uint32_t row, chunk;  // bytes; 16-byte chunk where j = 0
  };
  // Chunks are swizzled within 128 bytes: few sums per lane, all else constant.
  __device__ static uint32_t at(const Place& place, uint32_t tile, int i, int j) {
    return tile + place.row + ((2 * j % 8 ^ place.chunk) << 4) + i * 16 * kPitch + j / 4 * 128;
  }
  Place across_, down_;
};

// The two of a pair, by shifts alone: the compiler makes more of a conversion.
__device__ inline float2 halves_of(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// x as a sum of two bf16, together nearly float32: pairs of the leading and of the remaining parts.
__device__ inline void split_bf16(float x0, float x1, uint32_t& lead, uint32_t& rest) {
  lead = pack_bf16(x0, x1);
  const float2 rounded = halves_of(lead);
  rest = pack_bf16(x0 - rounded.x, x1 - rounded.y);
}

// C fragments of 16 × 16, two neighbours along n, as the A of what is multiplied next.
__device__ inline void as_A(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack_bf16(left[0], left[1]);
  a[1] = pack_bf16(left[2], left[3]);
  a[2] = pack_bf16(right[0], right[1]);
  a[3] = pack_bf16(right[2], right[3]);
}
__device__ inline void split_A(uint32_t (&lead)[4], uint32_t (&rest)[4], const float (&left)[4],
                               const float (&right)[4]) {
  split_bf16(left[0], left[1], lead[0], rest[0]);
  split_bf16(left[2], left[3], lead[1], rest[1]);
  split_bf16(right[0], right[1], lead[2], rest[2]);
  split_bf16(right[2], right[3], lead[3], rest[3]);
}

// Rows of bf16 into a tile: `rows` of them, then zeros up to `padded`. Of `warps` warps this is number `warp`. kLower:
// zeros as well right of the diagonal's 16 × 16, where nothing was written.
template <int kWidth, bool kLower = false>
__device__ inline void copy_tile(uint32_t tile, const __nv_bfloat16* from, int64_t stride, int rows, int padded,
                                 int warp = 0, int warps = 1) {
  constexpr int kChunks = kWidth / 8, kRows = 32 / kChunks;  // 16-byte chunks of a row; rows at a time
  const int lane = threadIdx.x % 32, chunk = lane % kChunks;
#pragma unroll 4
  for (int row = warp * kRows + lane / kChunks; row < padded; row += warps * kRows) {
    const bool valid = row < rows && (!kLower || chunk / 2 <= row / 16);
    cp_async_16(tile + row * kWidth * 2 + (swizzle_128(row, chunk) << 4), from + (valid ? row : 0) * stride + chunk * 8,
                valid);
  }
}

inline constexpr int kCopyThreads = 128;

// `rows` rows of kParts · kChunks 16-byte pieces and zeros up to a chunk, by all threads that copy; `at` has the place
// of a row's piece, the same for rows apart by as many as are copied at a time.
template <int kChunks, int kParts = 1, bool kLower = false, class At>
__device__ inline void copy_rows(const __nv_bfloat16* from, int64_t stride, int rows, int valid, int part, At at) {
  constexpr int kRows = kCopyThreads / kChunks;
  const int thread = threadIdx.x % kCopyThreads, first = thread / kChunks, chunk = thread % kChunks;
  if (chunk >= valid) return;
  const uint32_t to = at(first, chunk);
  const uint32_t step = at(kRows, 0) - at(0, 0);
  from += first * stride + chunk * 8;
#pragma unroll
  for (int i = 0; i < kChunkRows / kRows; ++i, from += kRows * stride)
#pragma unroll
    for (int j = 0; j < kParts; ++j)
      cp_async_16(to + i * step + j * part, from + j * kChunks * 8,
                  first + i * kRows < rows && (!kLower || chunk / 2 <= i * kRows / 16));
}

// Of tensors that chunked_takes or low_rank_takes has passed, without what `prepare` leaves. Error: rows or heads that
// do not fit.
ChunkedArgs chunked_args(const LinearAttentionArgs& args, const TableUpload& table);

// All launches of one instance, p without what `prepare` leaves; each is compiled in a file of its own,
// chunked_UPDATE_dk.cu, with a decay a key dim chunked_diagonal_UPDATE_dk.cu.
template <bool kDelta, int kDk, bool kDiagonal = false>
void chunked_cell(ChunkedArgs p, int Hk, const TableUpload& table, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
