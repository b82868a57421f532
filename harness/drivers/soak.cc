#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/measure/distance.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "serving/engine.h"

namespace hypic {
namespace {

constexpr int32_t kPageSize = 16;
constexpr int64_t kShortest = 12, kLongest = 80;  // tokens of a segment
constexpr int64_t kQuestion = 12;                 // tokens of a question, at most
constexpr int kMostSegments = 4, kMostTokens = 4, kMostRequests = 3;

struct Settings {
  ModelChoice choice;
  int64_t seconds = 0, segments = 0, share = 0, tiers = 0, verify = 0, seed = 0;
};

double resident_mib() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// A folder that goes with the run.
class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = (std::filesystem::temp_directory_path() / "hypic-soak-XXXXXX").string();
    require(mkdtemp(path_.data()), path_, ": cannot make a folder for the disk tier");
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Soak {
 public:
  Soak(const Settings& settings, const ProgressFn& progress)
      : settings_(settings),
        progress_(progress),
        backend_(make_backend(settings.choice.backend)),
        model_(Model::open(*backend_, settings.choice.model)),
        rng_(static_cast<uint64_t>(settings.seed)) {
    for (int64_t i = 0; i < settings.segments; ++i)
      segments_.push_back(random_tokens(draw(kShortest, kLongest), spec().vocabulary, rng_()));
  }

  Result run() {
    Engine engine(model_, options());
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    const double limit = static_cast<double>(settings_.seconds);
    std::string broken;
    // Caches fill up in the first third; what is beyond its peak later is growth.
    double early_peak = 0, late_peak = 0;
    while (broken.empty() && seconds() < limit) {
      progress_(seconds() / limit, str(requests_, " requests"));
      step(engine);
      try {
        engine.check_integrity();
      } catch (const InternalError& error) {
        broken = error.what();
      }
      double& peak = seconds() < limit / 3 ? early_peak : late_peak;
      peak = std::max(peak, resident_mib());
    }
    return report(engine.usage(), broken, std::max(0.0, late_peak - early_peak));
  }

 private:
  const ModelSpec& spec() const { return model_.spec(); }
  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng_);
  }

  // The budget is a share of what all segments need; the pools hold that and one batch beside it,
  // so that slots run short as well as bytes.
  EngineOptions options() const {
    EngineOptions options;
    const int64_t batch = kMostRequests * kMostSegments;
    const int64_t page_limit = (kLongest + kPageSize - 1) / kPageSize + 1;
    int64_t pages = 0;
    for (const Tokens& tokens : segments_) pages += (tokens.size() + kPageSize - 1) / kPageSize;
    const Pools one(*backend_, spec(), {1, 1, 1, kPageSize});
    options.cache.budget_bytes = std::max<int64_t>(
        (pages * one.page_bytes() + settings_.segments * one.operator_bytes()) * settings_.share / 100, 1);
    options.pools = {.state_slots = batch + 2 * kMostRequests,
                     .operator_slots = batch + settings_.segments * settings_.share / 100,
                     .pages = 2 * batch * page_limit + pages * settings_.share / 100,
                     .page_size = kPageSize};
    options.cache.admission = kServerAdmission;
    if (settings_.tiers >= 1) options.cache.host_bytes = options.cache.budget_bytes / 2;
    if (settings_.tiers >= 2) {
      options.cache.disk_folder = folder_.path();
      options.cache.disk_bytes = options.cache.budget_bytes;
    }
    return options;
  }

  // Low numbers come often, as passages of real traffic do.
  const Tokens& segment() {
    const double u = std::uniform_real_distribution<double>(0, 1)(rng_);
    return segments_[static_cast<size_t>(u * u * static_cast<double>(segments_.size()))];
  }

  Request request() {
    Request request;
    for (int64_t n = draw(0, kMostSegments); n > 0; --n) request.segments.push_back(segment());
    request.segments.push_back(random_tokens(draw(1, kQuestion), spec().vocabulary, rng_()));
    request.max_tokens = static_cast<int32_t>(draw(1, kMostTokens));
    if (draw(0, 3) == 0) request.sampling = {.temperature = 1, .top_p = 0.9, .seed = rng_()};
    return request;
  }

  const Mode& mode() {
    return draw(0, 1) == 0 ? modes()[static_cast<size_t>(draw(0, modes().size() - 1))] : usual_;
  }

  void step(Engine& engine) {
    const int64_t action = draw(0, 99);
    if (action == 0) {
      engine.flush();
    } else if (action < 4) {
      engine.evict_one();
    } else if (action == 4) {
      engine.persist();
    } else if (action < 8) {
      engine.warm({segment()}, usual_);
    } else {
      std::vector<Request> batch;
      for (int64_t n = action < 80 ? 1 : draw(2, kMostRequests); n > 0; --n) batch.push_back(request());
      const Mode& mode = this->mode();
      const std::vector<Response> responses = engine.run(batch, mode).responses;
      for (size_t i = 0; i < batch.size(); ++i)
        if (requests_++ % settings_.verify == 0) verify(batch[i], mode, responses[i]);
    }
  }

  // Against an engine that has seen nothing.
  void verify(const Request& request, const Mode& mode, const Response& response) {
    EngineOptions options;
    options.pools = {.state_slots = 2 * kMostSegments + 2,
                     .operator_slots = kMostSegments,
                     .pages = 3 * kMostSegments * (kLongest / kPageSize + 2),
                     .page_size = kPageSize};
    Engine fresh(model_, options);
    const Response expected = fresh.run({request}, mode).responses[0];
    const double bound = batch_tolerance(*backend_, spec(), rms(expected.logits));
    ++verified_;
    const bool equal = excess(largest_difference(response.logits, expected.logits), bound) <= 1 &&
                       (bound > 0 || response.tokens == expected.tokens);
    wrong_ += !equal;
  }

  Result report(const CacheUsage& usage, const std::string& broken, double growth) const {
    Result result;
    result.verdict = broken.empty() ? Verdict::pass : Verdict::fail;
    result.why = broken;
    const auto value = [&](const char* tag, double number, const char* unit) {
      result.values.push_back({tag, number, unit});
    };
    value("integrity_failures", !broken.empty(), "");
    value("wrong", static_cast<double>(wrong_), "requests");
    value("growth_mib", growth, "MiB");
    value("requests", static_cast<double>(requests_), "requests");
    value("verified", static_cast<double>(verified_), "requests");
    value("hits", static_cast<double>(usage.hits), "lookups");
    value("misses", static_cast<double>(usage.misses), "lookups");
    value("admitted", static_cast<double>(usage.admitted), "residues and snapshots");
    value("evicted", static_cast<double>(usage.evicted), "entries");
    value("demoted", static_cast<double>(usage.demoted), "entries");
    value("promoted", static_cast<double>(usage.promoted), "entries");
    value("warnings", static_cast<double>(usage.warning_count), "lines");
    Table table{"Requests on a full cache", {"what", "count"}, {}};
    for (const Value& one : result.values) table.rows.push_back({one.tag, one.value});
    result.tables = {std::move(table)};
    result.note = str(spec().name, " on ", settings_.choice.backend, ", ", settings_.segments,
                      " segments, a budget of ", settings_.share,
                      " % of their bytes. Random requests in random modes, alone and in batches, beside warm-ups, flushes and "
                      "evictions; integrity is checked after each step, every ",
                      settings_.verify, "-th answer against an engine that has seen nothing. Growth is the peak of "
                      "resident memory beyond that of the first third.");
    return result;
  }

  const Settings& settings_;
  const ProgressFn& progress_;
  std::unique_ptr<Backend> backend_;
  Model model_;
  std::mt19937_64 rng_;
  const ScratchFolder folder_;
  const Mode usual_ = mode_named("transition_rope_seam");
  std::vector<Tokens> segments_;
  int64_t requests_ = 0, verified_ = 0, wrong_ = 0;
};

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), seconds (30), segments (40), share (30), the budget in
// percent of what all segments need; tiers (2; 0: the device alone, 1: host memory too, 2: and disk), verify (10), every
// how many answers one is checked; seed (1).
// Values: integrity_failures, wrong, growth_mib; requests, verified, hits, misses, admitted, evicted, demoted, promoted,
// warnings.
Work prepare_soak(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  Settings settings;
  settings.choice = read_model_choice(parameters, context);
  settings.seconds = parameters.integer("seconds", 30, 1, 1 << 20);
  settings.segments = parameters.integer("segments", 40, 1, 1 << 16);
  settings.share = parameters.integer("share", 30, 1, 1000);
  settings.tiers = parameters.integer("tiers", 2, 0, 2);
  settings.verify = parameters.integer("verify", 10, 1, 1 << 20);
  settings.seed = parameters.integer("seed", 1, 0, int64_t{1} << 40);
  parameters.refuse_others();
  return [settings](const ProgressFn& progress) { return Soak(settings, progress).run(); };
}

}  // namespace hypic
