#include "kernels/ops/experts_plan.h"

#include <algorithm>
#include <cmath>

namespace hypic::cuda {
namespace {

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

  // The rows of an expert scatter by about √mean: the smallest tile that takes nearly every expert whole.
  while (plan.tile + 1 < kExpertsTileCount && mean + 2 * std::sqrt(mean) > kExpertsTiles[plan.tile].rows) ++plan.tile;
  // Few experts: smaller tiles rather than idle SMs.
  const auto work = [&](const ExpertsTile& t) {
    return touched * ceil_of(static_cast<int64_t>(std::ceil(mean)), t.rows) * ceil_of(up_columns, t.columns);
  };
  while (plan.tile > 0 && work(kExpertsTiles[plan.tile]) < sms) --plan.tile;

  const ExpertsTile& tile = kExpertsTiles[plan.tile];
  plan.max_tiles = static_cast<int>((P + touched * (tile.rows - 1)) / tile.rows);
  plan.up_column_tiles = static_cast<int>(ceil_of(I, gated ? tile.columns / 2 : tile.columns));
  plan.down_column_tiles = static_cast<int>(ceil_of(N, tile.columns));
  const int64_t resident = int64_t{sms} * tile.blocks_per_sm;
  plan.up_blocks = static_cast<int>(std::min(resident, int64_t{plan.max_tiles} * plan.up_column_tiles));
  plan.down_blocks = static_cast<int>(std::min(resident, int64_t{plan.max_tiles} * plan.down_column_tiles));

  const auto add = [&](int64_t bytes) {
    const size_t at = plan.bytes;
    plan.bytes += static_cast<size_t>(ceil_of(bytes, 256) * 256);
    return at;
  };
  plan.tiles = add(int64_t{plan.max_tiles} * 16);
  plan.count = add(4);
  plan.pairs = add(P * 4);
  plan.weights = add(P * 4);
  plan.inner = add(P * I * 2);
  plan.outputs = add(P * N * 2);
  return plan;
}

}  // namespace hypic::cuda
