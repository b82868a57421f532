#include "kernels/linear_attention/chunked_step_plan.h"

#include <cstdint>

namespace hypic::cuda {

int plan_step_columns(int sms, int rows, int heads, int dv) {
  // Longer pieces of a row come nearer to what memory gives, but not where blocks are few, or a head has but one.
  return dv >= 128 && int64_t{rows} * heads * ((dv + 63) / 64) >= 6 * int64_t{sms} ? 64 : 32;
}

}  // namespace hypic::cuda
