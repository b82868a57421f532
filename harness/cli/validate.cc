#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "core/check.h"
#include "datasets/loader.h"
#include "harness/assets.h"
#include "harness/backends.h"
#include "harness/cli/commands.h"
#include "harness/cli/run_options.h"
#include "harness/measure/prompts.h"
#include "harness/measure/reference_logits.h"
#include "harness/model_choice.h"
#include "harness/runner.h"
#include "models/model.h"

namespace hypic {
namespace {

constexpr const char* kSuite = "suites/validate.json";

// The name of the report's folder.
std::string short_name(const std::string& model) {
  if (model.starts_with("random:")) return model.substr(model.find(':') + 1);
  std::error_code error;
  if (!std::filesystem::exists(model, error)) return std::filesystem::path(model).filename();  // on the Hub
  return std::filesystem::canonical(model).filename();
}

}  // namespace

void add_validate(CLI::App& app, int& status, const std::string& command_line) {
  CLI::App* command = app.add_subcommand(
      "validate", "Judge a model before rollout: load, chunks and steps, reference logits, float64, reuse");
  const auto settings = std::make_shared<RunSettings>();
  const auto ranks = std::make_shared<RankOptions>();
  settings->command_line = command_line;
  command->add_option("model", settings->context.model, kModels)->required();
  command
      ->add_option("--logits", settings->context.logits,
                   "safetensors file of reference logits: tokens [n], logits.N [vocabulary]")
      ->check(CLI::ExistingFile);
  add_backend_options(*command, settings->context.backend,
                      "Backend to judge: cpu (default), cpu64, cuda (bfloat16) or cuda32");
  add_rank_options(*command, *ranks);
  command->add_option("--data", settings->context.data, "Dataset file in place of the project's own text")
      ->check(CLI::ExistingFile);
  command->add_option("--out", settings->out, "Folder of the report (default out/validate-NAME)");
  command->add_flag("--resume", settings->resume, "Keep the finished cases of an earlier run into the same folder");
  command->add_flag("--quiet", settings->quiet, "No progress");
  command->callback([settings, ranks, &status] {
    const std::string model = model_path(settings->context.model);
    const bool random = model.starts_with("random:");
    std::error_code error;
    require(random || std::filesystem::is_directory(model, error), model,
            std::filesystem::exists(model, error) ? ": is no folder" : ": no such folder", "; a model is ", kModels);
    const Suite suite = load_suite(asset(kSuite));
    if (settings->out.empty()) settings->out = "out/validate-" + short_name(settings->context.model);
    settings->lenient = true;  // one verdict, whatever is wrong with the model
    const std::string backend = settings->context.backend.empty() ? "cpu" : settings->context.backend;
    settings->context.devices = ranks->chosen(backend);
    if (ranks->count == 1) make_backend(backend);
    if (random) part_of(spec_of(model), 0, static_cast<int>(ranks->count));
    // What is wrong with these files says nothing of the model.
    if (!settings->context.logits.empty()) load_reference_logits(settings->context.logits);
    if (!settings->context.data.empty()) {
      load_dataset(settings->context.data);
      require(has_tokenizer(model), "--data: ", model,
              " has no tokenizer to read it with; add tokenizer.json, or leave --data out");
    }
    status = run_and_say(suite, *settings);
  });
}

}  // namespace hypic
