// Runs a suite case by case, keeps each result as it comes, and writes the report.
#pragma once

#include <atomic>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "harness/driver.h"
#include "harness/suite.h"
#include "reports/report.h"

namespace hypic {

struct RunSettings {
  std::string out;   // folder of the report
  DriverContext context;
  bool lenient = false;  // a case that cannot be prepared is INVALID, not an end of the whole run
  std::string filter;   // only cases whose name contains it
  bool resume = false;  // take finished cases from the folder; it must be of the same run
  std::optional<double> time_budget;  // seconds; cases not begun by then are UNDECIDED, for a resume
  std::string command_line;  // for the report
  std::ostream* log = nullptr;
  bool quiet = false;     // no progress
  bool terminal = false;  // progress on one line of the log that is overwritten
  std::ostream* progress = nullptr;  // without a terminal: a line now and then of a case that takes long
  double progress_seconds = 10;      // between two of them, at least
  const std::atomic<bool>* stop = nullptr;  // set by a signal: what is unfinished becomes UNDECIDED
};

struct PreparedCase {
  const SuiteCase* suite_case;
  Work work;
  double seconds = 0;  // that it takes about on its backend; 0: the suite does not say
};
// The cases that `filter` names, each prepared: bad parameters, models and data are found before anything runs.
// Once asked to stop, the rest is prepared no more and throws Interrupted when it runs. Error: no case matches, or
// one cannot be prepared.
std::vector<PreparedCase> prepare_suite(const Suite& suite, const RunSettings& settings);

// "about 147 s on an H200 by the suite"; "" where a case does not say how long it takes.
std::string estimated(const Suite& suite, const std::vector<PreparedCase>& cases);

// Error as of prepare_suite, and where `out` cannot be written or belongs to another run.
Report run_suite(const Suite& suite, const RunSettings& settings);

}  // namespace hypic
