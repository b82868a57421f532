// How the tensor-core attention of a forward is laid over a GPU: rows a tile, and splits of the keys.
//
// The rows of a tile are pairs (token, query head of one KV head's group) of one chain. Keys go by in tiles of
// kAttentionKeys, none of which holds keys of two residues. Where rows give too few tiles for the GPU, the keys of
// a tile of rows are split among thread blocks: split s takes the key tiles [s · chunk, (s + 1) · chunk).
#pragma once

#include <cstdint>
#include <span>

#include "core/chain.h"

namespace hypic::cuda {

inline constexpr int kAttentionKeys = 64;
inline constexpr int kMaxAttentionSplits = 128;

// What a thread block is made of. Its warps share the rows or, where there are few, the keys of a tile.
struct AttentionBlock {
  int row_warps, key_warps;
  int stages;      // tiles of K, and of V, in shared memory
  int blocks_per_sm;
};
constexpr AttentionBlock attention_block(int head_dim, int rows) {
  if (rows == 16) return {1, 4, 2, head_dim > 128 ? 1 : 2};
  if (head_dim <= 128) return {4, 1, 2, 2};  // rows == 128
  return rows == 64 ? AttentionBlock{4, 1, 1, 2} : AttentionBlock{8, 1, 2, 1};
}

struct AttentionShape {
  int sms;
  int head_dim;
  int kv_heads;
  int group;         // query heads of a KV head
  int32_t max_keys;  // the most keys, residues included, that a row sees
};

struct AttentionPlan {
  int rows = 0;     // of a tile: 16, 64 (only heads of more than 128 dims) or 128
  int tiles = 0;    // of all chains, for one KV head
  int splits = 1;
  int chunk = 0;    // key tiles of a split; the last one takes all that is left
};

AttentionPlan plan_attention(const AttentionShape& shape, std::span<const Chain> chains);

// What follows is of attention_wgmma. Its tiles of keys begin at multiples of kAttentionGroupKeys, in residues as well,
// and are as large as registers allow.
inline constexpr int kAttentionWgmmaRows = 128;
inline constexpr int kAttentionGroupKeys = 8;
constexpr int attention_wgmma_keys(int head_dim) { return head_dim > 128 ? 80 : 128; }

// `shares`: each thread block takes as many key tiles as the others, of one row tile or several; else whole row tiles.
struct AttentionWgmmaPlan {
  int tiles = 0;    // of rows, of all chains, for one KV head
  int blocks = 0;
  bool shares = false;
  int gap = 0;      // shares: what a row tile costs beside its key tiles, in their time
};

// Whether it is the faster one: most of its tiles of rows would be more than half full, or of large heads there are
// many keys to read.
bool attention_wgmma_suits(const AttentionShape& shape, std::span<const Chain> chains);
AttentionWgmmaPlan plan_attention_wgmma(const AttentionShape& shape, std::span<const Chain> chains);

}  // namespace hypic::cuda
