// The conformance suite as suites and the command line ask for it.
#pragma once

#include <string>
#include <vector>

#include "harness/cases/case.h"
#include "harness/driver.h"
#include "harness/suite.h"

namespace hypic::conformance {

struct Selection {
  std::string backend = "cpu";        // see make_backend
  std::vector<std::string> families;  // empty: all
  std::vector<std::string> ops;       // empty: all
  std::string filter;                 // regular expression over the names of cases
  bool thorough = false;
  std::string captured;  // a file of activations of the one family
  std::string broken;    // a fault class, or "all": which cases notice it
};

// The title of the table of failures in a report: case, operation, what.
inline constexpr const char* kFailures = "Failures";

// The cases that a selection names. Error: an unknown name or a bad file, or no case matches.
std::vector<Case> selected(const Selection& selection, const DriverContext& context = {});

// One case of driver `conformance` for each family and operation of the selection.
Suite suite_of(const Selection& selection);

}  // namespace hypic::conformance
