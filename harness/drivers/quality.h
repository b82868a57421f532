// The quality driver, with a place where tests can reach in.
#pragma once

#include <string>

#include "harness/driver.h"
#include "serving/engine.h"

namespace hypic::quality {

// As prepare_quality, in an engine with `faults`. Tests only: each of them must be seen.
Work prepare(const SuiteCase& suite_case, const std::string& where, const DriverContext& context, const Faults& faults);

}  // namespace hypic::quality
