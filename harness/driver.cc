#include "harness/driver.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace hypic {

#define HYPIC_DRIVER(name, what)                                           \
  Result run_##name(const SuiteCase& suite_case, const std::string& where, \
                    const DriverContext& context);
#include "harness/drivers/drivers.def"
#undef HYPIC_DRIVER

const std::vector<Driver>& drivers() {
  static const std::vector<Driver> all = {
#define HYPIC_DRIVER(name, what) {#name, what, run_##name},
#include "harness/drivers/drivers.def"
#undef HYPIC_DRIVER
  };
  return all;
}

const Driver* find_driver(std::string_view name) {
  for (const Driver& driver : drivers())
    if (driver.name == name) return &driver;
  return nullptr;
}

namespace {

bool holds(const Expectation& e, double measured) {
  if (e.relation == "<=") return measured <= e.value;
  if (e.relation == "<") return measured < e.value;
  if (e.relation == ">=") return measured >= e.value;
  if (e.relation == ">") return measured > e.value;
  if (e.relation == "==") return measured == e.value;
  HYPIC_CHECK(e.relation == "within", e.relation);
  return std::abs(measured - e.value) <= e.tolerance;
}

bool matches(const std::string& pattern, const std::string& tag) {
  if (pattern.ends_with('*')) return tag.starts_with(pattern.substr(0, pattern.size() - 1));
  return tag == pattern;
}

// One check an expectation; a pattern is judged by its worst value, which the check names.
Check judge(const Expectation& e, const std::vector<Value>& values) {
  Check check{e.tag, e.relation, e.value, e.tolerance, std::numeric_limits<double>::quiet_NaN(),
              false, e.source};
  const auto distance = [&](double x) {  // how far on the wrong side
    if (std::isnan(x)) return std::numeric_limits<double>::infinity();
    if (e.relation == "<=" || e.relation == "<") return x - e.value;
    if (e.relation == ">=" || e.relation == ">") return e.value - x;
    return std::abs(x - e.value);
  };
  bool found = false;
  double worst = 0;
  for (const Value& value : values) {
    if (!matches(e.tag, value.tag)) continue;
    const double d = distance(value.value);
    if (found && d <= worst) continue;
    found = true;
    worst = d;
    check.measured = value.value;
    check.holds = holds(e, value.value);
    if (e.tag.ends_with('*')) check.tag = e.tag + " (worst: " + value.tag + ")";
  }
  return check;
}

}  // namespace

Result run_case(const SuiteCase& suite_case, const std::string& where,
                const DriverContext& context) {
  const auto start = std::chrono::steady_clock::now();
  Result result;
  try {
    result = find_driver(suite_case.driver)->run(suite_case, where, context);
  } catch (const std::exception& error) {
    result = {};
    result.verdict = Verdict::fail;
    result.why = error.what();
  }
  result.name = suite_case.name;
  result.driver = suite_case.driver;
  if (result.note.empty())
    result.note = suite_case.note;
  else if (!suite_case.note.empty())
    result.note = suite_case.note + "\n" + result.note;
  if (result.verdict == Verdict::pass) {
    int broken = 0;
    for (const Expectation& e : suite_case.expectations) {
      result.checks.push_back(judge(e, result.values));
      const Check& check = result.checks.back();
      if (check.holds) continue;
      if (broken++ == 0)
        result.why =
            std::isnan(check.measured) && check.tag == e.tag
                ? str("no value ", e.tag)
                : str(check.tag, " = ", check.measured, ", expected ", e.relation, " ", e.value);
    }
    if (broken > 0) result.verdict = Verdict::fail;
    if (broken > 1) result.why += str(" (and ", broken - 1, " more)");
    if (broken == 0 && result.why.empty())
      result.why = suite_case.expectations.empty()
                       ? "shown, nothing asked"
                       : str(suite_case.expectations.size(), " expectations hold");
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace hypic
