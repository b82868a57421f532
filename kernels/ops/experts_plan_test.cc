#include "kernels/ops/experts_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace hypic::cuda {
namespace {

constexpr int kH20 = 78, kH200 = 132;  // SMs

TEST(ExpertsPlan, TilesFitTheSm) {
  for (const ExpertsTile& tile : kExpertsTiles) {
    EXPECT_LE(tile.shared_bytes(), 227u << 10);
    EXPECT_LE(tile.blocks_per_sm * (tile.shared_bytes() + 1024), 228u << 10);  // 1 KiB of each is the system's
    EXPECT_LE(tile.blocks_per_sm * tile.threads(), 2048);
    EXPECT_GE(tile.stages, 2);
  }
  EXPECT_LE(ExpertsWideTile::kSharedBytes, 227 << 10);
}

TEST(ExpertsPlan, TileGrowsWithRowsOfAnExpert) {
  for (const int sms : {kH20, kH200}) {
    const auto rows = [&](int64_t R) { return plan_experts(sms, R, 8, 256, 2048, 512, true).tile_rows; };
    EXPECT_EQ(rows(1), 16);
    EXPECT_EQ(rows(64), 16);
    EXPECT_EQ(rows(256), 16);
    EXPECT_EQ(rows(576), 32);
    EXPECT_EQ(rows(1024), 64);
    EXPECT_EQ(rows(8192), ExpertsWideTile::kRows);
    EXPECT_EQ(rows(32768), ExpertsWideTile::kRows);
    EXPECT_FALSE(plan_experts(sms, 2048, 8, 256, 2048, 512, true).wide);
    EXPECT_TRUE(plan_experts(sms, 3072, 8, 256, 2048, 512, true).wide);
    EXPECT_TRUE(plan_experts(sms, 8192, 8, 256, 2048, 512, true).wide);
  }
}

TEST(ExpertsPlan, OneRowOccupiesTheSms) {  // 8 experts, whose 16 column tiles each are read by blocks of their own
  for (const int sms : {kH20, kH200}) {
    const ExpertsPlan plan = plan_experts(sms, 1, 8, 256, 2048, 512, true);
    EXPECT_EQ(plan.max_tiles, 8);
    EXPECT_EQ(plan.up_blocks, std::min(sms * 3, 8 * 512 / 32));
    EXPECT_EQ(plan.down_blocks, std::min(sms * 3, 8 * 2048 / 64));
  }
}

TEST(ExpertsPlan, FewExpertsTakeSmallerTiles) {
  // 512 rows of 2 among 8 experts: 128 each, but wide tiles would be 32, of two blocks each.
  EXPECT_EQ(plan_experts(kH200, 512, 2, 8, 2048, 512, true).tile_rows, 32);
  EXPECT_EQ(plan_experts(kH20, 512, 2, 8, 2048, 512, true).tile_rows, 64);
  EXPECT_TRUE(plan_experts(kH200, 512, 2, 8, 4096, 14336, true).wide);
}

TEST(ExpertsPlan, BlocksAreResident) {
  for (const int sms : {kH20, kH200})
    for (const int64_t R : {1, 5, 64, 576, 8192, 32768})
      for (const bool gated : {false, true}) {
        const ExpertsPlan plan = plan_experts(sms, R, 8, 256, 2048, 512, gated);
        for (const int blocks : {plan.up_blocks, plan.down_blocks}) {
          EXPECT_GE(blocks, 1);
          EXPECT_LE(blocks, plan.wide ? sms : sms * kExpertsTiles[plan.tile].blocks_per_sm);
          EXPECT_TRUE(!plan.wide || blocks % 2 == 0);
        }
      }
}

TEST(ExpertsPlan, OneSmTakesNoPairs) {
  for (const int64_t R : {1, 576, 32768}) {
    const ExpertsPlan plan = plan_experts(1, R, 8, 256, 2048, 512, true);
    EXPECT_FALSE(plan.wide);
    EXPECT_GE(std::min(plan.up_blocks, plan.down_blocks), 1);
  }
}

TEST(ExpertsPlan, TilesSufficeForAnyRouting) {
  for (const int E : {1, 3, 8, 256, 1024})
    for (const int64_t R : {1, 2, 15, 17, 129, 577, 4096})
      for (const int k : {1, 2, 8}) {
        const ExpertsPlan plan = plan_experts(kH200, R, k, E, 64, 64, true);
        const int64_t P = R * k, rows = plan.tile_rows;
        ASSERT_EQ(plan.pass_rows, R);
        // The most tiles: an expert with one pair each, as many as there are; the last has the rest.
        const int64_t alone = std::min<int64_t>(E, P) - 1;
        EXPECT_GE(plan.max_tiles, alone + (P - alone + rows - 1) / rows);
        // Or each is one pair more than full.
        const int64_t full = std::min<int64_t>(E, P / (rows + 1));
        EXPECT_GE(plan.max_tiles, 2 * full);
        EXPECT_LE(plan.max_tiles, P);
      }
}

TEST(ExpertsPlan, ColumnTilesCoverTheColumns) {
  for (const auto& [R, I] : {std::pair{33, 8}, {33, 24}, {33, 64}, {33, 200}, {33, 512}, {40000, 264}, {40000, 1408}})
    for (const bool gated : {false, true}) {
      const ExpertsPlan plan = plan_experts(kH200, R, 2, 128, 200, I, gated);
      EXPECT_EQ(plan.wide, R == 40000);
      const int columns = plan.wide ? ExpertsWideTile::kColumns : kExpertsTiles[plan.tile].columns;
      const int up = gated ? columns / 2 : columns;
      EXPECT_GE(plan.up_column_tiles * up, I);
      EXPECT_LT((plan.up_column_tiles - 1) * up, I);
      EXPECT_GE(plan.down_column_tiles * columns, 200);
      EXPECT_LT((plan.down_column_tiles - 1) * columns, 200);
    }
}

TEST(ExpertsPlan, ScratchHoldsItsPartsApart) {
  const ExpertsPlan plan = plan_experts(kH20, 577, 8, 256, 2048, 512, true);
  const size_t P = 577 * 8;
  const size_t sort_blocks = (P + plan.sort_pairs - 1) / plan.sort_pairs;
  const std::vector<size_t> begins = {plan.counts, plan.tiles,   plan.tile_count, plan.pairs,
                                      plan.inner,  plan.outputs, plan.bytes};
  const std::vector<size_t> sizes = {sort_blocks * 256 * 4, plan.max_tiles * size_t{16}, 4, P * 4, P * 512 * 2,
                                     P * 2048 * 2};
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(begins[i] % 256, 0u);
    EXPECT_LE(begins[i] + sizes[i], begins[i + 1]);
  }
}

TEST(ExpertsPlan, SortTakesWholeBlocksAndNotTooMany) {
  for (const int64_t R : {1, 64, 576, 8192, 16384}) {
    const ExpertsPlan plan = plan_experts(kH200, R, 8, 256, 2048, 512, true);
    EXPECT_EQ(plan.sort_pairs % kExpertsSortThreads, 0);
    EXPECT_LE((R * 8 + plan.sort_pairs - 1) / plan.sort_pairs, 64);
  }
  EXPECT_EQ(plan_experts(kH200, 128, 8, 256, 2048, 512, true).sort_pairs, 128 * 8);  // one launch
}

TEST(ExpertsPlan, ManyRowsGoInEqualPasses) {
  EXPECT_EQ(plan_experts(kH200, 8192, 8, 256, 2048, 512, true).pass_rows, 8192);
  const ExpertsPlan plan = plan_experts(kH200, 32768, 8, 256, 2048, 512, true);
  EXPECT_EQ(plan.pass_rows, 16384);
  EXPECT_LE(plan.bytes, static_cast<size_t>(kExpertsScratch) + (4 << 20));
  // A row beyond the bound goes alone.
  EXPECT_EQ(plan_experts(kH200, 3, 32, 32, 1 << 24, 8, true).pass_rows, 1);
}

}  // namespace
}  // namespace hypic::cuda
