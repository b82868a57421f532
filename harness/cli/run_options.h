// What the commands that run a suite share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "harness/runner.h"

namespace hypic {

// Runs the suite on this terminal, stops on signals in an orderly way, says the verdict and where the report
// is. The program's exit code.
int run_and_say(const Suite& suite, RunSettings settings);

// The parts of an option's value between commas. Error: an empty one.
std::vector<std::string> at_commas(const std::string& option, const std::string& text);

// An error about the suite that `command` made, its place by the option that it comes from: "quality:
// cases[0].parameters.cells[1].new_tokens: must …" is "--new-tokens: must …". Without one the place is left out.
std::string by_option(const std::string& command, const std::string& what);

// On the terminal: the first `texts` columns to the left, numbers to the right.
void print(const Table& table, size_t texts);

// Adds --backend and --rung; `backend` receives both, as make_backend takes it.
void add_backend_options(CLI::App& command, std::string& backend, const std::string& help);

}  // namespace hypic
