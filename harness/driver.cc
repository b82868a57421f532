#include "harness/driver.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>

#include "core/check.h"

namespace hypic {

#define HYPIC_DRIVER(name, what)                                             \
  Work prepare_##name(const SuiteCase& suite_case, const std::string& where, \
                      const DriverContext& context);
#include "harness/drivers/drivers.def"
#undef HYPIC_DRIVER

const std::vector<Driver>& drivers() {
  static const std::vector<Driver> all = {
#define HYPIC_DRIVER(name, what) {#name, what, prepare_##name},
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

void judge_all(const SuiteCase& suite_case, Result& result) {
  int broken = 0;
  for (const Expectation& e : suite_case.expectations) {
    const bool named = std::any_of(result.values.begin(), result.values.end(),
                                   [&](const Value& value) { return matches(e.tag, value.tag); });
    result.checks.push_back(judge(e, result.values));
    const Check& check = result.checks.back();
    if (!named) {
      result.verdict = Verdict::invalid;
      result.why = str("the suite asks for ", e.tag, ", which names no value; the case gives ",
                       result.values.empty() ? "none" : result.values.front().tag, ", …");
      return;
    }
    if (check.holds) continue;
    if (broken++ == 0)
      result.why =
          str(check.tag, " = ", check.measured, ", expected ", e.relation, " ", e.value);
  }
  if (broken > 0) result.verdict = Verdict::fail;
  if (broken > 1) result.why += str(" (and ", broken - 1, " more)");
  if (suite_case.expectations.empty()) {
    result.verdict = Verdict::skip;
    result.why = "measured, nothing asked";
  } else if (broken == 0) {
    const size_t n = suite_case.expectations.size();
    result.why = str(n, n == 1 ? " expectation holds" : " expectations hold");
  }
}

}  // namespace

Result run_case(const SuiteCase& suite_case, const Work& work, const ProgressFn& progress) {
  const auto start = std::chrono::steady_clock::now();
  Result result;
  const auto stopped = [&](Verdict verdict, const std::string& why) {
    result = {};
    result.verdict = verdict;
    result.why = why;
  };
  try {
    result = work(progress);
  } catch (const Error& error) {
    stopped(Verdict::invalid, error.what());
  } catch (const std::bad_alloc&) {
    stopped(Verdict::invalid, "out of memory; use a smaller model or fewer tokens");
  } catch (const std::exception& error) {
    stopped(Verdict::fail, error.what());
  }
  result.name = suite_case.name;
  result.driver = suite_case.driver;
  if (!suite_case.note.empty())
    result.note = result.note.empty() ? suite_case.note : suite_case.note + "\n" + result.note;
  if (result.verdict == Verdict::pass) judge_all(suite_case, result);
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace hypic
