// RWKV-6: reads before it writes, with a bonus for the current token.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase rwkv6_case() {
  return {.family = Family::rwkv6, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
