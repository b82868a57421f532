// mLSTM: values [v | 1], a bounded quotient as readout.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase mlstm_case() {
  return {.family = Family::mlstm, .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12}};
}

}  // namespace hypic::conformance
