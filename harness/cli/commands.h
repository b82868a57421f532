// The commands of hypic, one file each; a command sets `status` to the program's exit code.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace hypic {

// `worker` and `router`, which hypic-cluster runs with these arguments.
void add_cluster(CLI::App& app, char** argv);
void add_families(CLI::App& app, int& status);
void add_load(CLI::App& app, int& status, const std::string& command_line);
void add_models(CLI::App& app, int& status);
void add_run(CLI::App& app, int& status, const std::string& command_line);
void add_golden(CLI::App& app, int& status, const std::string& command_line);
void add_report(CLI::App& app, int& status);
void add_quality(CLI::App& app, int& status, const std::string& command_line);
void add_score(CLI::App& app, int& status);
void add_serve(CLI::App& app, int& status);
void add_tasks(CLI::App& app, int& status);
void add_tokenize(CLI::App& app, int& status);
void add_trace(CLI::App& app, int& status);
void add_conformance(CLI::App& app, int& status, const std::string& command_line);
void add_ttft(CLI::App& app, int& status, const std::string& command_line);
void add_validate(CLI::App& app, int& status, const std::string& command_line);

}  // namespace hypic
