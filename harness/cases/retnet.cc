// RetNet: one constant decay a head.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase retnet_case() {
  return {.family = Family::retnet, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
