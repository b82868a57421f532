#include "reports/view.h"

#include <algorithm>
#include <charconv>

#include "core/check.h"
#include "reports/text.h"

namespace hypic {
namespace {

// "1.2 – 1.4".
bool is_interval(std::string_view text) {
  constexpr std::string_view kBetween = " – ";
  const std::size_t at = text.find(kBetween);
  const auto number = [](std::string_view part) {
    double value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size();
  };
  return at != text.npos && number(text.substr(0, at)) && number(text.substr(at + kBetween.size()));
}

}  // namespace

std::string with_unit(double value, std::string_view unit) {
  return format_number(value) + (unit.empty() ? "" : " ") + std::string(unit);
}

std::vector<const Result*> by_urgency(const Report& report) {
  std::vector<const Result*> out;
  for (Verdict verdict : kVerdictsByUrgency)
    for (const Result& result : report.results)
      if (result.verdict == verdict) out.push_back(&result);
  return out;
}

std::size_t count(const Report& report, Verdict verdict) {
  return std::ranges::count(report.results, verdict, &Result::verdict);
}

std::string counts(const Report& report) {
  std::string out;
  for (Verdict verdict : kVerdictsByUrgency)
    if (const std::size_t n = count(report, verdict))
      out += str(out.empty() ? "" : " · ", n, " ", to_string(verdict));
  return out.empty() ? "no results" : out;
}

std::string headline(const Result& result) {
  constexpr std::size_t kLimit = 160;
  if (!result.why.empty()) return one_line(result.why, kLimit);
  auto shown = std::ranges::find(result.checks, false, &Check::holds);
  if (shown == result.checks.end()) shown = result.checks.begin();
  if (shown != result.checks.end())
    return one_line(str(shown->tag, " ", with_unit(shown->measured, unit_of(result, shown->tag)),
                        " (", expectation(*shown), ")"),
                    kLimit);
  if (result.values.empty()) return "";
  const Value& first = result.values.front();
  return one_line(str(first.tag, " ", with_unit(first.value, first.unit)), kLimit);
}

std::string expectation(const Check& check) {
  std::string relation = check.relation;
  if (relation == "<=") relation = "≤";
  if (relation == ">=") relation = "≥";
  if (relation == "==") relation = "=";
  if (relation == "!=") relation = "≠";
  return str(relation, " ", format_number(check.expected));
}

std::string_view unit_of(const Result& result, std::string_view tag) {
  const auto found = std::ranges::find(result.values, tag, &Value::tag);
  return found == result.values.end() ? std::string_view() : found->unit;
}

bool is_numeric(const Table& table, std::size_t column) {
  for (const auto& row : table.rows)
    if (column < row.size() && !cell_text(row[column]).empty() && cell_text(row[column]) != "–")
      return std::holds_alternative<double>(row[column].content) || is_interval(cell_text(row[column]));
  return false;
}

std::size_t columns(const Table& table) {
  std::size_t count = table.heads.size();
  for (const auto& row : table.rows) count = std::max(count, row.size());
  return count;
}

}  // namespace hypic
