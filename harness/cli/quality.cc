#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/cli/run_options.h"
#include "harness/drivers/quality_compare.h"
#include "harness/drivers/quality_rows.h"
#include "harness/drivers/quality_summary.h"
#include "harness/model_choice.h"
#include "reports/text.h"

namespace hypic {
namespace {

struct Options {
  RunSettings settings;
  std::string model = kDefaultModel, backend = "cpu", modes;
  RankOptions ranks;
  std::string tasks, datasets;
  int64_t segments = 8, tokens = 64, batch = 32, states = 0, seed = 7;
  std::optional<int64_t> rows, max_tokens, new_tokens;
  std::vector<std::string> compared;
};

// The cells as a suite; bounds of the numbers are the driver's.
Suite suite_of(const Options& options) {
  nlohmann::json cells = nlohmann::json::array();
  std::string name;
  const auto add = [&](const char* kind, const std::string& what, nlohmann::json cell) {
    cell[kind] = what;
    if (options.rows) cell["rows"] = *options.rows;
    if (options.new_tokens) cell["new_tokens"] = *options.new_tokens;
    cells.push_back(std::move(cell));
    name += str(name.empty() ? "" : ", ", what);
  };
  if (!options.tasks.empty())
    for (const std::string& task : at_commas("--task", options.tasks))
      add("task", task, {{"segments", options.segments}, {"tokens", options.tokens}});
  if (!options.datasets.empty())
    for (const std::string& dataset : at_commas("--dataset", options.datasets))
      add("dataset", dataset,
          options.max_tokens ? nlohmann::json{{"max_tokens", *options.max_tokens}} : nlohmann::json::object());
  require(!cells.empty(), "--task or --dataset: say what to ask");
  SuiteCase c;
  c.name = name;
  c.driver = "quality";
  c.parameters = {{"model", options.model}, {"backend", options.backend}, {"cells", cells},
                  {"batch", options.batch}, {"states", options.states},   {"seed", options.seed}};
  options.ranks.add_to(c.parameters, options.backend);
  if (!options.modes.empty()) c.parameters["modes"] = at_commas("--modes", options.modes);
  Suite suite;
  suite.path = "quality";
  suite.title = str("hypic quality of ", options.model, " on ", options.backend);
  suite.description = "What each column means: docs/quality.md.";
  suite.cases = {std::move(c)};
  return suite;
}

// Of a folder its items.
std::string items_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? path + "/" + ItemLog::kFile : path;
}

int compare(const std::vector<std::string>& paths) {
  const Result result =
      quality::compare(quality::load_rows(items_file(paths[0])), quality::load_rows(items_file(paths[1])));
  for (const Table& table : result.tables) print(table, 3);
  std::cout << to_string(result.verdict) << ": " << result.why << "\n";
  return result.verdict == Verdict::pass ? 0 : 1;
}

}  // namespace

void add_quality(CLI::App& app, int& status, const std::string& command_line) {
  CLI::App* command =
      app.add_subcommand("quality", "Answers of reuse modes against full recompute: score, loss, outputs");
  const auto options = std::make_shared<Options>();
  options->settings.command_line = command_line;
  RunSettings& settings = options->settings;
  command->add_option("--model", options->model, str(kModels, " (default ", kDefaultModel, ")"));
  add_backend_options(*command, options->backend, "Backend: cpu (default), cpu64, cuda (bfloat16) or cuda32");
  add_rank_options(*command, options->ranks);
  CLI::Option* tasks =
      command->add_option("--task", options->tasks,
                          "Synthetic tasks, commas between: fact, two_hop, headlines, figures, distance, latest");
  command->add_option("--segments", options->segments, "Documents of a task's row (default 8)")->needs(tasks);
  command->add_option("--tokens", options->tokens, "Tokens of each, about (default 64)")->needs(tasks);
  CLI::Option* datasets =
      command->add_option("--dataset", options->datasets,
                          "Datasets, commas between: hotpotqa, 2wikimqa, musique, triviaqa, multi_news, gov_report");
  command->add_option("--data", settings.context.data, "Its file, or a folder with NAME.jsonl of each")
      ->check(CLI::ExistingPath)
      ->needs(datasets);
  command->add_option("--rows", options->rows, "Items (default 500 of a task, 200 of a dataset)");
  command
      ->add_option(
          "--max-tokens", options->max_tokens,
          "Of a dataset's prompt: a longer one loses its middle, as in LongBench (default: what the model takes)")
      ->needs(datasets);
  command->add_option("--new-tokens", options->new_tokens,
                      "Of an answer at most (default: of a task some more than the right one takes, else LongBench's)");
  command->add_option("--modes", options->modes, "Modes with commas between (default: all)");
  command->add_option("--batch", options->batch, "Items at once; fewer where memory ends (default 32)");
  command->add_option("--states", options->states, "Items whose states are compared layer by layer (default 0)");
  command->add_option("--seed", options->seed, "Of the tasks' rows and of intervals (default 7)");
  command->add_flag("--resume", settings.resume, "Keep the items of an earlier run into the same folder");
  command->add_flag("--quiet", settings.quiet, "No progress");
  command->add_option("--out", settings.out, "Folder of the report and of items.jsonl (default out/quality)");
  command
      ->add_option(
          "--compare", options->compared,
          "Two folders or items.jsonl of such runs: how many outputs are the same, and what explains the others")
      ->expected(2)
      ->check(CLI::ExistingPath)
      ->excludes(tasks)
      ->excludes(datasets);
  command->callback([options, &status] {
    if (!options->compared.empty()) {
      status = compare(options->compared);
      return;
    }
    RunSettings& settings = options->settings;
    if (settings.out.empty()) settings.out = "out/quality";
    status = run_and_show("quality", [&] { return suite_of(*options); }, settings, quality::kScores, 2);
  });
}

}  // namespace hypic
