// How far a tensor is from its oracle, and how far it may be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/measure/tolerance.h"
#include "reference/families/array.h"

namespace hypic::conformance {

using reference::Array;

// Errors of single elements are about normal: none exceeds this many times the RMS.
inline constexpr double kMaxOverRms = 8;

// An ill-conditioned result may differ by this many times what the oracle itself moves when every
// input is rounded once in the state dtype (and, where the readout is a quotient of sums that may
// cancel, the state once a token).
inline constexpr double kRoundings = 8;

struct Comparison {
  double rms = 0;      // the group with the largest rms / bound
  double bound = 0;    // of that group
  double max_abs = 0;  // over all
  double cosine = 1;   // the smallest of a group
  std::string wrong;   // empty where it holds; else the first bad coordinate and why
};

// Groups are the indices of `axis` (−1: all elements are one). bounds: one a group, or one for all.
// floors: a group's error is relative to no less than this (empty: 0).
// NaN and infinities must stand at the same places.
Comparison compare(const Array& got, const Array& want, int axis, const std::vector<double>& bounds,
                   const std::vector<double>& floors = {});

// By group: the RMS error ratio of `moved` to `want`.
std::vector<double> group_errors(const Array& moved, const Array& want, int axis,
                                 const std::vector<double>& floors = {});

// Empty where both hold the same bits (any NaN equals any other), else the first difference.
std::string first_difference(const Array& got, const Array& want);

// "[3, 0, 17]"
std::string coordinate(const Array& x, int64_t element);

}  // namespace hypic::conformance
