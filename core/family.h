// The families of families.def as an enum with their place in the table.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace hypic {

enum class Decay { none, scalar, diagonal, elementwise };
enum class Update { add, delta, delta_before, nonlinear };
enum class Readout { plain, bonus, normalised, bounded, softmax };
enum class Side { key, value };

enum class Family {
#define HYPIC_FAMILY(name, ...) name,
#include "core/families.def"
#undef HYPIC_FAMILY
};

struct FamilyTraits {
  Family family;
  std::string_view name;
  Decay decay;
  Update update;
  Readout readout;
  Side side;
  bool relocatable;
};

inline constexpr std::array kFamilies = {
#define HYPIC_FAMILY(name, decay, update, readout, side, relocatable)                         \
  FamilyTraits{Family::name,    #name,      Decay::decay, Update::update, Readout::readout, \
               Side::side, relocatable},
#include "core/families.def"
#undef HYPIC_FAMILY
};

constexpr const FamilyTraits& traits(Family family) {
  return kFamilies[static_cast<size_t>(family)];
}

// "none", "scalar", …
std::string_view name_of(Decay decay);
std::string_view name_of(Update update);
std::string_view name_of(Readout readout);

// The traits of a family by name; an Error that lists the known names otherwise.
const FamilyTraits& family_named(std::string_view name);

}  // namespace hypic
