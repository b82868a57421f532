// The commands of hypic-cluster, as harness/cli/commands.h.
#pragma once

#include <CLI/App.hpp>

namespace hypic {

void add_worker(CLI::App& app, int& status);
void add_router(CLI::App& app, int& status);

}  // namespace hypic
