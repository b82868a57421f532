// When threads pay. Starting a parallel region costs some microseconds, far more on a busy machine.
#pragma once

#include <cstdint>

namespace hypic::reference {

constexpr bool worth_threads(int64_t multiplications) { return multiplications > 200'000; }

}  // namespace hypic::reference
