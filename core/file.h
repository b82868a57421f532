// Reading untrusted files whole.
#pragma once

#include <cstddef>
#include <string>

namespace hypic {

// The bytes of a regular file. Error: missing, not a regular file (a pipe would block), larger than
// `max_bytes`, unreadable.
std::string read_file(const std::string& path, size_t max_bytes);

}  // namespace hypic
