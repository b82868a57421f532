#include "core/family.h"

#include "core/check.h"

namespace hypic {

std::string_view name_of(Decay decay) {
  constexpr std::string_view names[] = {"none", "scalar", "diagonal", "elementwise"};
  return names[static_cast<int>(decay)];
}

std::string_view name_of(Update update) {
  constexpr std::string_view names[] = {"add", "delta", "delta_before", "nonlinear"};
  return names[static_cast<int>(update)];
}

std::string_view name_of(Readout readout) {
  constexpr std::string_view names[] = {"plain", "bonus", "normalised", "bounded", "softmax"};
  return names[static_cast<int>(readout)];
}

const FamilyTraits& family_named(std::string_view name) {
  std::string known;
  for (const FamilyTraits& family : kFamilies) {
    if (family.name == name) return family;
    known += str(known.empty() ? "" : ", ", family.name);
  }
  fail("unknown family \"", name, "\"; known: ", known);
}

}  // namespace hypic
