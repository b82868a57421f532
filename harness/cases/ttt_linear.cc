// TTT-Linear has no cell: its update is nonlinear in the state.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase ttt_linear_case() {
  return {.family = Family::ttt_linear,
          .no_cell = "its update is nonlinear in the state, so the table has no cell for it"};
}

}  // namespace hypic::conformance
