#include "reference/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>

namespace hypic::reference {
namespace {

// The number behind `key` in lines "key number"; with an empty key that of a file of its own. Nothing for "max".
std::optional<size_t> number(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  std::string word, rest;
  while (key.empty() ? static_cast<bool>(std::getline(file, rest)) : file >> word && std::getline(file, rest))
    if (word == key && rest.find_first_of("0123456789") != std::string::npos)
      return std::strtoull(rest.c_str(), nullptr, 10);
  return std::nullopt;
}

size_t left_in_group(const std::string& folder) {
  const auto limit = number(folder + "/memory.max"), used = number(folder + "/memory.current");
  if (!limit || !used) return SIZE_MAX;
  // Pages of files that nothing has touched lately go first.
  const size_t kept = *used - std::min(*used, number(folder + "/memory.stat", "inactive_file").value_or(0));
  return *limit - std::min(*limit, kept);
}

}  // namespace

size_t available_memory(const std::string& root) {
  const auto meminfo = number(root + "/proc/meminfo", "MemAvailable:");
  size_t available = meminfo ? *meminfo * 1024 : SIZE_MAX;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;
    const std::string top = root + "/sys/fs/cgroup";
    for (std::string path = line.substr(3);; path.resize(path.rfind('/'))) {
      available = std::min(available, left_in_group(top + path));
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return available;
}

}  // namespace hypic::reference
