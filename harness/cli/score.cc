#include "datasets/score.h"

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "harness/cli/commands.h"

namespace hypic {

void add_score(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("score", "Score predictions as LongBench does");
  struct Options {
    std::string dataset, path;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  command->add_option("--dataset", options->dataset, "hotpotqa, 2wikimqa, musique, …")->required();
  command->add_flag("--json", options->json, "As JSON: each score, the mean, its 95 % interval");
  command
      ->add_option("predictions", options->path,
                   "JSON Lines of {\"pred\": text, \"answers\": [text, …]}; - is standard input")
      ->required();
  command->callback([options] {
    const DatasetTraits& traits = dataset_traits(options->dataset);
    const std::vector<double> scores = score_file(options->path, traits);
    const double mean = mean_of(scores);
    const Interval interval = bootstrap_interval(scores);
    if (options->json) {
      std::cout << nlohmann::ordered_json{{"scores", scores},
                                          {"mean", mean},
                                          {"interval", {interval.low, interval.high}}}
                << "\n";
      return;
    }
    std::cout << options->dataset << ": " << (traits.metric == Metric::qa_f1 ? "F1 " : "ROUGE-L ")
              << std::fixed << std::setprecision(2) << 100 * mean << " over " << scores.size()
              << " rows, 95 % interval " << 100 * interval.low << " to " << 100 * interval.high
              << "\n";
  });
}

}  // namespace hypic
