// Linear attention: no decay, values [v | 1], a quotient as readout.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase linear_case() {
  return {.family = Family::linear, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
