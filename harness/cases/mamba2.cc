// Mamba-2: one decay a head and token, keys shared by groups of heads.
#include "harness/cases/faults.h"

namespace hypic::conformance {

FamilyCase mamba2_case() {
  return {.family = Family::mamba2,
          .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12},
          .faults = {{"fault_13_chunked_prefill", chunked_prefill}}};
}

}  // namespace hypic::conformance
