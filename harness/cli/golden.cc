#include "harness/cases/golden.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/cli/run_options.h"

namespace hypic {
namespace {

struct Judged {
  RunSettings settings;
  std::string folder, outputs, compute;
};

Suite suite_of(const Judged& check) {
  Suite suite;
  suite.path = "golden";
  suite.title = "hypic golden check of " + check.folder;
  suite.description =
      "What a kernel made of exported inputs, against answers in float64; how bounds come about: "
      "docs/conformance.md.";
  for (const golden::Workload& workload : golden::read_workloads(check.folder)) {
    if (!suite.cases.empty() && suite.cases.back().name == workload.definition) continue;
    SuiteCase c;
    c.name = workload.definition;
    c.driver = "golden";
    c.parameters = {{"folder", check.folder},
                    {"outputs", check.outputs},
                    {"definition", workload.definition},
                    {"compute", check.compute}};
    c.expectations = {{.tag = "failed", .relation = "==", .value = 0, .source = "docs/conformance.md"}};
    suite.cases.push_back(std::move(c));
  }
  return suite;
}

}  // namespace

void add_golden(CLI::App& app, int& status, const std::string& command_line) {
  CLI::App* command = app.add_subcommand(
      "golden", "Inputs and float64 answers for kernels in Python or Triton, and the check of their outputs");
  command->require_subcommand(1);

  CLI::App* writer = command->add_subcommand("export", "Write a folder of workloads in FlashInfer-Bench's layout");
  struct Export {
    std::string folder;
    std::vector<std::string> families;
  };
  const auto to = std::make_shared<Export>();
  writer->add_option("folder", to->folder, "Where to")->required();
  std::string known;
  for (const std::string& name : golden::families()) known += (known.empty() ? "" : ", ") + name;
  writer->add_option("--family", to->families, "Only of this family; may be repeated: " + known);
  writer->callback([to] {
    golden::write(to->folder, to->families);
    std::cout << golden::read_workloads(to->folder).size() << " workloads in " << to->folder << "\n";
  });

  CLI::App* checker = command->add_subcommand(
      "check", "Judge FOLDER/outputs/DEFINITION/UUID.safetensors, tensors o and S, which your kernel wrote");
  const auto check = std::make_shared<Judged>();
  RunSettings& settings = check->settings;
  settings.command_line = command_line;
  settings.lenient = true;
  checker->add_option("folder", check->folder, "As hypic golden export left it")->required();
  checker->add_option("--outputs", check->outputs, "Where the outputs are (default FOLDER/outputs)");
  checker
      ->add_option("--compute", check->compute,
                   "What the kernel computes in: float64, float32, float16 or bfloat16 (default: the coarser dtype of "
                   "its outputs)")
      ->check(CLI::IsMember({"float64", "float32", "float16", "bfloat16"}));
  checker->add_option("--out", settings.out, "Folder of the report (default out/golden)");
  checker->add_flag("--quiet", settings.quiet, "No progress");
  checker->callback([check, &status] {
    if (check->outputs.empty()) check->outputs = check->folder + "/outputs";
    std::error_code error;
    const Suite suite = suite_of(*check);
    require(std::filesystem::is_directory(check->outputs, error), check->outputs,
            ": no such folder; your kernel writes DEFINITION/UUID.safetensors there, with the tensors o and S");
    if (check->settings.out.empty()) check->settings.out = "out/golden";
    status = run_and_say(suite, check->settings);
  });
}

}  // namespace hypic
