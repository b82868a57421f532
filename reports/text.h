// Text helpers shared by the writers: numbers for people, escapes, files.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "reports/report.h"

namespace hypic {

// No report, log or line beyond this is written or read.
inline constexpr std::size_t kMaxReportBytes = 64u << 20;

// A number for people: 0, 1536, 0.25, 3.1e-16, nan, inf, -inf. Free of the locale.
std::string format_number(double value, Format format = Format::compact, int digits = 1);
// All digits that matter: reading it back gives the same number.
std::string format_exact(double value);
// A cell's text, whatever it holds.
std::string cell_text(const Cell& cell);

// Valid UTF-8 that XML 1.0 allows: broken sequences become U+FFFD; control characters other than
// tab and line ends are dropped.
std::string clean_text(std::string_view text);
// clean_text with & < > " ' escaped: safe as XML or HTML text and in quoted attributes.
std::string escape_xml(std::string_view text);
// Cleaned, on one line, cut to at most `limit` bytes (plus an ellipsis) between characters.
std::string one_line(std::string_view text, std::size_t limit = kMaxReportBytes);

// Writes beside the path, then renames, so that a reader sees the old or the new file, never half
// of one. Throws Error.
void write_file_atomically(const std::string& path, std::string_view text);

}  // namespace hypic
