// The CPU backends: `cpu` computes in float32, `cpu64` in float64, from the same template. Both give a row
// the same bits alone and in any batch, so whole = chunked = token by token.
#pragma once

#include <memory>

#include "core/backend.h"

namespace hypic::reference {

std::unique_ptr<Backend> make_cpu_backend();
std::unique_ptr<Backend> make_cpu64_backend();

}  // namespace hypic::reference
