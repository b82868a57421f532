#include "kernels/linear_attention/chunked_plan.h"

#include <algorithm>
#include <cstdint>

#include "core/check.h"

namespace hypic::cuda {
namespace {

constexpr int ceil_of(int a, int b) { return (a + b - 1) / b; }

// A number of works or blocks: an int, also rounded up.
int counted(int64_t count) {
  HYPIC_CHECK(count <= 1 << 30, count, " blocks");
  return static_cast<int>(count);
}

constexpr int kPrepareBlocks = 3;  // of `prepare` that an SM holds

struct Width {
  int columns;
  // Of a work of some chunks, relative, as measured on an H200: of a chain; of an op step, with a dense T and without.
  int chain, dense_op, op;
};
// A multiprocessor holds one block, for its ring of chunks fills the shared memory. The fewer columns, the more a
// column costs: the operands have to come in, and one product waits for another.
constexpr Width kWidths[] = {{128, 190, 90, 90}, {64, 100, 75, 75}};

}  // namespace

WalkPlan plan_walk(int sms, int chains, int op_steps, int heads, int dk, int dv, bool dense) {
  WalkPlan best{};
  int64_t best_time = INT64_MAX;
  for (const Width& width : kWidths) {
    const int columns = width.columns;
    WalkPlan plan{.columns = columns, .v_parts = ceil_of(dv, columns), .t_parts = dense ? ceil_of(dk, columns) : 0};
    const int64_t chain_works = int64_t{chains} * heads * plan.v_parts;
    const int64_t op_works = int64_t{op_steps} * heads * (plan.v_parts + plan.t_parts);
    counted(chain_works + op_works);
    plan.chain_works = counted(chain_works);
    plan.op_works = counted(op_works);
    plan.blocks = std::min(plan.works(), sms);
    if (plan.works() == 0) return plan;
    // A block takes as many works as any, of either kind.
    const int64_t all =
        int64_t{plan.chain_works} * width.chain + int64_t{plan.op_works} * (dense ? width.dense_op : width.op);
    const int64_t time =
        std::max(all / plan.works() * ceil_of(plan.works(), sms), int64_t{plan.chain_works > 0 ? width.chain : 0});
    if (time >= best_time) continue;
    best = plan;
    best_time = time;
  }
  return best;
}

JumpsPlan plan_jumps(int chains, int heads, int dv, bool dense) {
  const int parts = ceil_of(dv, kJumpsColumns);
  return {
      .parts = parts,
      .cluster = dense && parts % 2 == 0 ? 2 : 1,  // clusters of 4 do not fill all GPUs: 132 SMs are in uneven groups
      .blocks = counted(int64_t{chains} * heads * parts)};
}

int plan_prepare_heads(int sms, int chunks, int Hk, int Hv) {
  const int group = Hv / Hk;
  for (int heads = group; heads > 1; --heads)
    if (group % heads == 0 && int64_t{chunks} * (Hv / heads) >= int64_t{kPrepareBlocks} * sms) return heads;
  return 1;
}

int plan_prepare_beside(int sms, int walk_blocks, int chunks, int Hk, int Hv) {
  const int spare = sms - walk_blocks;
  if (walk_blocks <= 0 || 2 * spare < sms || int64_t{chunks} * Hk < int64_t{kPrepareBlocks} * sms) return 0;
  return Hv > Hk ? spare * 3 / 4 : spare;  // more than keeps ahead takes bandwidth from `walk`
}

}  // namespace hypic::cuda
