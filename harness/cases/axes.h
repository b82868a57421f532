// Names of the axes of a family's inputs: sizes that nothing else has tell which axis is which.
#pragma once

#include <cstdint>

#include "reference/families/family.h"

namespace hypic::conformance {

inline constexpr reference::Dims kSymbols{.T = 1009, .Hk = 1013, .Hv = 1019, .dk = 1021, .dv = 1031, .extra = 1033};

struct Axis {
  const char* name;
  int64_t reference::Dims::*size;
};
inline constexpr Axis kAxes[] = {{"T", &reference::Dims::T},   {"Hk", &reference::Dims::Hk},
                                 {"Hv", &reference::Dims::Hv}, {"dk", &reference::Dims::dk},
                                 {"dv", &reference::Dims::dv}, {"m", &reference::Dims::extra}};

// The axis of a size of kSymbols.
inline const Axis& axis_of(int64_t symbol) {
  for (const Axis& axis : kAxes)
    if (kSymbols.*axis.size == symbol) return axis;
  HYPIC_CHECK(false, symbol);
}

}  // namespace hypic::conformance
