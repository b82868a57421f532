// A file of JSON objects, one a line, that grows while a run goes on and outlives it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace hypic {

// The JSON that LineLog wrote as this line, without its line end. Error: it is not as append left it.
std::string unsealed(std::string_view line);

// Each line has the digest of its JSON as the first field, so that a file that was edited or damaged on the disk is
// not taken for a measurement. Owns the file; a second log on it is refused while this one lives.
class LineLog {
 public:
  // Makes the file if missing and gives `read` what an earlier run left, or empties it where that is not to be kept. A
  // last line without its line end was cut when that run died: it is dropped from the file. Throws Error for any other
  // line that is not as append left it or that `read` refuses, and while another log lives on the file.
  LineLog(const std::string& path, bool keep, std::size_t max_bytes,
          const std::function<void(const std::string& json)>& read);
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  // On disk when it returns, all of them; a failed append leaves the file as it was. Throws Error.
  void append(const std::vector<std::string>& jsons);

 private:
  std::string path_;
  std::size_t max_bytes_;
  int file_ = -1;
  std::size_t size_ = 0;  // bytes of whole lines
};

}  // namespace hypic
