// Gated Slot Attention: six slots, a softmax over them as readout.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase gsa_case() {
  return {.family = Family::gsa, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12, .extra = 6}};
}

}  // namespace hypic::conformance
