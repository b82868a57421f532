// What a program exits with.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace hypic {

// What `run` returns; or, after a line on standard error that `program` begins, 2 for wrong usage and an Error, 3 for
// what is nobody's mistake but ours or the machine's. Help and version are 0.
int exit_code(const CLI::App& app, const char* program, const std::function<int()>& run);

// app.parse. Error: an argument that is no UTF-8, for reports and answers, which are JSON, could not repeat it.
void parse(CLI::App& app, int argc, const char* const* argv);

}  // namespace hypic
