// How much memory the machine, or the container that this runs in, still has.
#pragma once

#include <cstddef>
#include <string>

namespace hypic::reference {

// Bytes: the least of MemAvailable of /proc/meminfo and, of each control group (cgroup v2) that the process is in, its
// limit less what is in use and cannot be given back. SIZE_MAX where neither is known. `root` stands before the paths,
// for tests. Linux promises memory that it does not have; this is what is really there.
size_t available_memory(const std::string& root = "");

}  // namespace hypic::reference
