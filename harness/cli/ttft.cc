#include "harness/drivers/ttft.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/cli/run_options.h"
#include "harness/measure/workload.h"
#include "harness/model_choice.h"

namespace hypic {
namespace {

struct Options {
  RunSettings settings;
  std::string model = "random:qwen3.5-tiny", backend = "cpu";
  RankOptions ranks;
  Workload workload;
  std::string modes = "full,prefix,transition_rope_seam";
  int64_t missed = 0, repeats = 20, chunk = 8192;
};

// One cell as a suite; bounds of the numbers are the driver's.
Suite suite_of(const Options& options, bool rows_given) {
  nlohmann::json cell;
  const Workload& w = options.workload;
  if (w.dataset.empty())
    cell = {{"segments", w.segments}, {"tokens", w.tokens}, {"question", w.question}};
  else
    cell = {{"dataset", w.dataset}};
  if (rows_given) cell["rows"] = w.rows;
  std::vector<std::string> modes = at_commas("--modes", options.modes);
  bool missed = options.missed == 0;
  for (std::string& text : modes) {
    if (options.missed == 0 || text.find('@') != text.npos) continue;
    try {
      if (cell_mode(text).mode.reuse != Reuse::segments) continue;
    } catch (const Error& error) {
      fail("--modes: ", error.what());
    }
    text += str("@missed=", options.missed);
    missed = true;
  }
  require(missed, "--missed: none of --modes takes it; modes that reuse segments and name no @STATE do");
  SuiteCase c;
  c.name = w.label();
  c.driver = "ttft";
  c.parameters = {{"model", options.model}, {"backend", options.backend}, {"cells", {cell}},
                  {"modes", modes},         {"repeats", options.repeats}, {"chunk", options.chunk}};
  options.ranks.add_to(c.parameters, options.backend);
  Suite suite;
  suite.path = "ttft";
  suite.title = str("hypic ttft of ", options.model, " on ", options.backend);
  suite.description = "What each column means: docs/ttft.md.";
  suite.cases = {std::move(c)};
  return suite;
}

}  // namespace

void add_ttft(CLI::App& app, int& status, const std::string& command_line) {
  CLI::App* command =
      app.add_subcommand("ttft", "Time to first token of reuse modes against full recompute and a prefix cache");
  const auto options = std::make_shared<Options>();
  options->settings.command_line = command_line;
  Workload& workload = options->workload;
  command->add_option("--model", options->model, str(kModels, " (default ", kDefaultModel, ")"));
  add_backend_options(*command, options->backend, "Backend: cpu (default), cpu64, cuda (bfloat16) or cuda32");
  add_rank_options(*command, options->ranks);
  CLI::Option* segments =
      command->add_option("--segments", workload.segments, "Segments before the question (default 4)");
  CLI::Option* tokens = command->add_option("--tokens", workload.tokens, "Tokens of each (default 1024)");
  command->add_option("--question", workload.question, "Tokens of the question (default 64)");
  command->add_option("--modes", options->modes,
                      "MODE or MODE@STATE with commas between; STATE: cold, warm_prefix, "
                      "warm_prefix_other_order, "
                      "warm_segment, missed=K (default full,prefix,transition_rope_seam)");
  command->add_option("--missed", options->missed,
                      "Segments that are not cached, of modes without a STATE (default 0)");
  command->add_option("--repeats", options->repeats, "Timed runs of each mode (default 20)");
  command->add_option("--chunk", options->chunk, "Rows of one forward at most (default 8192)");
  command
      ->add_option("--dataset", workload.dataset,
                   "Lengths of a dataset's rows in place of --segments and --tokens: hotpotqa, "
                   "triviaqa, multi_news or gov_report")
      ->excludes(segments)
      ->excludes(tokens);
  const CLI::Option* rows = command->add_option("--rows", workload.rows, "Prompts (default 1; of a dataset 8)");
  command
      ->add_option("--data", options->settings.context.data,
                   "File of that dataset: its own rows in place of random tokens")
      ->check(CLI::ExistingFile);
  command->add_flag("--resume", options->settings.resume,
                    "Keep the times of an earlier run into the same folder, if it finished");
  command->add_flag("--quiet", options->settings.quiet, "No progress");
  command->add_option("--out", options->settings.out, "Folder of the report (default out/ttft-CELL)");
  command->callback([options, rows, &status] {
    RunSettings& settings = options->settings;
    require(settings.context.data.empty() || !options->workload.dataset.empty(),
            "--data: needs --dataset, which says how to read and cut its rows");
    const Workload& w = options->workload;
    require(options->missed >= 0, "--missed: must be 0 or more, is ", options->missed);
    require(!w.dataset.empty() || options->missed <= w.segments, "--missed: ", options->missed, " of ", w.segments,
            " segments cannot miss");
    if (settings.out.empty()) settings.out = "out/ttft-" + options->workload.label();
    const auto suite = [&] { return suite_of(*options, rows->count() > 0); };
    status = run_and_show("ttft", suite, settings, ttft::kTimes, 3);
  });
}

}  // namespace hypic
