// The driver of the laws of reuse, with a place where tests can reach in.
#pragma once

#include <string>

#include "harness/driver.h"
#include "serving/planner.h"

namespace hypic::reuse_laws {

// As prepare_reuse_laws, in engines with `faults`. Tests only: those that break a law must be seen.
Work prepare(const SuiteCase& suite_case, const std::string& where, const DriverContext& context, const Faults& faults);

}  // namespace hypic::reuse_laws
