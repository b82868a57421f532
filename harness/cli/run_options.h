// What the commands that run a suite share.
#pragma once

#include "harness/runner.h"

namespace hypic {

// Runs the suite on this terminal, stops on signals in an orderly way, says the verdict and where the report
// is. The program's exit code.
int run_and_say(const Suite& suite, RunSettings settings);

}  // namespace hypic
