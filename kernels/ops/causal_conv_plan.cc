#include "kernels/ops/causal_conv_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/check.h"

namespace hypic::cuda {
namespace {

constexpr int kMinRows = 2;
constexpr int kBlocksPerSm = 4;   // where there are rows enough: what an SM holds at once
constexpr int kEdgeThreads = 256;
constexpr int kMaxEdgeThreads = 1024;
constexpr int kMinEdgePieces = 8;   // 128 bytes

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

ConvPlan plan_conv(const ConvShape& s) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  HYPIC_CHECK(s.rows <= kMost && s.pieces <= kMost && s.items <= kMost, s.rows, " rows of ", s.pieces, " pieces, ",
              s.items, " items");
  const int64_t columns = ceil_div(s.pieces, kConvThreads);
  const auto blocks = [&](int rows) { return columns * ceil_div(s.rows, rows); };
  ConvPlan plan;
  plan.rows = kMaxConvRows;
  while (plan.rows > kMinRows && blocks(plan.rows) < int64_t{kBlocksPerSm} * s.sms) plan.rows /= 2;
  // Where steps are short a thread would wait for one window after another.
  while (plan.rows > kMinRows && plan.rows * s.items > 4 * s.rows) plan.rows /= 2;
  const auto items = static_cast<uint64_t>(ceil_div(s.items, std::max<int64_t>(s.chains, 1)) + 1);  // and the end
  plan.edge_items = static_cast<int>(std::min<uint64_t>(std::bit_ceil(items), kMaxEdgeThreads / kMinEdgePieces));
  plan.edge_pieces = std::max(kEdgeThreads / plan.edge_items, kMinEdgePieces);
  return plan;
}

}  // namespace hypic::cuda
