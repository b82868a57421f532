// What the kernels of low_rank.cuh are given, and what `prepare` leaves to `walk`.
#pragma once

#include "kernels/linear_attention/chunked_args.cuh"
#include "kernels/linear_attention/hopper.cuh"

namespace hypic::cuda {

struct LowRankArgs : ChunkedArgs {
  View<__nv_bfloat16> a, b;  // or empty: k, and β k
  bool before;               // Update::delta_before
  bool scalar;               // g is [R, Hv]
  char* tiles;               // [chunks, Hv] LowRankTile
  int32_t chunks;
};

// Of a chunk and head, as both kernels have it in shared memory; bytes. A part is [64 rows][64] bf16 under
// swizzle_128; of B, Q̂, Z_a and Z_k there is one for 64 key dims each, a part of Q̂ after that of B, so that both are
// one operand.
template <int kDk>
struct LowRankTile {
  static constexpr int kParts = kDk / 64, kPart = kChunkRows * 128;
  static constexpr int kB = 0, kQ = kPart, kBQPart = 2 * kPart;  // from a part to the next
  static constexpr int kZa = 2 * kParts * kPart, kZk = kZa + kParts * kPart, kM = kZk + kParts * kPart;
  static constexpr int kDecays = kM + kPart;  // decay_factor of each key dim
  static constexpr int kBytes = kDecays + kDk * 4;
  static_assert(kBytes % 128 == 0);
};

template <int kDk>
__device__ inline char* tile_of(const LowRankArgs& p, int32_t chunk, int h) {
  return p.tiles + (static_cast<int64_t>(chunk) * p.Hv + h) * LowRankTile<kDk>::kBytes;
}

// Of the step whose rows begin at `begin`, the first chunk's number: chunks lie in the order of their rows.
__device__ inline int32_t first_chunk(const LowRankArgs& p, int32_t begin) {
  int32_t low = 0, high = p.chunks - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (p.table.chunks[middle].begin < begin)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// All launches of one instance, p without what `prepare` leaves; each is compiled in a file of its own,
// low_rank_dk.cu.
template <int kDk>
void low_rank_cell(LowRankArgs p, const TableUpload& table, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
