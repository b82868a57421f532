#include "harness/drivers/conformance.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "core/check.h"
#include "harness/cases/broken.h"
#include "harness/cases/captured.h"
#include "harness/cli/commands.h"
#include "harness/cli/run_options.h"
#include "reports/text.h"
#include "reports/write.h"

namespace hypic {
namespace {

using conformance::Selection;

void list(const Selection& selection) {
  if (!selection.broken.empty()) {
    for (const conformance::FaultClass& fault : conformance::fault_classes())
      std::cout << fault.name << ": " << fault.what << "\n";
    return;
  }
  for (const conformance::Case& c : conformance::selected(selection)) std::cout << c.name << "\n";
  for (const std::string& name : selection.families)
    std::cout << "--captured takes " << conformance::captured_inputs(family_named(name))
              << ", optionally S0, o, S; what each letter means, and the scale, stands at the head of "
                 "reference/families/" << name << ".cc\n";
}

// What a terminal shows of a report: every failure, or which case notices which fault.
void print_rows(const Report& report) {
  for (const Result& result : report.results)
    for (const Table& table : result.tables) {
      const bool failures = table.title == conformance::kFailures;
      const bool faults = !table.heads.empty() && table.heads[0] == "fault class";
      if (!failures && !faults) continue;
      for (const std::vector<Cell>& row : table.rows)
        if (failures)
          std::cout << cell_text(row[0]) << ", " << cell_text(row[1]) << ": " << cell_text(row[2])
                    << "\n";
        else
          std::cout << cell_text(row[0]) << " (" << cell_text(row[2]) << "): caught by "
                    << cell_text(row[3]) << (row.size() > 6 ? "; " + cell_text(row[6]) : "")
                    << "\n";
    }
}

}  // namespace

void add_conformance(CLI::App& app, int& status, const std::string& command_line) {
  CLI::App* command = app.add_subcommand(
      "conformance", "Judge a backend's operations against oracles in float64, case by case");
  struct Options {
    Selection selection;
    RunSettings settings;
    bool list = false;
  };
  const auto options = std::make_shared<Options>();
  options->settings.command_line = command_line;
  Selection& selection = options->selection;
  add_backend_options(*command, selection.backend,
                      "cpu (default), cpu64, cuda (bfloat16), cuda32, or broken:FAULT, which must fail");
  command->add_option("--family", selection.families,
                      "Only linear attention of this family; may be repeated");
  command->add_option("--op", selection.ops,
                      "Only this operation, such as attention; may be repeated");
  command->add_option("--filter", selection.filter,
                      "Only cases whose name matches this regular expression");
  command->add_option("--captured", selection.captured,
                      "safetensors file of activations of --family, in place of the cases");
  command->add_option("--broken", selection.broken,
                      "Prove the suite instead: a fault class, or all; passes if each is noticed");
  command->add_flag("--thorough", selection.thorough,
                    "Reported faults in their exact sizes; takes hours on a CPU");
  command->add_option("--out", options->settings.out,
                      "Folder of the report (default out/conformance)");
  command->add_flag("--resume", options->settings.resume,
                    "Keep the finished cases of an earlier run into the same folder");
  command->add_flag("--quiet", options->settings.quiet, "No progress");
  command->add_flag("--list", options->list,
                    "Print the names of the cases, or of the fault classes");
  command->callback([options, &status] {
    if (options->list) return list(options->selection);
    RunSettings& settings = options->settings;
    const Suite suite = conformance::suite_of(options->selection);
    if (settings.out.empty()) settings.out = "out/conformance";
    status = run_and_say(suite, settings);
    print_rows(read_report(settings.out + "/report.json"));
  });
}

}  // namespace hypic
