#include "kernels/common/chain_spans.h"

#include <gtest/gtest.h>

#include <numeric>

namespace hypic::cuda {
namespace {

// A chain of steps of so many rows, and of jumps (−1).
void add_chain(ChainTable& table, const std::vector<int32_t>& items, bool fresh = true) {
  Chain chain;
  chain.item_begin = static_cast<int32_t>(table.items.size());
  chain.state = static_cast<int32_t>(table.chains.size());
  chain.fresh = fresh;
  int32_t row = table.chains.empty() ? 0 : table.chains.back().row_end;
  for (const int32_t rows : items) {
    ChainItem item;
    if (rows < 0) {
      item.kind = ChainItem::Kind::jump;
    } else {
      item.begin = row;
      item.end = row += rows;
    }
    table.items.push_back(item);
  }
  chain.item_end = static_cast<int32_t>(table.items.size());
  chain.row_end = row;
  table.chains.push_back(chain);
}

struct Spans {
  std::vector<ChainSpan> all;
  std::vector<SpanStage> stages;
  explicit Spans(const ChainTable& table) {
    std::vector<int32_t> chains(table.chains.size());
    std::iota(chains.begin(), chains.end(), 0);
    stages = cut_spans(table, chains, 64, 32, all);
  }
};

TEST(ChainSpans, ReuseIsOneSpan) {
  ChainTable table;
  add_chain(table, {8, -1, 64, -1, -1, 32});
  const Spans spans(table);
  ASSERT_EQ(spans.stages.size(), 1u);
  EXPECT_EQ(spans.stages[0].jumps_last, 1);
  EXPECT_EQ(spans.all[0].item_end, 6);
  EXPECT_TRUE(spans.all[0].fresh);
}

TEST(ChainSpans, LastStepIsCutFromJumpsEarlier) {
  ChainTable table;
  add_chain(table, {64, -1, 64, -1, 33});
  add_chain(table, {33});
  const Spans spans(table);
  ASSERT_EQ(spans.stages.size(), 2u);
  EXPECT_EQ(spans.all[0].item_end, 4);
  EXPECT_EQ(spans.all[2].item_begin, 4);
  EXPECT_EQ(spans.stages[1].jumps_last, spans.stages[1].first);
}

TEST(ChainSpans, LongStepsAreCutFromJumps) {
  ChainTable table;
  add_chain(table, {8, 65, 8, -1, 3, 65, -1});
  const Spans spans(table);
  ASSERT_EQ(spans.stages.size(), 4u);
  const int32_t ends[] = {3, 5, 6, 7};
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(spans.all[i].item_begin, i > 0 ? ends[i - 1] : 0);
    EXPECT_EQ(spans.all[i].item_end, ends[i]);
    EXPECT_EQ(spans.all[i].fresh, i == 0);
    EXPECT_EQ(spans.stages[i].jumps_last - spans.stages[i].first, i % 2);
  }
}

TEST(ChainSpans, StagesTakeChainsTogether) {
  ChainTable table;
  add_chain(table, {100});
  add_chain(table, {-1, 200}, false);
  add_chain(table, {300, -1});
  add_chain(table, {});
  const Spans spans(table);
  ASSERT_EQ(spans.stages.size(), 2u);
  EXPECT_EQ(spans.stages[0].jumps_last, 1);
  EXPECT_EQ(spans.stages[0].last, 4);
  EXPECT_EQ(spans.stages[1].jumps_last, 5);
  EXPECT_EQ(spans.stages[1].last, 6);
  const int32_t states[] = {1, 2, 0, 3, 2, 1};  // jumps first, then the longest
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(spans.all[i].state, states[i]);
  EXPECT_FALSE(spans.all[0].fresh);
}

TEST(ChainSpans, NoChains) {
  const Spans spans{ChainTable{}};
  EXPECT_TRUE(spans.stages.empty());
}

}  // namespace
}  // namespace hypic::cuda
