// hypic-bench: times of single operations beside what the device could do. Exit codes: 0 all ran, 1
// one failed, 2 wrong usage, no such backend or a file that cannot be written.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <regex>
#include <sstream>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/bench/measure.h"
#include "harness/bench/table.h"
#include "harness/environment.h"
#include "harness/exit_code.h"
#include "harness/pattern.h"
#include "kernels/cuda_backend.h"
#include "kernels/device.h"
#include "reports/text.h"
#include "reports/write.h"

namespace hypic::bench {
namespace {

struct Options {
  std::string backend, rung, filter, json, markdown;
  bool small = false, cold = false, list = false;
  ReplayOptions replay{.budget = 2};
};

// Google Benchmark's reports with the names as registered, without "/manual_time".
template <class Base>
struct Plain : Base {
  using Base::Base;
  void ReportRuns(const std::vector<benchmark::BenchmarkReporter::Run>& runs) override {
    auto named = runs;
    for (auto& run : named) run.run_name.time_type.clear();
    Base::ReportRuns(named);
  }
};

// One reporter to the terminal, one into a text: what Google Benchmark writes into a file by itself it does
// not check.
class Both final : public benchmark::BenchmarkReporter {
 public:
  Both(benchmark::BenchmarkReporter& first, benchmark::BenchmarkReporter& second)
      : first_(first), second_(second) {}
  bool ReportContext(const Context& context) override {
    return first_.ReportContext(context) && second_.ReportContext(context);
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    first_.ReportRuns(runs);
    second_.ReportRuns(runs);
  }
  void Finalize() override {
    first_.Finalize();
    second_.Finalize();
  }

 private:
  benchmark::BenchmarkReporter &first_, &second_;
};

// What nvidia-smi says of these fields, or why it says nothing.
std::string nvidia_smi(const char* fields) {
  const std::string command =
      str("nvidia-smi -i 0 --format=csv,noheader --query-gpu=", fields, " 2>/dev/null");
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  char line[256] = "";
  if (!pipe || !fgets(line, sizeof line, pipe.get())) return "unknown: no answer of nvidia-smi";
  return one_line(line);
}

// Runs benchmarks by Google Benchmark; what they gave, in order.
std::vector<Measured> run(const Options& o, Backend& backend, const std::vector<Bench>& benches,
                          const Ceilings& ceilings, const char* program,
                          const std::vector<std::string>& others) {
  std::vector<Measured> all;
  const std::string what = backend.launches().empty() && !cuda::stream_of(backend) ? o.backend : "";
  for (const Bench& bench : benches)
    benchmark::RegisterBenchmark(bench.name.c_str(),
                                 [&, bench](benchmark::State& state) {
                                   Measured m = measure(bench, backend, o.replay);
                                   if (m.kernels.empty()) m.kernels = what;
                                   all.push_back(m);
                                   if (!m.failure.empty()) {
                                     state.SkipWithError(m.failure.c_str());
                                     return;
                                   }
                                   const double seconds = median(m.seconds);
                                   for (auto iteration : state) {
                                     (void)iteration;
                                     state.SetIterationTime(seconds);
                                   }
                                   state.counters["min_us"] = m.seconds.front() * 1e6;
                                   state.counters["max_us"] = m.seconds.back() * 1e6;
                                   state.counters["runs"] = static_cast<double>(m.seconds.size());
                                   state.counters["GB/s"] = m.cost.bytes / seconds / 1e9;
                                   state.counters["TFLOP/s"] = m.cost.operations / seconds / 1e12;
                                   state.counters["of_limit"] =
                                       limit_seconds(m.cost, ceilings) / seconds;
                                   state.SetLabel(m.kernels);
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);

  // One iteration each, for it is the median of replays already.
  std::vector<std::string> words = {program, "--benchmark_min_time=0"};
  words.insert(words.end(), others.begin(), others.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  auto count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  require(count == 1, pointers[count - 1],
          ": neither an option of hypic-bench nor of Google Benchmark");

  using Console = benchmark::ConsoleReporter;
  Plain<Console> console(isatty(STDOUT_FILENO) ? Console::OO_ColorTabular : Console::OO_Tabular);
  Plain<benchmark::JSONReporter> json;
  std::ostringstream text;
  json.SetOutputStream(&text);
  Both both(console, json);
  benchmark::RunSpecifiedBenchmarks(&both);
  if (!o.json.empty()) write_file_atomically(o.json, text.str());
  return all;
}

int run(const Options& o, const char* program, const std::vector<std::string>& others) {
  const Sizes sizes{o.small};
  const std::regex filter = pattern_of("--filter", o.filter);
  require(std::isfinite(o.replay.budget) && o.replay.budget > 0,
          "--budget: must be a positive number of seconds, is ", o.replay.budget);
  std::vector<Bench> benches;
  for (Bench& bench : all_benches(sizes))
    if (std::regex_search(bench.name, filter)) benches.push_back(std::move(bench));
  require(!benches.empty(), "--filter \"", o.filter, "\" names no benchmark; --list shows them all");
  if (o.list) {
    for (const Bench& bench : benches) std::cout << bench.name << "\n";
    return 0;
  }
  for (const std::string& file : {o.json, o.markdown}) {  // before anything is measured
    const std::filesystem::path folder = std::filesystem::path(file).parent_path();
    require(folder.empty() || std::filesystem::is_directory(folder), file, ": no such folder to write into");
  }
  const std::unique_ptr<Backend> backend = make_backend(o.backend);
  ReplayOptions warm = o.replay;
  warm.cold_l2 = false;  // neither ceiling fits into L2
  const Ceilings ceilings = measure_ceilings(*backend, sizes, warm);

  Environment where = environment();
  where.set("backend", o.backend);
  where.set("sizes", o.small ? "small" : "full");
  if (cuda::stream_of(*backend)) {
    where.set("driver", nvidia_smi("driver_version"));
    where.set("clocks",
              nvidia_smi("clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu") +
                  " (SM, its maximum, memory, power limit, °C; after the ceilings)");
    where.set("L2", o.replay.cold_l2 ? "cold: 256 MiB written before each replay"
                                     : "as the replay before left it");
  }
  where.set("copy ceiling",
            str(format_number(ceilings.bytes_per_second / 1e9), " GB/s, read and write"));
  where.set("matmul ceiling", str(format_number(ceilings.operations_per_second / 1e12),
                                  " TFLOP/s in ", name_of(backend->compute_dtype())));
  for (const auto& [key, value] : where.entries) benchmark::AddCustomContext(key, value);

  const std::vector<Measured> all = run(o, *backend, benches, ceilings, program, others);
  const Report report = to_report(all, ceilings, where);
  if (!o.markdown.empty()) write_file_atomically(o.markdown, to_markdown(report));
  return exit_code(report);
}

}  // namespace
}  // namespace hypic::bench

int main(int argc, char** argv) {
  hypic::bench::Options o;
  CLI::App app{"hypic-bench times single operations of a backend beside what the device could do."};
  app.allow_extras();  // of Google Benchmark
  app.add_option("--backend", o.backend,
                 "cuda (default where there is a GPU), cuda32, cuda:plain, cpu, …");
  app.add_option("--rung", o.rung, "Kernels of cuda and cuda32: fast (default) or plain");
  app.add_option("--filter", o.filter, "Only benchmarks whose name this regular expression finds");
  app.add_option("--json", o.json, "File for Google Benchmark's JSON");
  app.add_option("--markdown", o.markdown, "File for a table");
  const CLI::Option* size =
      app.add_flag("--small,!--full", o.small,
                   "Sizes for a CPU (default on one), or those of docs/benchmarks.md");
  app.add_flag("--cold", o.replay.cold_l2,
               "Write 256 MiB before each replay, so that nothing is in L2");
  app.add_option("--replays", o.replay.replays, "At most so many of each (default 20)")
      ->check(CLI::Range(1, 10000));
  app.add_option("--budget", o.replay.budget,
                 "Seconds for the replays of one benchmark (default 2)");
  app.add_flag("--list", o.list, "Names only");
  return hypic::exit_code(app, "hypic-bench", [&] {
    hypic::parse(app, argc, argv);
    if (o.backend.empty()) {
      std::string why;
      o.backend = hypic::gpus(&why).empty() ? "cpu" : "cuda";
    }
    o.backend = hypic::on_rung(o.backend, o.rung);
    if (size->count() == 0) o.small = !o.backend.starts_with("cuda");
    return hypic::bench::run(o, argv[0], app.remaining());
  });
}
