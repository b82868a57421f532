#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "core/check.h"
#include "harness/assets.h"
#include "harness/cli/commands.h"
#include "harness/runner.h"

namespace hypic {

void add_run(CLI::App& app, int& status, const std::string& command_line) {
  CLI::App* command = app.add_subcommand("run", "Run a suite and write its report");
  struct Options {
    std::string suite;
    RunSettings settings;
    double time_budget = 0;
    bool dry_run = false;
  };
  const auto options = std::make_shared<Options>();
  RunSettings& settings = options->settings;
  settings.command_line = command_line;
  command->add_option("suite", options->suite, "A suite, such as suites/quick.json")->required();
  command->add_option("--out", settings.out, "Folder of the report (default out/NAME)");
  command->add_option("--data", settings.data, "LongBench file in place of the project's own text")
      ->check(CLI::ExistingFile);
  command->add_option("--model", settings.model,
                      "Model of every case: random:NAME[:SEED] or a folder");
  command->add_option("--filter", settings.filter, "Only cases whose name contains this");
  command->add_flag("--resume", settings.resume,
                    "Go on where an earlier run into the same folder stopped");
  const CLI::Option* budget = command
                                  ->add_option("--time-budget", options->time_budget,
                                               "Seconds after which no case is begun")
                                  ->check(CLI::NonNegativeNumber);
  command->add_flag("--dry-run", options->dry_run, "Only list the cases");
  command->callback([options, budget, &status] {
    RunSettings& settings = options->settings;
    const Suite suite = load_suite(asset(options->suite));
    if (options->dry_run) {
      for (const SuiteCase& suite_case : suite.cases)
        std::cout << suite_case.name << "  (" << suite_case.driver << ", "
                  << suite_case.expectations.size() << " expectations)\n";
      return;
    }
    if (*budget) settings.time_budget = options->time_budget;
    if (settings.out.empty())
      settings.out = "out/" + std::filesystem::path(options->suite).stem().string();
    settings.log = &std::cout;
    settings.terminal = isatty(STDOUT_FILENO);
    const Report report = run_suite(suite, settings);
    std::cout << to_string(overall(report)) << ": report in " << settings.out << "/report.html\n";
    status = exit_code(report);
  });
}

}  // namespace hypic
