// Gated DeltaNet-2: erase and write gates of their own.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase gdn2_case() {
  return {.family = Family::gdn2, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
