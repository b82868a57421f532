// Gated DeltaProduct: three rows of the table a token.
#include "harness/cases/family_case.h"

namespace hypic::conformance {

FamilyCase gated_delta_product_case() {
  return {.family = Family::gated_delta_product,
          .dims = {.Hk = 2, .Hv = 4, .dk = 8, .dv = 12, .extra = 3}};
}

}  // namespace hypic::conformance
