// A report as files: report.json, report.html, report.md, junit.xml.
#pragma once

#include <string>
#include <string_view>

#include "reports/report.h"

namespace hypic {

// Writes all four into dir, which is made if missing; each file is replaced whole or not at all.
// Throws Error.
void write_report(const Report& report, const std::string& dir);

// Reads a report.json back. A broken file gives one Error line with path, place and reason.
Report read_report(const std::string& path);

// The same as text. `where` names the text in errors. NaN and the infinities are written as
// strings.
std::string to_json(const Report& report);
Report report_from_json(std::string_view text, const std::string& where);

// One result on one line, for ResultLog.
std::string to_json(const Result& result);
Result result_from_json(std::string_view text, const std::string& where);

// One self-contained page: charts are inline SVG, nothing is fetched, there is no script.
std::string to_html(const Report& report);
std::string to_markdown(const Report& report);
std::string to_junit(const Report& report);

}  // namespace hypic
