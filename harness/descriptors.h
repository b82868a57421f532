// How many files and sockets this process may have open.
#pragma once

#include <cstdint>

namespace hypic {

// Raises the limit to `wanted` as far as this user may; shells often start with a lower one. What it is afterwards.
int64_t raise_descriptors(int64_t wanted);

}  // namespace hypic
