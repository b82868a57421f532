#include "harness/assets.h"

#include <filesystem>

namespace hypic {

std::string asset(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path;
  const std::string built_from = std::string(HYPIC_SOURCE_DIR) + "/" + path;
  return std::filesystem::exists(built_from, error) ? built_from : path;
}

}  // namespace hypic
