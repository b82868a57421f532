// Backends by name.
#pragma once

#include <memory>
#include <string>

#include "core/backend.h"

namespace hypic {

// "cpu" (float32), "cpu64" (float64), "cuda" (bfloat16), "cuda32" (float32 operands), or "broken:FAULT": cpu with one operation wrong on purpose
// (harness/cases/broken.h). Error: an unknown name, with those there are.
std::unique_ptr<Backend> make_backend(const std::string& name);

}  // namespace hypic
