// How the convolution of all rows is laid over a GPU.
#pragma once

#include <cstdint>

namespace hypic::cuda {

inline constexpr int kConvThreads = 128;  // of a block of rows, each with one piece of channels
inline constexpr int kMaxConvRows = 16;   // of such a block: more of them touch more pages of memory at a time

struct ConvShape {
  int sms;
  int64_t rows;
  int64_t pieces;  // 16 bytes of channels each
  int64_t items;   // of the chain table
  int64_t chains;
};

struct ConvPlan {
  int rows = 0;          // of a block, one after another; a power of two, at most kMaxConvRows
  int edge_pieces = 0;   // threads of a block that finds what lies between items: pieces by items, both powers of two
  int edge_items = 0;
};

ConvPlan plan_conv(const ConvShape& shape);

}  // namespace hypic::cuda
