#include "kernels/ops/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace hypic::cuda {
namespace {

constexpr int kGpus[] = {78, 132};  // multiprocessors of an H20; of an H100 or H200

// Chains of `rows` rows after kv_begin own tokens, with `residues` residues.
std::vector<Chain> chains_of(int count, int rows, int kv_begin = 0, int residues = 0) {
  std::vector<Chain> chains(count);
  for (int c = 0; c < count; ++c) {
    chains[c].row_begin = c * rows;
    chains[c].row_end = (c + 1) * rows;
    chains[c].kv_begin = kv_begin;
    chains[c].residue_begin = c * residues;
    chains[c].residue_end = (c + 1) * residues;
  }
  return chains;
}

AttentionShape shape(int sms, int32_t max_keys, int head_dim = 256, int kv_heads = 2, int group = 8) {
  return {.sms = sms, .head_dim = head_dim, .kv_heads = kv_heads, .group = group, .max_keys = max_keys};
}

int64_t slots(const AttentionShape& s, const AttentionPlan& plan) {
  return int64_t{s.sms} * attention_block(s.head_dim, plan.rows).blocks_per_sm;
}

// Every row is in a tile, every key tile in a split, and no split but perhaps the last is empty for all.
void expect_sound(const AttentionShape& s, const std::vector<Chain>& chains, const AttentionPlan& plan) {
  EXPECT_TRUE(plan.rows == 16 || plan.rows == 128 || (plan.rows == 64 && s.head_dim > 128)) << plan.rows;
  int64_t tiles = 0, longest = 0;
  for (const Chain& chain : chains) {
    const int64_t pairs = int64_t{chain.row_end - chain.row_begin} * s.group;
    tiles += (pairs + plan.rows - 1) / plan.rows;
    const int64_t parts = chain.residue_end - chain.residue_begin + 1;
    if (pairs > 0) longest = std::max(longest, (s.max_keys + parts * (kAttentionKeys - 1)) / kAttentionKeys);
  }
  EXPECT_EQ(plan.tiles, tiles);
  ASSERT_GE(plan.splits, 1);
  ASSERT_LE(plan.splits, kMaxAttentionSplits);
  ASSERT_GE(plan.chunk, 1);
  EXPECT_GE(int64_t{plan.chunk} * plan.splits, longest);
  EXPECT_LT(int64_t{plan.chunk} * (plan.splits - 1), std::max<int64_t>(longest, 1));
}

TEST(AttentionPlan, IsSoundForAllSizes) {
  for (const int sms : kGpus)
    for (const int head_dim : {64, 128, 256})
      for (const int group : {1, 4, 8, 16, 40})
        for (const int count : {1, 3, 64, 256})
          for (const int rows : {0, 1, 8, 65, 512})
            for (const int kv_begin : {0, 1, 4000, 32767})
              for (const int residues : {0, 1, 64}) {
                const auto chains = chains_of(count, rows, kv_begin, residues);
                const auto s = shape(sms, kv_begin + rows + residues * 500, head_dim, 2, group);
                expect_sound(s, chains, plan_attention(s, chains));
              }
}

TEST(AttentionWgmmaPlan, SuitsRowsThatFillItsTiles) {
  const AttentionShape s = shape(132, 32768);
  EXPECT_TRUE(attention_wgmma_suits(s, chains_of(1, 8192)));
  EXPECT_TRUE(attention_wgmma_suits(s, chains_of(64, 512)));
  EXPECT_TRUE(attention_wgmma_suits(s, chains_of(1, 64, 32000)));
  EXPECT_TRUE(attention_wgmma_suits(s, chains_of(1, 512, 0, 64)));
  EXPECT_TRUE(attention_wgmma_suits(s, chains_of(64, 1, 32767))) << "decode";
  EXPECT_FALSE(attention_wgmma_suits(s, chains_of(1, 1, 32767))) << "decode of one";
  EXPECT_FALSE(attention_wgmma_suits(shape(132, 4096), chains_of(32, 1, 4095))) << "decode, fewer keys";
  EXPECT_TRUE(attention_wgmma_suits(shape(132, 4096), chains_of(64, 1, 4095))) << "decode";
  EXPECT_FALSE(attention_wgmma_suits(s, chains_of(1, 8, 0, 1))) << "one seam";
  EXPECT_FALSE(attention_wgmma_suits(s, {}));
}

TEST(AttentionPlan, NoRowsMakeNoTiles) {
  EXPECT_EQ(plan_attention(shape(132, 0), {}).tiles, 0);
  const auto plan = plan_attention(shape(132, 0), chains_of(3, 0));
  EXPECT_EQ(plan.tiles, 0);
  EXPECT_EQ(plan.splits, 1);
}

TEST(AttentionPlan, OneRowAlone) {
  const auto plan = plan_attention(shape(132, 1), chains_of(1, 1));
  EXPECT_EQ(plan.rows, 16);
  EXPECT_EQ(plan.tiles, 1);
  EXPECT_EQ(plan.splits, 1);
}

TEST(AttentionPlan, DecodeOfOneLongChainFillsTheGpu) {
  for (const int sms : kGpus)
    for (const int head_dim : {128, 256}) {
      const auto s = shape(sms, 32768, head_dim);
      const auto plan = plan_attention(s, chains_of(1, 1, 32767));
      EXPECT_EQ(plan.rows, 16);
      const int64_t blocks = int64_t{plan.tiles} * s.kv_heads * plan.splits;
      EXPECT_GE(blocks, slots(s, plan) * 8 / 10) << sms;
      EXPECT_LE(blocks, slots(s, plan)) << "one wave";
    }
}

TEST(AttentionPlan, DecodeOfManyChainsNeedsNoSplit) {
  for (const int sms : kGpus) {
    const auto plan = plan_attention(shape(sms, 32768), chains_of(256, 1, 32767));
    EXPECT_EQ(plan.rows, 16);
    EXPECT_EQ(plan.splits, 1) << sms;
  }
}

// Blocks of equal length: the last wave is nearly full.
TEST(AttentionPlan, DecodeBatchesFillTheirWaves) {
  for (const int sms : kGpus)
    for (const int batch : {2, 5, 16, 33, 48, 64, 100, 128}) {
      const auto s = shape(sms, 32768);
      const auto plan = plan_attention(s, chains_of(batch, 1, 32767));
      const double blocks = 1.0 * plan.tiles * s.kv_heads * plan.splits, waves = blocks / slots(s, plan);
      EXPECT_GE(waves / std::ceil(waves), 0.85) << sms << " SMs, batch " << batch << ", splits " << plan.splits;
    }
}

TEST(AttentionPlan, LongPrefillTakesLargeTilesWhole) {
  for (const int sms : kGpus)
    for (const int head_dim : {64, 128, 256}) {
      const auto plan = plan_attention(shape(sms, 8192, head_dim), chains_of(1, 8192));
      EXPECT_EQ(plan.rows, 128);
      EXPECT_EQ(plan.splits, 1);
    }
}

TEST(AttentionPlan, SegmentsPrefilledTogetherAreNotSplit) {
  for (const int sms : kGpus) {
    const auto plan = plan_attention(shape(sms, 512), chains_of(64, 512));
    EXPECT_EQ(plan.rows, 64);
    EXPECT_EQ(plan.splits, 1);
  }
}

// 64 windows of 8 rows over 32k keys: far more keys than rows, so they are split; and not into crumbs.
TEST(AttentionPlan, SeamWindowsAreSplit) {
  for (const int sms : kGpus) {
    const auto s = shape(sms, 32768);
    const auto plan = plan_attention(s, chains_of(1, 512, 0, 64));
    EXPECT_EQ(plan.rows, 64);
    EXPECT_GE(plan.splits, 3);
    EXPECT_GE(plan.chunk, 16);
    // Half the key tiles are seen: the work of a slot, in key tiles, beside that of the longest block.
    const double share = 0.5 * plan.tiles * s.kv_heads * s.max_keys / kAttentionKeys / slots(s, plan);
    EXPECT_LE(plan.chunk, share);
  }
}

TEST(AttentionWgmmaPlan, IsSoundForAllSizes) {
  for (const int sms : kGpus)
    for (const int head_dim : {64, 128, 256})
      for (const int group : {1, 8, 40})
        for (const int count : {0, 1, 3, 64, 256})
          for (const int rows : {0, 1, 65, 512})
            for (const int kv_begin : {0, 4000, 1 << 20})
              for (const int residues : {0, 1, 64}) {
                const auto chains = chains_of(count, rows, kv_begin, residues);
                const auto s = shape(sms, kv_begin + rows + residues * 500, head_dim, 2, group);
                const auto plan = plan_attention_wgmma(s, chains);
                EXPECT_EQ(plan.tiles, count * ((rows * group + kAttentionWgmmaRows - 1) / kAttentionWgmmaRows));
                if (plan.tiles == 0) {
                  EXPECT_FALSE(plan.shares);
                  EXPECT_EQ(plan.blocks, 0);
                } else if (plan.shares) {
                  EXPECT_GE(plan.blocks, 1);
                  EXPECT_LE(plan.blocks, sms);
                } else {
                  EXPECT_EQ(plan.blocks, std::min(plan.tiles * s.kv_heads, sms));
                }
              }
}

TEST(AttentionWgmmaPlan, FewRowsThatSeeManyKeysShareThem) {
  for (const int sms : kGpus) {
    const auto s = shape(sms, 32768);
    for (const auto& chains : {chains_of(1, 512, 0, 64), chains_of(1, 576, 0, 64), chains_of(1, 8, 0, 64),
                               chains_of(2, 64, 32000), chains_of(1, 1000, 31000)}) {
      const auto plan = plan_attention_wgmma(s, chains);
      EXPECT_TRUE(plan.shares);
      EXPECT_EQ(plan.blocks, sms);
    }
  }
}

TEST(AttentionWgmmaPlan, ManyRowTilesAreTakenWhole) {
  for (const int sms : kGpus) {
    EXPECT_FALSE(plan_attention_wgmma(shape(sms, 8192), chains_of(1, 8192)).shares);
    EXPECT_FALSE(plan_attention_wgmma(shape(sms, 32768), chains_of(1, 32768)).shares);
    EXPECT_FALSE(plan_attention_wgmma(shape(sms, 512), chains_of(64, 512)).shares);
    EXPECT_FALSE(plan_attention_wgmma(shape(sms, 64), chains_of(1, 64)).shares);
  }
}

// Blocks without a key tile would do nothing but cost their beginning.
TEST(AttentionWgmmaPlan, LittleWorkHasFewBlocks) {
  const auto plan = plan_attention_wgmma(shape(132, 1000), chains_of(1, 8, 992));
  EXPECT_TRUE(plan.shares);
  EXPECT_LE(plan.blocks, 2 * 16 / 4);
}

TEST(AttentionPlan, PartsStayWithinTheirMemory) {
  const auto s = shape(132, 1 << 20);
  const auto chains = chains_of(1, 2000, (1 << 20) - 2000);
  const auto plan = plan_attention(s, chains);
  expect_sound(s, chains, plan);
  if (plan.splits > 1) {
    EXPECT_LE(int64_t{plan.splits} * 2000 * 16 * 256 * 4, int64_t{256} << 20);
  }
}

}  // namespace
}  // namespace hypic::cuda
