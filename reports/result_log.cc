#include "reports/result_log.h"

#include <filesystem>

#include "core/check.h"
#include "reports/text.h"
#include "reports/write.h"

namespace hypic {

ResultLog::ResultLog(const std::string& dir, bool keep) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  require(!error, dir, ": cannot make the directory: ", error.message());
  lines_.emplace(dir + "/results.jsonl", keep, kMaxReportBytes,
                 [&](const std::string& json) { finished_.push_back(result_from_json(json, "not a result")); });
}

void ResultLog::append(const Result& result) {
  lines_->append({to_json(result)});
  finished_.push_back(result);
}

}  // namespace hypic
