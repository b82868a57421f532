#include "harness/runner.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/check.h"
#include "core/sha256.h"
#include "harness/environment.h"
#include "reports/result_log.h"
#include "reports/write.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What must agree for results of two runs to stand in one report.
std::string run_key(const Suite& suite, const RunSettings& settings,
                    const Environment& environment) {
  Sha256 hash;
  hash.add(read_file(suite.path)).add(settings.data).add(settings.model);
  for (const auto& [key, value] : environment.entries)
    if (key != "date" && key != "command") hash.add(key).add(value);
  return hex(hash.digest());
}

void prepare_folder(const RunSettings& settings, const std::string& key) {
  std::error_code error;
  fs::create_directories(settings.out, error);
  require(!error, settings.out, ": cannot make the folder: ", error.message());
  const std::string key_file = settings.out + "/run.key", log = settings.out + "/results.jsonl";
  if (settings.resume && fs::exists(log)) {
    require(read_file(key_file) == key, settings.out,
            ": holds results of another suite, data, commit or machine; "
            "run without --resume or choose another --out");
    return;
  }
  fs::remove(log, error);
  std::ofstream(key_file, std::ios::binary) << key;
  require(read_file(key_file) == key, settings.out, ": cannot write there");
}

// Progress of the case at hand: on a terminal one line that is overwritten, else nothing.
class Progress {
 public:
  Progress(const RunSettings& settings, size_t index, size_t count, const std::string& name)
      : log_(settings.terminal ? settings.log : nullptr),
        head_(str("[", index + 1, "/", count, "] ", name)) {}
  void operator()(double share, const std::string& what) {
    const auto now = std::chrono::steady_clock::now();
    if (!log_ || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    char percent[8];
    std::snprintf(percent, sizeof(percent), "%3.0f%%", 100 * share);
    *log_ << "\r\033[K" << (head_ + "  " + percent + "  " + what).substr(0, 118) << std::flush;
  }
  void clear() {
    if (log_) *log_ << "\r\033[K" << std::flush;
  }

 private:
  std::ostream* log_;
  std::string head_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace

Report run_suite(const Suite& suite, const RunSettings& settings) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < suite.cases.size(); ++i)
    if (suite.cases[i].name.find(settings.filter) != std::string::npos) chosen.push_back(i);
  require(!chosen.empty(), suite.path, ": no case's name contains \"", settings.filter, "\"");

  Report report;
  report.title = suite.title;
  report.description = suite.description;
  report.environment = environment();
  report.environment.set("command", settings.command_line);
  prepare_folder(settings, run_key(suite, settings, report.environment));
  ResultLog log(settings.out);
  DriverContext context;
  context.data = settings.data;
  context.model = settings.model;
  const auto start = std::chrono::steady_clock::now();
  for (size_t n = 0; n < chosen.size(); ++n) {
    const SuiteCase& suite_case = suite.cases[chosen[n]];
    Result result;
    bool known = false;
    for (const Result& earlier : log.finished())
      if (earlier.name == suite_case.name) {
        result = earlier;
        known = true;
      }
    if (!known) {
      const double spent =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (settings.time_budget && spent >= *settings.time_budget) {
        result.name = suite_case.name;
        result.driver = suite_case.driver;
        result.verdict = Verdict::skip;
        result.why =
            str("the time budget of ", *settings.time_budget, " s is spent; --resume goes on here");
      } else {
        Progress progress(settings, n, chosen.size(), suite_case.name);
        context.progress = [&](double share, const std::string& what) { progress(share, what); };
        result = run_case(suite_case, str(suite.path, ": cases[", chosen[n], "]"), context);
        progress.clear();
        log.append(result);
      }
    }
    if (settings.log) {
      char seconds[32];
      std::snprintf(seconds, sizeof(seconds), "%7.1f s", result.seconds);
      *settings.log << to_string(result.verdict) << seconds << "  " << result.name << ": "
                    << result.why << (known ? " (from the earlier run)" : "") << std::endl;
    }
    report.results.push_back(std::move(result));
  }
  write_report(report, settings.out);
  return report;
}

}  // namespace hypic
