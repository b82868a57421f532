// Gated Oja rule: the table holds the transposed state.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase gated_oja_case() {
  return {.family = Family::gated_oja, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
