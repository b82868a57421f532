#include "kernels/ops/attention_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hypic::cuda {
namespace {

// What splits cost beside their keys, in the time of a key tile: filling the pipeline and writing a part, the
// merge, and the merge of each part.
constexpr double kPartCost = 1.5;
constexpr double kMergeCost = 2;
constexpr double kMergePartCost = 0.02;
constexpr int kMinChunk = 4;
constexpr int32_t kManyKeys = 2048;
constexpr double kFewestSplits = 1.04;  // the fewest splits that take at most so many times the least time
constexpr int64_t kMaxPartBytes = int64_t{256} << 20;
// In the time of a key tile of attention_wgmma: what shares cost beside it, the kernels before and after them first of
// all; what beginning and ending a row tile costs.
constexpr double kShareCost = 6;
constexpr int kShareGap = 6;
constexpr double kMinShare = 4;
// So many bytes of K that the rows of all chains see: what attention_wgmma loses in tiles that are mostly empty it then
// gains where keys come in. With heads of 256 dims on an H200 it takes .97 of attention_mma's time at 48 × 4096 keys,
// the fewest, .85 at 64 × 4096 and .83 at 64 × 32768.
constexpr int64_t kManyKeyBytes = int64_t{48} * 4096 * 2 * 256 * 2;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t pairs(const Chain& chain, int group) { return int64_t{chain.row_end - chain.row_begin} * group; }

int64_t tiles_of(std::span<const Chain> chains, int group, int rows) {
  int64_t tiles = 0;
  for (const Chain& chain : chains) tiles += ceil_div(pairs(chain, group), rows);
  return tiles;
}

int choose_rows(const AttentionShape& shape, std::span<const Chain> chains) {
  int64_t most = 0;
  for (const Chain& chain : chains) most = std::max(most, pairs(chain, shape.group));
  if (most <= 16) return 16;
  if (shape.head_dim <= 128) return 128;
  // Large tiles read K and V half as often. Small ones share few rows better, and two blocks on a multiprocessor hide
  // each other's beginnings and ends, which count where keys are few.
  const bool many = tiles_of(chains, shape.group, 128) * shape.kv_heads >= 4 * shape.sms;
  return many && shape.max_keys >= kManyKeys ? 128 : 64;
}

// Key tiles: the most that a tile of rows can have, and about how many all have. The rows of a chain see ever more
// keys; where residues are among them, how many the first row sees is not known here, and taken to be none.
struct Work {
  int64_t rows = 0, longest = 1;
  double all = 0, shortest_block = std::numeric_limits<double>::infinity(), longest_block = 0;

  // Blocks of one length run in waves; of many lengths, the short ones fill the gaps that the long ones leave.
  bool even() const { return shortest_block > 0.9 * longest_block; }
};

Work work_of(const AttentionShape& shape, std::span<const Chain> chains, int tile_rows, int tile_keys) {
  Work work;
  for (const Chain& chain : chains) {
    const int64_t n = chain.row_end - chain.row_begin, residues = chain.residue_end - chain.residue_begin;
    if (n == 0) continue;
    const int64_t keys = residues > 0 ? shape.max_keys : chain.kv_begin + n;
    const int64_t tiles = ceil_div(pairs(chain, shape.group), tile_rows);
    const double last = static_cast<double>(ceil_div(keys, tile_keys));
    const double first = tiles == 1 ? last : static_cast<double>(chain.kv_begin) / tile_keys;
    work.all += static_cast<double>(tiles * shape.kv_heads) * (first + last) / 2;
    work.shortest_block = std::min(work.shortest_block, first);
    work.longest_block = std::max(work.longest_block, last);
    work.longest = std::max(work.longest, (keys + (residues + 1) * (tile_keys - 1)) / tile_keys);
    work.rows += n;
  }
  return work;
}

}  // namespace

AttentionPlan plan_attention(const AttentionShape& shape, std::span<const Chain> chains) {
  AttentionPlan plan;
  plan.rows = choose_rows(shape, chains);
  plan.tiles = static_cast<int>(tiles_of(chains, shape.group, plan.rows));

  const Work work = work_of(shape, chains, plan.rows, kAttentionKeys);
  const int64_t longest = work.longest;

  const AttentionBlock block = attention_block(shape.head_dim, plan.rows);
  const double slots = shape.sms * block.blocks_per_sm, blocks = static_cast<double>(plan.tiles) * shape.kv_heads;
  const int64_t part_bytes = std::max<int64_t>(work.rows * shape.group * shape.kv_heads * shape.head_dim * 4, 1);
  const auto most = static_cast<int>(std::clamp<int64_t>(
      std::min(longest / kMinChunk, kMaxPartBytes / part_bytes), 1, kMaxAttentionSplits));
  const auto time = [&](int splits) {
    const double chunk = static_cast<double>(ceil_div(longest, splits));
    const double items = splits == 1 ? blocks : work.all / chunk + blocks / 2;
    const double waves =
        work.even() ? std::ceil(blocks * splits / slots) : std::max(1.0, work.all / (chunk * slots) + 0.25);
    return waves * chunk +
           (splits == 1 ? 0 : kPartCost * std::ceil(items / slots) + kMergeCost + kMergePartCost * splits);
  };
  double least = time(1);
  for (int splits = 2; splits <= most; ++splits) least = std::min(least, time(splits));
  while (plan.splits < most && time(plan.splits) > kFewestSplits * least) ++plan.splits;
  plan.chunk = static_cast<int>(ceil_div(longest, plan.splits));
  plan.splits = static_cast<int>(ceil_div(longest, plan.chunk));
  return plan;
}

bool attention_wgmma_suits(const AttentionShape& shape, std::span<const Chain> chains) {
  if (shape.head_dim > 128) {
    const Work work = work_of(shape, chains, kAttentionWgmmaRows, kAttentionGroupKeys);
    if (work.all * kAttentionGroupKeys * shape.head_dim * 2 >= kManyKeyBytes) return true;
  }
  int64_t all = 0;
  for (const Chain& chain : chains) all += pairs(chain, shape.group);
  return 2 * all > kAttentionWgmmaRows * tiles_of(chains, shape.group, kAttentionWgmmaRows);
}

AttentionWgmmaPlan plan_attention_wgmma(const AttentionShape& shape, std::span<const Chain> chains) {
  AttentionWgmmaPlan plan;
  plan.tiles = static_cast<int>(tiles_of(chains, shape.group, kAttentionWgmmaRows));
  plan.blocks = plan.tiles * shape.kv_heads;
  const Work work = work_of(shape, chains, kAttentionWgmmaRows, attention_wgmma_keys(shape.head_dim));
  const double longest = static_cast<double>(work.longest), each = work.all / shape.sms;
  const double whole = work.even() ? std::ceil(static_cast<double>(plan.blocks) / shape.sms) * longest
                                   : std::max(longest, each);
  plan.shares = each + kShareCost < whole && (longest + kShareGap) * plan.blocks < std::numeric_limits<int32_t>::max();
  plan.gap = kShareGap;
  plan.blocks = std::min(plan.blocks, shape.sms);
  if (plan.shares) plan.blocks = static_cast<int>(std::clamp<double>(work.all / kMinShare, 1, shape.sms));
  return plan;
}

}  // namespace hypic::cuda
