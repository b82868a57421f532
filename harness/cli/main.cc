// hypic: exit codes 0 pass, 1 fail, 2 wrong usage or bad input, 3 invalid run, 4 undecided.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/exit_code.h"
#include "harness/kernel_process.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{
      "hypic checks and measures position-independent caching for hybrid-attention language "
      "models."};
  app.require_subcommand(1);
  app.set_version_flag("--version", HYPIC_VERSION);
  app.set_help_all_flag("--help-all", "Help of every command");
  std::string command_line;
  for (int i = 0; i < argc; ++i) command_line += hypic::str(i ? " " : "", argv[i]);
  int status = 0;
  hypic::add_families(app, status);
  hypic::add_models(app, status);
  hypic::add_run(app, status, command_line);
  hypic::add_validate(app, status, command_line);
  hypic::add_conformance(app, status, command_line);
  hypic::add_golden(app, status, command_line);
  hypic::add_ttft(app, status, command_line);
  hypic::add_quality(app, status, command_line);
  hypic::add_load(app, status, command_line);
  hypic::add_report(app, status);
  hypic::add_score(app, status);
  hypic::add_serve(app, status);
  hypic::add_cluster(app, argv);
  hypic::add_tasks(app, status);
  hypic::add_tokenize(app, status);
  hypic::add_trace(app, status);
  return hypic::exit_code(app, "hypic", [&] {
    hypic::parse(app, argc, argv);
    std::cout.flush();
    if (!std::cout) {
      std::cerr << "hypic: cannot write to standard output\n";
      return 2;
    }
    return status;
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (!hypic::kernel_process::is_child())
    if (const std::string kernel = hypic::kernel_process::named_in(argc, argv); !kernel.empty())
      return hypic::kernel_process::run_self(argv, kernel);
  const int status = run(argc, argv);
  hypic::kernel_process::done(status);
  return status;
}
