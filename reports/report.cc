#include "reports/report.h"

#include <algorithm>

#include "core/check.h"

namespace hypic {

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass:
      return "PASS";
    case Verdict::fail:
      return "FAIL";
    case Verdict::skip:
      return "SKIP";
    case Verdict::invalid:
      return "INVALID";
    case Verdict::undecided:
      return "UNDECIDED";
    case Verdict::measured:
      return "MEASURED";
  }
  HYPIC_CHECK(false, "verdict ", static_cast<int>(verdict));
}

Verdict verdict_from_string(std::string_view text) {
  for (Verdict verdict : kVerdictsByUrgency)
    if (text == to_string(verdict)) return verdict;
  fail("unknown verdict '", text.substr(0, 40), "': use PASS, FAIL, MEASURED, SKIP, INVALID or UNDECIDED");
}

void Environment::set(std::string key, std::string value) {
  auto found = std::ranges::find(entries, key, &std::pair<std::string, std::string>::first);
  if (found == entries.end())
    entries.emplace_back(std::move(key), std::move(value));
  else
    found->second = std::move(value);
}

Verdict overall(const Report& report) {
  for (Verdict verdict : kVerdictsByUrgency)
    if (std::ranges::count(report.results, verdict, &Result::verdict)) return verdict;
  return Verdict::skip;
}

int exit_code(const Report& report) {
  switch (overall(report)) {
    case Verdict::fail:
      return 1;
    case Verdict::invalid:
      return 3;
    case Verdict::undecided:
      return 4;
    case Verdict::pass:
    case Verdict::measured:
    case Verdict::skip:
      return 0;
  }
  HYPIC_CHECK(false, "unreachable");
}

}  // namespace hypic
