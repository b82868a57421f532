#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>
#include <set>

#include "core/check.h"
#include "harness/assets.h"
#include "harness/backends.h"
#include "harness/cli/commands.h"
#include "harness/cli/run_options.h"
#include "harness/kernel_process.h"
#include "harness/model_choice.h"
#include "harness/runner.h"
#include "reports/text.h"
#include "reports/write.h"
#include "reports/view.h"

namespace hypic {
namespace {

std::atomic<bool> stop_asked = false;

// The first signal asks for an orderly end, with a report; the next one ends at once.
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = true; };
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// Characters of UTF-8 text.
size_t width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

int run_and_say(const Suite& suite, RunSettings settings) {
  settings.log = &std::cout;
  settings.terminal = isatty(STDOUT_FILENO) && !settings.quiet;
  if (!settings.terminal && !settings.quiet) settings.progress = &std::cerr;
  settings.stop = &stop_asked;
  settings.resume = settings.resume || kernel_process::goes_on();
  stop_on_signals();
  const Report report = run_suite(suite, settings);
  const size_t all = report.results.size(), unfinished = count(report, Verdict::undecided);
  std::cout << to_string(overall(report)) << ": ";
  std::string said;  // of several cases, how many are not as they should be
  for (const auto& [verdict, what] :
       {std::pair{Verdict::fail, "failed"}, {Verdict::invalid, "invalid"}, {Verdict::undecided, "not finished"}})
    if (const size_t n = count(report, verdict)) said += str(said.empty() ? "" : ", ", n, " ", what);
  if (all > 1 && !said.empty()) std::cout << "of " << all << " cases " << said << "; ";
  if (unfinished > 0) std::cout << "--resume goes on; ";
  std::cout << "report in " << settings.out << "/report.html";
  for (const auto& [key, value] : report.environment.entries)
    if (key == "seconds") std::cout << "; seconds: " << value;
  std::cout << "\n";
  return exit_code(report);
}

std::vector<std::string> at_commas(const std::string& option, const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  for (const std::string& part : parts)
    require(!part.empty(), option, ": an empty ", option == "--modes" ? "mode" : "part", " in \"", text, "\"");
  return parts;
}

namespace {

std::string by_option(const std::string& command, const std::string& what) {
  const std::string place = command + ": cases[0]";
  const size_t end = what.starts_with(place) ? what.find(": ", place.size()) : what.npos;
  if (end == what.npos) return what;
  std::string name = what.substr(place.size(), end - place.size());  // such as .parameters.cells[1].new_tokens
  name.erase(0, name.rfind('.') + 1);
  if (name.empty() || name == "parameters" || name.starts_with("cells")) return what.substr(end + 2);
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name + what.substr(end);
}

}  // namespace

void print(const Table& table, size_t texts) {
  std::vector<std::vector<std::string>> lines = {table.heads};
  for (const std::vector<Cell>& row : table.rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const Cell& cell : row) line.push_back(cell_text(cell));
  }
  std::vector<size_t> widths(table.heads.size(), 0);
  for (const auto& line : lines)
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], width(line[i]));
  for (const auto& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string gap(widths[i] - width(line[i]), ' ');
      text += (i < texts ? line[i] + gap : gap + line[i]) + "  ";
    }
    std::cout << text.substr(0, text.find_last_not_of(' ') + 1) << "\n";
  }
  if (!table.note.empty()) std::cout << table.note << "\n";
}

int run_and_show(const std::string& command, const std::function<Suite()>& suite, const RunSettings& settings,
                 std::string_view title, size_t texts) {
  int status = 0;
  try {
    status = run_and_say(suite(), settings);
  } catch (const Error& error) {
    throw Error(by_option(command, error.what()));
  }
  for (const Result& result : read_report(settings.out + "/report.json").results)
    for (const Table& table : result.tables)
      if (title.empty() || table.title == title) print(table, texts);
  return status;
}

void add_backend_options(CLI::App& command, std::string& backend, const std::string& help) {
  command.add_option("--backend", backend, help);
  struct Kernels {
    std::string rung, file;
    int seconds = kernel_process::kSeconds;
  };
  const auto kernels = std::make_shared<Kernels>();
  command.add_option("--rung", kernels->rung,
                     "Kernels of cuda and cuda32: fast (default; plain where none is) or plain");
  CLI::Option* file = command.add_option(
      kernel_process::kOption, kernels->file,
      "Shared library whose kernels replace the backend's (docs/bring-your-own-kernel.md); it runs in a child process");
  command.add_option("--kernel-seconds", kernels->seconds, "That one call of it may take (default 120)")
      ->check(CLI::Range(1, 86400))
      ->needs(file);
  command.parse_complete_callback([&backend, kernels, file] {
    backend = on_rung(backend, kernels->rung);
    if (!*file) return;
    backend = with_kernel(backend, kernels->file);
    kernel_process::limit_seconds(kernels->seconds);
  });
}

std::vector<int64_t> RankOptions::given() const {
  std::vector<int64_t> numbers;
  if (devices.empty()) return numbers;
  for (const std::string& part : at_commas("--devices", devices)) {
    int64_t number = -1;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    require(error == std::errc{} && stop == part.data() + part.size() && 0 <= number && number < kMostRanks,
            "--devices: must be numbers of GPUs with commas between, is ", devices);
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<int> RankOptions::chosen(const std::string& backend) const {
  std::vector<int> all = rank_devices(count, given(), "--devices");
  require_gpus({.backend = backend, .devices = all});
  return all;
}

void RankOptions::add_to(nlohmann::json& parameters, const std::string& backend) const {
  chosen(backend);
  if (count > 1) parameters["tensor_parallel"] = count;
  if (!devices.empty()) parameters["devices"] = given();
}

void add_rank_options(CLI::App& command, RankOptions& ranks) {
  command
      .add_option("--tensor-parallel", ranks.count,
                  "Ranks that share the model, each on a GPU of its own (default 1; docs/tensor-parallel.md)")
      ->check(CLI::Range(int64_t{1}, kMostRanks));
  command.add_option("--devices", ranks.devices,
                     "Their GPUs, commas between (default 0,1,…); the same one for all tries them on one GPU");
}

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
  command->add_option("--data", settings.context.data,
                      "Dataset file in place of the project's own text; for driver quality also a folder of them")
      ->check(CLI::ExistingPath);
  command->add_option("--model", settings.context.model, str("Model of every case: ", kModels));
  add_backend_options(*command, settings.context.backend,
                      "Backend of every case: cpu, cpu64, cuda (bfloat16) or cuda32");
  command->add_option("--filter", settings.filter, "Only cases whose name contains this (case matters)");
  command->add_flag("--resume", settings.resume,
                    "Keep the finished cases of an earlier run into the same folder");
  command->add_flag("--quiet", settings.quiet, "No progress");
  const CLI::Option* budget = command->add_option("--time-budget", options->time_budget,
                                                  "Seconds after which no case is begun");
  command->add_flag("--dry-run", options->dry_run, "Check the cases, their models and data, and list them");
  command->callback([options, budget, &status] {
    RunSettings& settings = options->settings;
    const Suite suite = load_suite(asset(options->suite));
    if (options->dry_run) {
      std::set<std::string> no_gpu;
      settings.context.no_gpu = &no_gpu;
      const std::vector<PreparedCase> cases = prepare_suite(suite, settings);
      for (const PreparedCase& prepared : cases)
        std::cout << prepared.suite_case->name << ": driver " << prepared.suite_case->driver
                  << ", expectations: " << prepared.suite_case->expectations.size() << "\n";
      if (const std::string estimate = estimated(suite, cases); !estimate.empty()) std::cout << estimate << "\n";
      for (const std::string& why : no_gpu) std::cout << "cannot run on this machine: backend " << why << "\n";
      return;
    }
    require(options->time_budget >= 0, "--time-budget: must not be negative");
    if (*budget) settings.time_budget = options->time_budget;
    if (settings.out.empty())
      settings.out = "out/" + std::filesystem::path(options->suite).stem().string();
    status = run_and_say(suite, settings);
  });
}

}  // namespace hypic
