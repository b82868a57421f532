// DeltaNet: the delta rule without decay.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase delta_net_case() {
  return {.family = Family::delta_net, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
