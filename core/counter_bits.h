// Random bits from a counter: the same wherever and in whatever order they are drawn.
#pragma once

#include <cstdint>

namespace hypic {

// SplitMix64's output function (Steele, Lea, Flood, OOPSLA 2014).
constexpr uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// The n-th number of a stream, in (0, 1).
constexpr double uniform(uint64_t stream, uint64_t n) {
  return (static_cast<double>(mix(stream + n) >> 11) + 0.5) * 0x1p-53;
}

}  // namespace hypic
