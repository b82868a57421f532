#include "harness/runner.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "core/check.h"
#include "core/file.h"
#include "core/sha256.h"
#include "harness/environment.h"
#include "harness/kernel_process.h"
#include "harness/model_choice.h"
#include "reports/result_log.h"
#include "reports/text.h"
#include "reports/write.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxKey = 1024;

void add_file(Sha256& hash, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> block(1 << 20);
  do {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    hash.add(block.data(), static_cast<size_t>(file.gcount()));
  } while (file);
}

// A folder by the names, sizes and times of its files.
void add_folder(Sha256& hash, const std::string& folder) {
  hash.add(folder);
  std::error_code error;
  std::map<std::string, fs::directory_entry> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) files[entry.path()] = entry;
  for (const auto& [path, entry] : files) {
    hash.add(path).add(static_cast<int64_t>(entry.file_size(error)));
    hash.add(static_cast<int64_t>(entry.last_write_time(error).time_since_epoch().count()));
  }
}

// What must agree for results of two runs to stand in one report: suite, data, models, program and machine.
std::string run_key(const Suite& suite, const RunSettings& settings, const Environment& environment) {
  Sha256 hash;
  add_file(hash, suite.path);
  add_file(hash, "/proc/self/exe");
  hash.add(settings.context.backend);
  for (const int device : settings.context.devices) hash.add(int64_t{device});
  if (const std::string kernel = kernel_process::library(); !kernel.empty()) add_file(hash, kernel);
  for (const std::string& file : {settings.context.data, settings.context.logits}) {
    hash.add(file);
    std::error_code error;
    if (fs::is_directory(file, error))
      add_folder(hash, file);
    else if (!file.empty())
      add_file(hash, file);
  }
  add_folder(hash, model_path(settings.context.model));
  for (const SuiteCase& suite_case : suite.cases) {
    // A suite that a command made has no file.
    hash.add(suite_case.name).add(suite_case.driver).add(suite_case.parameters.dump());
    const auto model = suite_case.parameters.find("model");
    if (model != suite_case.parameters.end() && model->is_string()) add_folder(hash, model_path(*model));
  }
  for (const auto& [key, value] : environment.entries)
    if (key != "date" && key != "command") hash.add(key).add(value);
  return hex(hash.digest());
}

// The log owns the folder from here on; an earlier run's results and items are kept only for a resume of the same run.
std::unique_ptr<ResultLog> open_log(const RunSettings& settings, const std::string& key, ItemLog& items) {
  auto log = std::make_unique<ResultLog>(settings.out, settings.resume);
  items.open(settings.out, settings.resume);
  const std::string key_file = settings.out + "/run.key";
  if (!log->finished().empty() || !items.empty()) {
    require(fs::exists(key_file), settings.out,
            ": holds results but no run.key to tell which run they are of; run without --resume or "
            "choose another --out");
    require(read_file(key_file, kMaxKey) == key, settings.out,
            ": holds results of another suite, data, model, program or machine; run without --resume or choose "
            "another --out");
    return log;
  }
  write_file_atomically(key_file, key);
  return log;
}

int terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// At most `columns` characters of UTF-8 text.
std::string cut(const std::string& text, int columns) {
  size_t end = 0;
  for (int n = 0; end < text.size() && n < columns; ++n)
    do ++end;
    while (end < text.size() && (text[end] & 0xc0) == 0x80);
  return text.substr(0, end);
}

// The case at hand: on a terminal one line that is overwritten, elsewhere a line now and then. Throws Interrupted
// once asked to stop.
class Progress {
 public:
  Progress(const RunSettings& settings, size_t index, size_t count, const std::string& name)
      : settings_(settings), head_(str("[", index + 1, "/", count, "] ")), name_(name) {}
  void operator()(double share, const std::string& what) {
    if (settings_.stop && *settings_.stop) throw Interrupted();
    const auto now = Clock::now();
    const bool overwrites = settings_.terminal && settings_.log;
    if (!overwrites && !settings_.progress) return;
    if (now - last_ < std::chrono::duration<double>(overwrites ? 0.1 : settings_.progress_seconds)) return;
    last_ = now;
    const double spent = std::chrono::duration<double>(now - start_).count();
    char percent[8], left[32] = "";
    std::snprintf(percent, sizeof(percent), "%3.0f%%", 100 * share);
    if (share >= 0.05)  // before, there is little to go by
      std::snprintf(left, sizeof(left), ", about %.0f s left", spent / share - spent);
    const std::string line = one_line(str(head_, percent, left, "  ", name_, ": ", what));
    if (overwrites)
      *settings_.log << "\r\033[K" << cut(line, terminal_width() - 1) << std::flush;
    else
      *settings_.progress << line << std::endl;
  }
  void clear() const {
    if (settings_.terminal && settings_.log) *settings_.log << "\r\033[K" << std::flush;
  }

 private:
  const RunSettings& settings_;
  using Clock = std::chrono::steady_clock;
  const std::string head_, name_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = settings_.terminal ? Clock::time_point{} : start_;
};

// Runs one case, or says why it stays undecided; only finished cases are logged.
class CaseRunner {
 public:
  CaseRunner(const RunSettings& settings, ResultLog& log, size_t count)
      : settings_(settings), log_(log), count_(count) {}

  Result run(size_t index, const PreparedCase& prepared) {
    const SuiteCase& suite_case = *prepared.suite_case;
    for (const Result& earlier : log_.finished())
      if (earlier.name == suite_case.name) {
        say(earlier, " (from the earlier run)");
        return earlier;
      }
    Result result;
    result.name = suite_case.name;
    result.driver = suite_case.driver;
    result.verdict = Verdict::undecided;
    const auto since = [](std::chrono::steady_clock::time_point begin) {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    const double spent = since(start_);
    if (settings_.stop && *settings_.stop) {
      result.why = "not run: interrupted; --resume goes on here";
    } else if (settings_.time_budget && spent >= *settings_.time_budget) {
      result.why = str("not run: the time budget of ", *settings_.time_budget,
                       " s is spent; --resume goes on here");
    } else {
      Progress progress(settings_, index, count_, suite_case.name);
      const auto begin = std::chrono::steady_clock::now();
      kernel_process::at_case(settings_.out, suite_case.name, suite_case.driver);
      try {
        result = run_case(suite_case, prepared.work,
                          [&](double share, const std::string& what) { progress(share, what); },
                          subject_of(suite_case, settings_.context));
        // A case that bad input stopped runs again once that is mended.
        if (result.verdict != Verdict::invalid) log_.append(result);
      } catch (const Interrupted&) {
        result.why = "interrupted; --resume runs it again";
        result.seconds = since(begin);
      }
      kernel_process::at_case({}, {}, {});
      progress.clear();
    }
    say(result, "");
    return result;
  }

  // What the plug-in of this run computed.
  Result of_kernel() {
    const Result result = kernel_process::result();
    say(result, "");
    return result;
  }

 private:
  void say(const Result& result, const char* remark) {
    if (!settings_.log) return;
    char head[48];
    std::snprintf(head, sizeof(head), "%-9s %7.1f s  ", std::string(to_string(result.verdict)).c_str(),
                  result.seconds);
    // A model that does not load stops every case for the same reason; the report has it for each.
    const bool again = result.verdict == Verdict::invalid && result.why == said_;
    *settings_.log << head << one_line(str(result.name, ": ", again ? "the same" : result.why)) << remark << std::endl;
    if (result.verdict == Verdict::fail || result.verdict == Verdict::invalid) said_ = result.why;
  }

  const RunSettings& settings_;
  ResultLog& log_;
  const size_t count_;
  std::string said_;  // why the last case that failed or was invalid did not pass
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

std::vector<PreparedCase> prepare_suite(const Suite& suite, const RunSettings& settings) {
  std::vector<PreparedCase> prepared;
  for (size_t i = 0; i < suite.cases.size(); ++i) {
    const SuiteCase& suite_case = suite.cases[i];
    if (suite_case.name.find(settings.filter) == std::string::npos) continue;
    const std::string where = str(suite.path, ": cases[", i, "]");
    const bool on_gpu = backend_of(suite_case, settings.context).starts_with("cuda");
    const double seconds = on_gpu && suite_case.gpu_seconds > 0 ? suite_case.gpu_seconds : suite_case.seconds;
    Progress progress(settings, i, suite.cases.size(), suite_case.name);
    DriverContext context = settings.context;
    context.progress = [&](double share, const std::string& what) { progress(share, what); };
    try {
      if (settings.stop && *settings.stop) throw Interrupted();
      prepared.push_back({&suite_case, find_driver(suite_case.driver)->prepare(suite_case, where, context), seconds});
      progress.clear();
    } catch (const Interrupted&) {
      progress.clear();
      prepared.push_back({&suite_case, [](const ProgressFn&) -> Result { throw Interrupted(); }, seconds});
    } catch (const Error& error) {
      const std::string what = error.what();
      if (settings.lenient)
        prepared.push_back({&suite_case, [what](const ProgressFn&) -> Result { fail(what); }, seconds});
      else
        throw Error(what.starts_with(suite.path) ? what : str(where, ": ", what));
    }
  }
  require(!prepared.empty(), suite.path, ": no case's name contains \"", settings.filter, "\"");
  return prepared;
}

std::string estimated(const Suite& suite, const std::vector<PreparedCase>& cases) {
  double seconds = 0;
  for (const PreparedCase& prepared : cases) {
    if (prepared.seconds == 0) return "";
    seconds += prepared.seconds;
  }
  return str("about ", std::llround(seconds), " s ", suite.seconds_on.empty() ? "" : str("on ", suite.seconds_on, " "),
             "by the suite");
}

namespace {

// What is to be known before the first case runs.
void say_ahead(const Suite& suite, const RunSettings& settings, const std::vector<PreparedCase>& cases,
               bool data_used) {
  if (!settings.log) return;
  const std::string estimate = estimated(suite, cases);
  if (!estimate.empty())
    *settings.log << cases.size() << (cases.size() == 1 ? " case, " : " cases, ") << estimate << std::endl;
  if (settings.time_budget)
    for (const PreparedCase& prepared : cases)
      if (prepared.seconds > *settings.time_budget)
        *settings.log << one_line(str("the time budget of ", *settings.time_budget, " s is less than the about ",
                                      std::llround(prepared.seconds), " s of \"", prepared.suite_case->name,
                                      "\"; a case that is begun runs to its end"))
                      << std::endl;
  if (!settings.context.data.empty() && !data_used)
    *settings.log << one_line(str("--data ", settings.context.data, ": no case here reads it")) << std::endl;
}

}  // namespace

Report run_suite(const Suite& suite, const RunSettings& settings) {
  bool data_used = false;
  ItemLog items;
  RunSettings preparing = settings;
  preparing.context.items = &items;
  preparing.context.data_used = &data_used;
  const std::vector<PreparedCase> cases = prepare_suite(suite, preparing);
  Report report;
  report.title = suite.title;
  report.description = suite.description;
  if (!settings.filter.empty())
    report.description += str("\nOnly ", cases.size(), " of ", suite.cases.size(),
                              " cases: those whose name contains \"", settings.filter, "\".");
  for (const auto& [what, name] : {std::pair{"model", settings.context.model}, {"backend", settings.context.backend}})
    if (!name.empty()) report.description += str("\nThe ", what, " of every case: ", name, ", by --", what, ".");
  if (const size_t ranks = settings.context.devices.size(); ranks > 1)
    report.description += str("\nTensor-parallel ranks of every case that can have some: ", ranks, ".");
  report.environment = environment();
  report.environment.set("command", settings.command_line);
  const auto log = open_log(settings, run_key(suite, settings, report.environment), items);
  say_ahead(suite, settings, cases, data_used);
  CaseRunner runner(settings, *log, cases.size());
  for (size_t i = 0; i < cases.size(); ++i) report.results.push_back(runner.run(i, cases[i]));
  if (kernel_process::is_child()) report.results.push_back(runner.of_kernel());
  double seconds = 0;
  for (const Result& result : report.results) seconds += result.seconds;
  const std::string estimate = estimated(suite, cases);
  report.environment.set("seconds", str(format_number(seconds, Format::fixed, 1), " in all cases",
                                        estimate.empty() ? "" : "; ", estimate));
  write_report(report, settings.out);
  return report;
}

}  // namespace hypic
