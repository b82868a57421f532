#include <cmath>
#include <string>

#include "core/check.h"
#include "reports/text.h"
#include "reports/view.h"
#include "reports/write.h"

namespace hypic {
namespace {

// Line ends would turn into spaces in an attribute, so they go in as references.
std::string attribute(const char* name, std::string_view value) {
  std::string out = str(" ", name, "=\"");
  for (char c : escape_xml(value)) {
    if (c == '\n')
      out += "&#10;";
    else if (c == '\r')
      out += "&#13;";
    else if (c == '\t')
      out += "&#9;";
    else
      out += c;
  }
  return out + "\"";
}

// Readers want a plain decimal, so a time that is none counts as 0.
double usable(double seconds) { return std::isfinite(seconds) && seconds > 0 ? seconds : 0; }

std::string time(double seconds) {
  return attribute("time", format_number(usable(seconds), Format::fixed, 3));
}

std::string failed_checks(const Result& result) {
  std::string out;
  for (const Check& check : result.checks)
    if (!check.holds)
      out += str(check.tag, ": measured ", format_exact(check.measured), ", expected ",
                 expectation(check), ", tolerance ", format_number(check.tolerance), " (",
                 check.source, ")\n");
  return out;
}

std::string outcome(const Result& result) {
  const std::string why = attribute("message", result.why);
  switch (result.verdict) {
    case Verdict::pass:
    case Verdict::measured:
      return "";
    case Verdict::skip:
      return "<skipped" + why + "/>";
    case Verdict::fail:
      return str("<failure", why, " type=\"FAIL\">", escape_xml(failed_checks(result)),
                 "</failure>");
    case Verdict::invalid:
    case Verdict::undecided:
      return str("<error", why, attribute("type", to_string(result.verdict)), ">",
                 escape_xml(failed_checks(result)), "</error>");
  }
  HYPIC_CHECK(false, "unreachable");
}

}  // namespace

std::string to_junit(const Report& report) {
  double seconds = 0;
  for (const Result& result : report.results) seconds += usable(result.seconds);
  const std::string name = report.title.empty() ? "hypic report" : report.title;
  const std::string totals =
      str(attribute("name", name), " tests=\"", report.results.size(), "\" failures=\"",
          count(report, Verdict::fail), "\" errors=\"",
          count(report, Verdict::invalid) + count(report, Verdict::undecided), "\" skipped=\"",
          count(report, Verdict::skip), "\"", time(seconds), ">\n");
  // The older <testsuites> has no skipped count, but readers ignore it there.
  std::string out =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites" + totals + "<testsuite" + totals;
  if (!report.environment.entries.empty()) {
    out += "<properties>\n";
    for (const auto& [key, value] : report.environment.entries)
      out += "<property" + attribute("name", key) + attribute("value", value) + "/>\n";
    out += "</properties>\n";
  }
  for (const Result& result : report.results)
    out += str("<testcase", attribute("name", result.name), attribute("classname", result.driver),
               time(result.seconds), ">", outcome(result), "</testcase>\n");
  return out + "</testsuite></testsuites>\n";
}

}  // namespace hypic
