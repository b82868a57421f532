#include "kernels/ops/experts_plan.h"

#include <algorithm>
#include <cmath>

namespace hypic::cuda {
namespace {

using Wide = ExpertsWideTile;

constexpr int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

ExpertsPlan plan_experts(int sms, int64_t R, int k, int E, int N, int I, bool gated) {
  ExpertsPlan plan{};
  const int64_t row_bytes = int64_t{k} * (N + I) * 2;
  const int64_t passes = ceil_of(R, std::max<int64_t>(1, kExpertsScratch / row_bytes));
  plan.pass_rows = ceil_of(R, passes);
  const int64_t P = plan.pass_rows * k, touched = std::min<int64_t>(E, P);
  const double mean = static_cast<double>(P) / static_cast<double>(touched);
  const int64_t up_columns = gated ? 2 * I : I;

  // The rows of an expert scatter by about √mean: the smallest tile that takes nearly every expert whole; the
  // largest one in two where need be, for the wide one pays only from half as many again.
  int tile = 0;
  const double most = mean + 2 * std::sqrt(mean);
  while (tile < kExpertsTileCount && most > kExpertsTiles[tile].rows * (tile + 1 < kExpertsTileCount ? 1 : 1.5)) ++tile;
  // Few experts: smaller tiles rather than idle SMs.
  const auto blocks = [&](int t) {
    const bool wide = t == kExpertsTileCount;
    const int64_t rows = wide ? Wide::kRows : kExpertsTiles[t].rows;
    const int64_t columns = wide ? Wide::kColumns : kExpertsTiles[t].columns;
    return touched * ceil_of(static_cast<int64_t>(std::ceil(mean)), rows) * ceil_of(up_columns, columns) *
           (wide ? 2 : 1);
  };
  while (tile > 0 && blocks(tile) < sms) --tile;
  if (tile == kExpertsTileCount && sms < 2) --tile;  // the wide one takes two SMs at a time

  plan.wide = tile == kExpertsTileCount;
  plan.tile = plan.wide ? 0 : tile;
  plan.tile_rows = plan.wide ? Wide::kRows : kExpertsTiles[tile].rows;
  const int columns = plan.wide ? Wide::kColumns : kExpertsTiles[tile].columns;
  plan.max_tiles = static_cast<int>((P + touched * (plan.tile_rows - 1)) / plan.tile_rows);
  plan.up_column_tiles = static_cast<int>(ceil_of(up_columns, columns));
  plan.down_column_tiles = static_cast<int>(ceil_of(N, columns));
  const auto grid = [&](int column_tiles) {
    const int64_t work = int64_t{plan.max_tiles} * column_tiles;
    return static_cast<int>(plan.wide ? 2 * std::min<int64_t>(sms / 2, work)
                                      : std::min<int64_t>(int64_t{sms} * kExpertsTiles[tile].blocks_per_sm, work));
  };
  plan.up_blocks = grid(plan.up_column_tiles);
  plan.down_blocks = grid(plan.down_column_tiles);

  // A block of the sort reads what all counted, so they are not too many.
  constexpr int64_t kSortBlocks = 64;
  plan.sort_pairs = static_cast<int>(ceil_of(P, kSortBlocks * kExpertsSortThreads) * kExpertsSortThreads);

  const auto add = [&](int64_t bytes) {
    const size_t at = plan.bytes;
    plan.bytes += static_cast<size_t>(ceil_of(bytes, 256) * 256);
    return at;
  };
  plan.counts = add(ceil_of(P, plan.sort_pairs) * E * 4);
  plan.tiles = add(int64_t{plan.max_tiles} * 16);
  plan.tile_count = add(4);
  plan.pairs = add(P * 4);
  plan.inner = add(P * I * 2);
  plan.outputs = add(P * N * 2);
  return plan;
}

}  // namespace hypic::cuda
