// HGRN2: the forget gate makes the key.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase hgrn2_case() {
  return {.family = Family::hgrn2, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
