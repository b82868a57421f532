// Mamba: a decay for every entry of the state.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase mamba1_case() {
  return {.family = Family::mamba1, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
