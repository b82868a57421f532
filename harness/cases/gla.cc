// GLA: one gate a key dimension.
#include "harness/cases/faults.h"

namespace hypic::conformance {

FamilyCase gla_case() {
  return {
      .family = Family::gla,
      .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12},
      .faults = {{"fault_05_partial_chunk", partial_chunk}, {"fault_15_large_state", large_state}}};
}

}  // namespace hypic::conformance
