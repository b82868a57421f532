// How the blocks of the attention of many rows come to their work.
//
// Where row tiles are many, a block takes the next one whole when it begins with one: blocks that run at a time then
// read the same keys, and who has which row tile changes no result. Where they are few, or see keys of very different
// number, the key tiles of all row tiles are laid end to end, before those of each row tile a gap that stands for what
// a piece costs beside its key tiles, and cut into ranges of one length, a block each. A row tile that lies in several
// ranges has a part from each of their blocks; a second kernel joins them in order. So all blocks end at about the same
// time, and none waits for another.
#pragma once

#include "kernels/common/wgmma.cuh"
#include "kernels/ops/attention_tiles.cuh"

namespace hypic::cuda {

// The order of key tiles: KV heads; row tiles of a head as the chains have them; residues, then own keys.
struct Shares {
  const int32_t* until;  // [tiles] where each row tile ends, for one KV head; nullptr: there are no shares
  int gap;               // before each row tile
  int* taken;            // without shares: row tiles that blocks have taken beside their first; begins at 0

  __device__ int begin(int tile) const { return tile == 0 ? 0 : until[tile - 1]; }
};

// What a block does of one row tile: key tiles [first, first + count).
struct Piece {
  int tile, kv;
  int first, count;  // 0: there is no piece, nor any after it
  int slot;          // where its part goes; kNone: it is the whole row tile
};

// A block has at most one piece that does not begin its row tile, and one that begins it but does not end it.
__device__ inline int part_slot(int block, bool begins) { return 2 * block + (begins ? 1 : 0); }

__device__ inline int share_length(int units, int blocks) { return (units + blocks - 1) / blocks; }

// Goes through the pieces of this block. For a whole warp.
struct PieceWalk {
  int at, end;
  int kv, tile, first;  // the next piece begins so far into the row tile, its gap included

  __device__ void begin(const Params& p, const Shares& shares) {
    at = static_cast<int>(blockIdx.x);
    end = p.tiles * p.kv_heads;
    if (shares.until == nullptr) return;
    const int head_units = shares.until[p.tiles - 1], units = head_units * p.kv_heads;
    const int length = share_length(units, static_cast<int>(gridDim.x));
    at = min(at * length, units);
    end = min(at + length, units);
    kv = at / head_units;
    first = at % head_units;
    tile = 0;
    for (int count = p.tiles; count > 1;) {  // it is among so many from `tile` on; each round asks 32 of them
      const int step = (count + 31) / 32, lane = static_cast<int>(threadIdx.x) % 32;
      const unsigned beyond = __ballot_sync(kAll, shares.until[tile + min((lane + 1) * step, count) - 1] > first);
      const int round = __ffs(beyond) - 1;
      tile += round * step;
      count = min(step, count - round * step);
    }
    first -= shares.begin(tile);
  }

  __device__ Piece next(const Params& p, const Shares& shares) {
    Piece piece = {0, 0, 0, 0, kNone};
    if (shares.until == nullptr) {
      if (at >= end) return piece;
      // The last rows of a chain see the most keys: they go first.
      piece = {p.tiles - 1 - at / p.kv_heads, at % p.kv_heads, 0, INT32_MAX, kNone};
      if (end > static_cast<int>(gridDim.x)) {
        if (threadIdx.x % 32 == 0) at = static_cast<int>(gridDim.x) + atomicAdd(shares.taken, 1);
        at = __shfl_sync(kAll, at, 0);
      } else {
        at = end;
      }
      return piece;
    }
    while (at < end && piece.count == 0) {
      const int units = shares.until[tile] - shares.begin(tile), last = min(units, first + end - at);
      piece = {tile, kv, max(first - shares.gap, 0), 0, kNone};
      piece.count = max(last - shares.gap, 0) - piece.first;
      if (piece.count < units - shares.gap) piece.slot = part_slot(static_cast<int>(blockIdx.x), piece.first == 0);
      at += last - first;
      first = last;
      if (last == units) {
        first = 0;
        if (++tile == p.tiles) {
          tile = 0;
          ++kv;
        }
      }
    }
    return piece;
  }
};

// Lays out row tiles of `tile_rows` rows; tiles_of(first, last): key tiles of keys [first, last). One block.
inline constexpr int kCountThreads = 1024;
template <class TilesOf>
__global__ void __launch_bounds__(kCountThreads)
    count_kernel(const __grid_constant__ Params p, int tile_rows, TilesOf tiles_of, int gap, int32_t* until) {
  __shared__ int sums[kCountThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Every thread is about to go through the residues: they come all at once.
  const int residues_end = p.table.chains[p.chains - 1].residue_end;
  for (int i = p.table.chains[0].residue_begin + static_cast<int>(threadIdx.x); i < residues_end; i += kCountThreads)
    prefetch_l1(p.table.residues + i);
  int base = 0;
  for (int begin = 0; begin < p.tiles; begin += kCountThreads) {
    int tile = begin + static_cast<int>(threadIdx.x), units = 0;
    for (int c = 0; c < p.chains && tile >= 0; ++c) {
      const Chain chain = p.table.chains[c];
      const int pairs = (chain.row_end - chain.row_begin) * p.group, tiles = (pairs + tile_rows - 1) / tile_rows;
      if (tile < tiles) {
        const int last = (min((tile + 1) * tile_rows, pairs) - 1) / p.group;
        const int32_t position = p.table.positions[chain.row_begin + last];
        units = gap + tiles_of(0, chain.kv_begin + last + 1);
#pragma unroll 8
        for (int i = chain.residue_begin; i < chain.residue_end; ++i) {
          const ResidueRef& r = p.table.residues[i];
          units += position >= r.start + r.last ? tiles_of(r.first, r.last) : 0;
        }
      }
      tile -= tiles;
    }
    int sum = units;
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += below;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < kCountThreads / 32; ++w) {
      if (w < warp) sum += sums[w];
      all += sums[w];
    }
    if (begin + static_cast<int>(threadIdx.x) < p.tiles) until[begin + threadIdx.x] = base + sum;
    base += all;
    __syncthreads();
  }
}

// Joins the parts that the blocks of a grid left: block x for a row tile of a KV head, block y for some of its rows.
inline constexpr int kJoinThreads = 256;
template <int D>
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const __grid_constant__ Params p, int tile_rows, Shares shares, int blocks) {
  constexpr int kColumns = D / 4;
  __shared__ int row_begin, first_pair, valid;
  const int tile = static_cast<int>(blockIdx.x) % p.tiles, kv = static_cast<int>(blockIdx.x) / p.tiles;
  const int head_units = shares.until[p.tiles - 1], length = share_length(head_units * p.kv_heads, blocks);
  const int first = (kv * head_units + shares.begin(tile) + shares.gap) / length;
  const int last = (kv * head_units + shares.until[tile] - 1) / length;
  if (first == last) return;  // one block had the whole
  if (threadIdx.x < 32) {
    int of_chain = tile;
    const auto pairs = [&](int c) { return (p.table.chains[c].row_end - p.table.chains[c].row_begin) * p.group; };
    const int c = warp_find(p.chains, [&](int c) { return (pairs(c) + tile_rows - 1) / tile_rows; }, &of_chain);
    if (threadIdx.x == 0) {
      row_begin = p.table.chains[c].row_begin;
      first_pair = of_chain * tile_rows;
      valid = pairs(c) - first_pair;
    }
  }
  __syncthreads();
  const int row = static_cast<int>(blockIdx.y * (kJoinThreads / kColumns) + threadIdx.x / kColumns);
  const int column = threadIdx.x % kColumns;
  if (row >= valid) return;
  const auto part_of = [&](int block) { return int64_t{part_slot(block, block == first)} * tile_rows + row; };
  float top = -INFINITY;
#pragma unroll 4
  for (int b = first; b <= last; ++b) top = fmaxf(top, p.part_sums[part_of(b)].x);
  float divisor = 0;
  float4 total = {};
#pragma unroll 4
  for (int b = first; b <= last; ++b) {
    const float2 part = p.part_sums[part_of(b)];
    const float4 x = reinterpret_cast<const float4*>(p.parts + part_of(b) * D)[column];
    const float share = exp2_approx(part.x - top);  // 0 where the row sees none of the part's keys
    divisor += share * part.y;
    total.x += share * x.x;
    total.y += share * x.y;
    total.z += share * x.z;
    total.w += share * x.w;
  }
  const float inverse = 1 / divisor;
  const int pair = first_pair + row;
  *reinterpret_cast<uint2*>(p.out.row(row_begin + pair / p.group, kv * p.group + pair % p.group) + 4 * column) = {
      pack_bf16(total.x * inverse, total.y * inverse), pack_bf16(total.z * inverse, total.w * inverse)};
}

}  // namespace hypic::cuda
