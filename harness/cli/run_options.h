// What the commands that run a suite share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "harness/runner.h"

namespace hypic {

// Runs the suite on this terminal, stops on signals in an orderly way, says the verdict and where the report
// is. The program's exit code.
int run_and_say(const Suite& suite, RunSettings settings);

// Adds --backend and --rung; `backend` receives both, as make_backend takes it.
void add_backend_options(CLI::App& command, std::string& backend, const std::string& help);

}  // namespace hypic
