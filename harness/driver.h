// Drivers run a case of a suite and return what they measured; the runner judges it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/suite.h"
#include "reports/report.h"

namespace hypic {

struct DriverContext {
  std::string data;   // --data: a LongBench file; empty: the project's own text
  std::string model;  // --model: replaces the model of every case; empty: the suite's
  // Called as work proceeds, with a share in [0, 1] and what is at hand.
  std::function<void(double, const std::string&)> progress = [](double, const std::string&) {};
};

struct Driver {
  std::string_view name;
  std::string_view what;
  // Fills values, tables, charts and note; a verdict other than PASS (with a reason) stands
  // whatever the expectations say. Errors of the case's parameters begin with `where`.
  Result (*run)(const SuiteCase& suite_case, const std::string& where,
                const DriverContext& context);
};

const std::vector<Driver>& drivers();
const Driver* find_driver(std::string_view name);  // nullptr where unknown

// Runs a case and judges it: every expectation becomes a Check; one that does not hold, or that no
// value matches, is a FAIL. A driver that throws gives FAIL with its message.
Result run_case(const SuiteCase& suite_case, const std::string& where,
                const DriverContext& context);

}  // namespace hypic
