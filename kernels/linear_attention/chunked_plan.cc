#include "kernels/linear_attention/chunked_plan.h"

#include <algorithm>
#include <cstdint>

namespace hypic::cuda {
namespace {

constexpr int ceil_of(int a, int b) { return (a + b - 1) / b; }

constexpr int kPrepareBlocks = 3;  // of `prepare` that an SM holds

struct Width {
  int columns;
  int time;  // of a chunk, relative
};
// A multiprocessor holds one block, for its ring of chunks fills the shared memory. Fewer columns
// take no less time: the operands have to come in, and one product waits for another.
constexpr Width kWidths[] = {{128, 17}, {64, 10}};

}  // namespace

WalkPlan plan_walk(int sms, int chains, int op_steps, int heads, int dk, int dv, bool dense) {
  WalkPlan best{};
  int64_t best_time = INT64_MAX;
  for (const auto [columns, time] : kWidths) {
    WalkPlan plan{.columns = columns, .v_parts = ceil_of(dv, columns), .t_parts = dense ? ceil_of(dk, columns) : 0};
    plan.chain_works = chains * heads * plan.v_parts;
    plan.op_works = op_steps * heads * (plan.v_parts + plan.t_parts);
    plan.blocks = std::min(plan.works(), sms);
    const int64_t total = int64_t{ceil_of(plan.works(), sms)} * time;
    if (total >= best_time) continue;
    best = plan;
    best_time = total;
  }
  return best;
}

JumpsPlan plan_jumps(int chains, int heads, int dv, bool dense) {
  const int parts = ceil_of(dv, kJumpsColumns);
  return {
      .parts = parts,
      .cluster = dense && parts % 2 == 0 ? 2 : 1,  // clusters of 4 do not fill all GPUs: 132 SMs are in uneven groups
      .blocks = chains * heads * parts};
}

int plan_prepare_heads(int sms, int chunks, int Hk, int Hv) {
  const int group = Hv / Hk;
  for (int heads = group; heads > 1; --heads)
    if (group % heads == 0 && chunks * (Hv / heads) >= kPrepareBlocks * sms) return heads;
  return 1;
}

}  // namespace hypic::cuda
