#include "reference/families/short_conv.h"

#include <gtest/gtest.h>

namespace hypic::reference {
namespace {

Array column(std::vector<double> rows) {
  Array x({static_cast<int64_t>(rows.size()), 1});
  x.data = std::move(rows);
  return x;
}

Array kernel(std::vector<double> weights) {
  Array w({1, static_cast<int64_t>(weights.size())});
  w.data = std::move(weights);
  return w;
}

TEST(ShortConv, TheLastWeightIsOfTheCurrentRow) {
  const Array out = short_conv(column({1, 2, 3}), kernel({1000, 100, 10, 1}), column({7, 8, 9}));
  EXPECT_EQ(out.data, (std::vector<double>{7891, 8912, 9123}));
}

TEST(ShortConv, ChannelsDoNotMix) {
  Array x({1, 2}), w({2, 2}), window({1, 2});
  x.data = {1, 2};
  w.data = {10, 1, 1000, 100};
  window.data = {3, 4};
  EXPECT_EQ(short_conv(x, w, window).data, (std::vector<double>{31, 4200}));
}

TEST(ShortConv, AShortSpanLeavesAShortTailAndOlderRowsInTheWindow) {
  const Array tail = conv_tail(column({5}), 4);
  EXPECT_EQ(tail[0], 1);
  EXPECT_EQ(window_after(column({1, 2, 3}), tail).data, (std::vector<double>{2, 3, 5}));
  EXPECT_EQ(window_after(column({1, 2, 3}), conv_tail(column({}), 4)).data,
            (std::vector<double>{1, 2, 3}));
}

TEST(ShortConv, ALongSpanFillsTheWindow) {
  EXPECT_EQ(window_after(column({1, 2, 3}), conv_tail(column({4, 5, 6, 7, 8}), 4)).data,
            (std::vector<double>{6, 7, 8}));
}

TEST(ShortConv, ALostWindowShows) {
  const Array x = column({1, 2, 3}), w = kernel({1000, 100, 10, 1});
  EXPECT_NE(short_conv(x, w, column({0, 0, 0})).data, short_conv(x, w, column({7, 8, 9})).data);
}

}  // namespace
}  // namespace hypic::reference
