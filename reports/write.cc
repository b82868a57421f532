#include "reports/write.h"

#include <filesystem>

#include "core/check.h"
#include "core/file.h"
#include "reports/text.h"

namespace hypic {

void write_report(const Report& report, const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  require(!error, dir, ": cannot make the directory: ", error.message());
  write_file_atomically(dir + "/report.json", to_json(report));
  write_file_atomically(dir + "/report.html", to_html(report));
  write_file_atomically(dir + "/report.md", to_markdown(report));
  write_file_atomically(dir + "/junit.xml", to_junit(report));
}

Report read_report(const std::string& path) { return report_from_json(read_file(path, kMaxReportBytes), path); }

}  // namespace hypic
