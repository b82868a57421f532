// Results as they come, one JSON line each, so that a stopped run loses none and can resume.
#pragma once

#include <string>
#include <vector>

#include "reports/report.h"

namespace hypic {

// Owns dir/results.jsonl; a second log on the same directory is refused while this one lives.
class ResultLog {
 public:
  // Makes dir and the file if missing and reads what an earlier run finished, or empties the file
  // where that is not to be kept. A last line without its line end was cut when that run died: it
  // is dropped from the file. Throws Error for any other line that is not as append left it, and
  // while another log lives in dir.
  explicit ResultLog(const std::string& dir, bool keep = true);
  ~ResultLog();
  ResultLog(const ResultLog&) = delete;
  ResultLog& operator=(const ResultLog&) = delete;

  // What earlier runs and this one finished, in order.
  const std::vector<Result>& finished() const { return finished_; }

  // On disk when it returns. A failed append leaves the file as it was. Throws Error.
  void append(const Result& result);

 private:
  std::string path_;
  int file_ = -1;
  std::vector<Result> finished_;
  std::size_t size_ = 0;  // bytes of whole lines
};

}  // namespace hypic
