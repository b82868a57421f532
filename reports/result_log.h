// Results as they come, one JSON line each, so that a stopped run loses none and can resume.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/line_log.h"
#include "reports/report.h"

namespace hypic {

// Owns dir/results.jsonl; a second log on the same directory is refused while this one lives.
class ResultLog {
 public:
  // Makes dir if missing; reads what an earlier run finished, or begins anew where that is not to be kept. Error: as
  // LineLog.
  explicit ResultLog(const std::string& dir, bool keep = true);

  // What earlier runs and this one finished, in order.
  const std::vector<Result>& finished() const { return finished_; }

  // On disk when it returns. A failed append leaves the file as it was. Throws Error.
  void append(const Result& result);

 private:
  std::vector<Result> finished_;
  std::optional<LineLog> lines_;
};

}  // namespace hypic
