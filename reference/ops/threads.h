// Loops over independent indices on all cores.
#pragma once

#include <cstdint>
#include <functional>

namespace hypic::reference {

// body(i) for i in [0, count), in any order; one after another where `multiplications`, those of the whole
// loop, are too few for threads to pay. An exception of a body reaches the caller.
void parallel_for(int64_t count, int64_t multiplications, const std::function<void(int64_t)>& body);

}  // namespace hypic::reference
