// Memory that backends of several processes map: a file without a name (memfd), which goes with the last of them.
#pragma once

#include <memory>
#include <string>

#include "core/shared_memory.h"

namespace hypic::reference {

// OutOfMemory. Pages are there once they are written.
std::unique_ptr<SharedMemory> share_memory(int64_t bytes);
// Error: no memory of ours, its process has ended, is of another user, or is not to be seen from here.
std::unique_ptr<SharedMemory> open_shared_memory(const std::string& handle);
// They copy at once.
std::unique_ptr<Copies> make_copies();

}  // namespace hypic::reference
