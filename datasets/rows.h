// The rows of a JSON or text file, one after another, in bounded memory.
#pragma once

#include <cstddef>
#include <fstream>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace hypic {

inline constexpr size_t kMaxRowBytes = size_t{64} << 20;

// Reads JSON Lines, values over several lines, the elements of one array, or those of the array
// "Data" that a file starts with. Every member throws Error, with the path and where known the
// line: for a file that cannot be read, a row that is not valid JSON or over kMaxRowBytes, an array
// that does not end.
class RowReader {
 public:
  explicit RowReader(const std::string& path);  // "-" is standard input

  // Whether the file, of which nothing has been read, starts with `text` (under 64 KiB).
  bool starts_with(std::string_view text);
  // The next value; false at the end of the file.
  bool next(nlohmann::json& row);
  // The next line without its end; false at the end of the file. Not to be mixed with next().
  bool next_line(std::string& text);

  // "path:line" of what was read last, for messages.
  std::string where() const;

 private:
  bool next_text(std::string& text);
  int peek();
  int get();
  int skip_space();
  void append(std::string& text);

  std::string path_;
  std::ifstream file_;
  std::istream* in_;
  std::unique_ptr<char[]> buffer_;
  size_t at_ = 0, size_ = 0;
  int line_ = 1, row_line_ = 0;
  enum class In { start, lines, array, after } in_what_ = In::start;
};

}  // namespace hypic
