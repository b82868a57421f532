// Lightning attention: one constant decay a head; Ring-linear and MiniMax split its prefill.
#include "harness/cases/faults.h"

namespace hypic::conformance {

FamilyCase lightning_case() {
  return {.family = Family::lightning,
          .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12},
          .faults = {{"fault_13_chunked_prefill", chunked_prefill}}};
}

}  // namespace hypic::conformance
