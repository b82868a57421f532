#include "kernels/linear_attention/elementwise_plan.h"

#include <cstdint>

namespace hypic::cuda {

EntryPlan plan_entries(int sms, int chains, int heads, int dv) {
  EntryPlan plan{.parts = (dv + kEntryChannels - 1) / kEntryChannels, .keys = 2};
  // Two entries a thread take fewer instructions; with one there are two warps to a scheduler where a multiprocessor
  // has but one block.
  if (int64_t{chains} * heads * plan.parts < 2 * int64_t{sms}) plan.keys = 1;
  return plan;
}

}  // namespace hypic::cuda
