// The CPU backends: `cpu` computes in float32, `cpu64` in float64, from the same template. Both give a row
// the same bits alone and in any batch, so whole = chunked = token by token.
#pragma once

#include <memory>
#include <vector>

#include "core/backend.h"

namespace hypic::reference {

std::unique_ptr<Backend> make_cpu_backend();
std::unique_ptr<Backend> make_cpu64_backend();

// The ranks of a tensor-parallel group, each for a thread of its own. all_reduce sums in the order of ranks.
std::vector<std::unique_ptr<Backend>> make_cpu_ranks(int ranks);
std::vector<std::unique_ptr<Backend>> make_cpu64_ranks(int ranks);

}  // namespace hypic::reference
