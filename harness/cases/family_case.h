// The cases of the linear-attention families. Each family has a twin harness/cases/NAME.cc that
// says in which shape it is tried and which reported faults aim at it; what every family is held to
// is in family_case.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/cases/case.h"
#include "reference/families/family.h"

namespace hypic::conformance {

using reference::Dims;
using reference::FamilyReference;

// A reported fault (docs/conformance.md, "Reported faults") as a case of one family.
struct Fault {
  const char* name;  // "fault_04_exponent_clamp"
  void (*run)(Context& context, const FamilyReference& family);
};

struct FamilyCase {
  Family family;
  Dims dims;  // small, with grouped heads and d_k ≠ d_v where the family has them; T is not used
  std::vector<Fault> faults = {};
  std::string no_cell = {};  // why the family is no cell of the table; it then has no cases
};

// linear_case(), retnet_case(), …: one for every line of families.def.
#define HYPIC_FAMILY(name, ...) FamilyCase name##_case();
#include "core/families.def"
#undef HYPIC_FAMILY

FamilyCase case_of(Family family);

std::vector<Case> family_cases();

}  // namespace hypic::conformance
