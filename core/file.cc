#include "core/file.h"

#include <filesystem>
#include <fstream>

#include "core/check.h"

namespace hypic {

std::string read_file(const std::string& path, size_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  require(std::filesystem::exists(status), path, ": no such file");
  require(std::filesystem::is_regular_file(status), path, ": not a regular file");
  const auto bytes = std::filesystem::file_size(path, error);
  require(!error, path, ": cannot read: ", error.message());
  require(bytes <= max_bytes, path, ": too large: ", bytes, " bytes, at most ", max_bytes);
  std::ifstream file(path, std::ios::binary);
  require(file.good(), path, ": cannot open; check that it is readable");
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<size_t>(file.gcount()));  // a file may shrink or, in /proc, have no size
  return text;
}

}  // namespace hypic
