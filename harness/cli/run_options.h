// What the commands that run a suite share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "harness/runner.h"

namespace hypic {

// What a model may be, as every command says it.
inline constexpr char kModels[] = "random:NAME[:SEED], a Hugging Face folder, or OWNER/NAME in the Hub's cache";

// Runs the suite on this terminal, stops on signals in an orderly way, says the verdict and where the report
// is. The program's exit code.
int run_and_say(const Suite& suite, RunSettings settings);

// The parts of an option's value between commas. Error: an empty one.
std::vector<std::string> at_commas(const std::string& option, const std::string& text);

// The same for the suite that `command` makes of its options, then on the terminal the tables of the report with this
// title (all where it is empty), the first `texts` columns to the left, numbers to the right. An error names the option
// that its place comes from: "quality: cases[0].parameters.cells[1].new_tokens: must …" is "--new-tokens: must …";
// without one the place is left out.
int run_and_show(const std::string& command, const std::function<Suite()>& suite, const RunSettings& settings,
                 std::string_view title, size_t texts);

// On the terminal: the first `texts` columns to the left, numbers to the right.
void print(const Table& table, size_t texts);

// Tensor-parallel ranks, and the GPU of each.
struct RankOptions {
  int64_t count = 1;
  std::string devices;

  std::vector<int64_t> given() const;  // by --devices; Error: no numbers
  // Of ModelChoice. Error: another number of devices than ranks, more GPUs than this machine has.
  std::vector<int> chosen(const std::string& backend) const;
  // As parameters of a case.
  void add_to(nlohmann::json& parameters, const std::string& backend) const;
};
// Adds --tensor-parallel and --devices.
void add_rank_options(CLI::App& command, RankOptions& ranks);

// Adds --backend, --rung and --kernel; `backend` receives all, as make_backend takes it.
void add_backend_options(CLI::App& command, std::string& backend, const std::string& help);

}  // namespace hypic
