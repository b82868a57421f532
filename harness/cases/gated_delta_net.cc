// Gated DeltaNet: most of the reported faults were found in its kernels.
#include "harness/cases/faults.h"

namespace hypic::conformance {

FamilyCase gated_delta_net_case() {
  return {.family = Family::gated_delta_net,
          .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12},
          .faults = {{"fault_01_strong_gates", strong_gates},
                     {"fault_02_unit_decay", unit_decay},
                     {"fault_03_nearly_equal_keys", nearly_equal_keys},
                     {"fault_05_partial_chunk", partial_chunk},
                     {"fault_06_state_layout", state_layout},
                     {"fault_07_empty_chains", empty_chains},
                     {"fault_08_ragged_tails", ragged_tails},
                     {"fault_09_head_sizes", head_sizes},
                     {"fault_10_determinism", determinism},
                     {"fault_15_large_state", large_state}}};
}

}  // namespace hypic::conformance
