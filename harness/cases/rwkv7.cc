// RWKV-7: the removed key is a tensor of its own and reads the undecayed state.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase rwkv7_case() {
  return {.family = Family::rwkv7, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
