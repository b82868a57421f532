// What the tests of datasets/ share.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace hypic {

inline constexpr const char* kNoSharedData =
    "no ../shared/data; set HYPIC_SHARED to the folder that holds data";

// The folder shared/data, which a clone need not have; empty if absent.
inline std::string shared_data() {
  const char* shared = std::getenv("HYPIC_SHARED");
  const auto path = std::filesystem::path(shared ? shared : "../shared") / "data";
  return std::filesystem::is_directory(path) ? path.string() : "";
}

inline std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

}  // namespace hypic
