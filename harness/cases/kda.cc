// Kimi Delta Attention: one gate a key dimension inside the delta rule.
#include "harness/cases/faults.h"

namespace hypic::conformance {

FamilyCase kda_case() {
  return {.family = Family::kda,
          .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12},
          .faults = {{"fault_01_strong_gates", strong_gates},
                     {"fault_02_unit_decay", unit_decay},
                     {"fault_03_nearly_equal_keys", nearly_equal_keys},
                     {"fault_04_exponent_clamp", exponent_clamp},
                     {"fault_05_partial_chunk", partial_chunk},
                     {"fault_09_head_sizes", head_sizes},
                     {"fault_15_large_state", large_state}}};
}

}  // namespace hypic::conformance
