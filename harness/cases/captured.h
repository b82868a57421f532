// Activations that somebody captured from a model, as a case: a backend runs on them against the
// definition of their family.
#pragma once

#include <string>

#include "harness/cases/case.h"

namespace hypic::conformance {

// A safetensors file with the family's inputs by the letters of its definition (`hypic conformance
// --list` prints them with their shapes), and optionally S0, the state before; o and S, what
// another implementation made of them, which are then held to the definition too. Error: one line
// that says which tensor is missing, unknown or of the wrong shape.
Case captured_case(const std::string& path, const std::string& family);

// "q [T, Hk, dk], k [T, Hk, dk], …"
std::string captured_inputs(const FamilyTraits& family);

}  // namespace hypic::conformance
