// Comba: the correction reads the undecayed state, D − a bᵀ.
#include "harness/cases/faults.h"

namespace hypic::conformance {

FamilyCase comba_case() {
  return {.family = Family::comba,
          .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12},
          .faults = {{"fault_01_strong_gates", strong_gates}, {"fault_02_unit_decay", unit_decay}}};
}

}  // namespace hypic::conformance
