#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>

#include "core/check.h"
#include "core/temporary_folder.h"
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
constexpr int kMostSegments = 4, kMostTokens = 4, kMostRequests = 8;
constexpr int kLives = 6;  // engines, one after another on the same folder
constexpr int kSamples = 2000;
constexpr double kWarmUp = 1.0 / 3;  // share of the time in which caches fill up and allocators settle

struct Settings {
  ModelChoice choice;
  int64_t seconds = 0, segments = 0, share = 0, tiers = 0, verify = 0, seed = 0;
};

// Memory over time.
struct Sample {
  double minutes, resident, device;  // MiB
};

// Of the straight line that fits best, in MiB a minute; 0 where there is none.
double slope(const std::vector<Sample>& samples, double Sample::* what) {
  double minutes = 0, mean = 0, covariance = 0, variance = 0;
  for (const Sample& one : samples) minutes += one.minutes, mean += one.*what;
  minutes /= static_cast<double>(samples.size());
  mean /= static_cast<double>(samples.size());
  for (const Sample& one : samples) {
    covariance += (one.minutes - minutes) * (one.*what - mean);
    variance += (one.minutes - minutes) * (one.minutes - minutes);
  }
  return variance > 0 ? covariance / variance : 0;
}

double resident_mib() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

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
    start_ = std::chrono::steady_clock::now();
    const double limit = static_cast<double>(settings_.seconds);
    std::string broken;
    // A new engine finds the files of the one before.
    for (int life = 0; life < kLives && broken.empty(); ++life) {
      Engine engine(model_, options(life));
      try {
        while (seconds() < limit * (life + 1) / kLives) {
          step(engine);
          engine.check_integrity();
          observe(engine.usage());
        }
        engine.drain();
        engine.check_integrity();
      } catch (const InternalError& error) {
        broken = error.what();
      }
      add(engine.usage());
    }
    return report(broken);
  }

 private:
  const ModelSpec& spec() const { return model_.spec(); }
  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng_);
  }

  // The budget is a share of what all segments need; the pools hold that and one batch beside it,
  // so that slots run short as well as bytes.
  EngineOptions options(int life) const {
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
    options.cache.admission = life % 2 == 0 ? Admission::second_touch : Admission::always;
    options.cache.seen_keys = 4 * settings_.segments;  // so that keys are forgotten too
    if (settings_.tiers >= 1) options.cache.host_bytes = options.cache.budget_bytes / 2;
    if (settings_.tiers >= 2) {
      options.cache.disk_folder = folder_.path();
      options.cache.disk_bytes = options.cache.budget_bytes;
      options.cache.queue_bytes = options.cache.budget_bytes / 2;
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
    const int64_t action = draw(0, 999);
    if (action < 2) {
      engine.flush();
    } else if (action < 30) {
      engine.evict_one();
    } else if (action < 35) {
      engine.persist();
    } else if (action < 70) {
      engine.warm({segment()}, usual_);
    } else {
      const int64_t most = action < 600 ? 1 : action < 900 ? 3 : kMostRequests;
      std::vector<Request> batch;
      for (int64_t n = draw(most / 2 + 1, most); n > 0; --n) batch.push_back(request());
      const Mode& mode = this->mode();
      const std::vector<Response> responses = engine.run(batch, mode).responses;
      ++batches_;
      for (size_t i = 0; i < batch.size(); ++i)
        if (requests_++ % settings_.verify == 0) verify(batch[i], mode, responses[i]);
    }
  }

  // Where rounding depends on the batch, a row may go to other experts: then an answer need only be finite.
  bool only_finite() const { return spec().moe.experts > 0 && !backend_->batch_invariant(); }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  void observe(const CacheUsage& usage) {
    const double now = seconds(), limit = static_cast<double>(settings_.seconds);
    if (now < limit * static_cast<double>(samples_.size()) / kSamples) return;
    samples_.push_back({now / 60, resident_mib(), device_mib()});
    const int64_t hits = total_.hits + usage.hits, lookups = hits + total_.misses + usage.misses;
    progress_(now / limit, str(requests_, " requests, ", verified_, " verified, ", wrong_, " wrong, ",
                               lookups > 0 ? 100 * hits / lookups : 0, " % hits, ",
                               std::llround(samples_.back().resident), " MiB resident, ",
                               std::llround(samples_.back().device), " MiB on the device"));
  }

  // Of this process; what a CPU backend has is resident memory.
  double device_mib() const {
    if (!settings_.choice.backend.starts_with("cuda")) return 0;
    return static_cast<double>(backend_->memory_use().now) / (1 << 20);
  }

  void add(const CacheUsage& usage) {
    for (int64_t CacheUsage::* count :
         {&CacheUsage::hits, &CacheUsage::host_hits, &CacheUsage::disk_hits, &CacheUsage::misses, &CacheUsage::admitted,
          &CacheUsage::evicted, &CacheUsage::dropped, &CacheUsage::demoted, &CacheUsage::promoted,
          &CacheUsage::warning_count})
      total_.*count += usage.*count;
    if (!usage.warnings.empty()) warning_ = usage.warnings.back();
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
    const double bound = only_finite() ? std::numeric_limits<double>::max()
                              : batch_tolerance(*backend_, spec(), rms(expected.logits));
    ++verified_;
    const bool equal = excess(largest_difference(response.logits, expected.logits), bound) <= 1 &&
                       (bound > 0 || response.tokens == expected.tokens);
    wrong_ += !equal;
  }

  Result report(const std::string& broken) const {
    Result result;
    result.verdict = broken.empty() ? Verdict::pass : Verdict::fail;
    result.why = broken;
    const auto value = [&](const char* tag, double number, const char* unit) {
      result.values.push_back({tag, number, unit});
    };
    const auto count = [&](const char* tag, int64_t number, const char* unit) {
      value(tag, static_cast<double>(number), unit);
    };
    std::vector<Sample> judged;
    for (const Sample& sample : samples_)
      if (sample.minutes * 60 >= kWarmUp * static_cast<double>(settings_.seconds)) judged.push_back(sample);
    value("integrity_failures", !broken.empty(), "");
    count("wrong", wrong_, "requests");
    value("resident_slope", judged.empty() ? 0 : slope(judged, &Sample::resident), "MiB/min");
    value("device_slope", judged.empty() ? 0 : slope(judged, &Sample::device), "MiB/min");
    value("resident", judged.empty() ? 0 : judged.back().resident, "MiB");
    value("device", judged.empty() ? 0 : judged.back().device, "MiB");
    count("requests", requests_, "requests");
    count("batches", batches_, "batches");
    count("verified", verified_, "requests");
    const int64_t lookups = std::max<int64_t>(total_.hits + total_.misses, 1);
    const auto rate = [&](const char* tag, int64_t hits) {
      value(tag, static_cast<double>(hits) / static_cast<double>(lookups), "");
    };
    rate("hit_rate.device", total_.hits - total_.host_hits - total_.disk_hits);
    rate("hit_rate.host", total_.host_hits);
    rate("hit_rate.disk", total_.disk_hits);
    count("hits", total_.hits, "lookups");
    count("misses", total_.misses, "lookups");
    count("admitted", total_.admitted, "residues and snapshots");
    count("evicted", total_.evicted, "entries");
    count("dropped", total_.dropped, "entries");
    count("demoted", total_.demoted, "entries");
    count("promoted", total_.promoted, "entries");
    count("warnings", total_.warning_count, "lines");
    Table table{"Requests on a full cache", {"what", "count", "unit"}, {}};
    for (const Value& one : result.values) table.rows.push_back({one.tag, one.value, one.unit});
    result.tables = {std::move(table)};
    Chart chart{.title = "Memory over time", .x_label = "minutes", .y_label = "MiB"};
    for (const auto& [name, what] : {std::pair("resident", &Sample::resident), {"device", &Sample::device}}) {
      Series series{name, {}, {}};
      for (const Sample& sample : samples_) {
        series.x.push_back(sample.minutes);
        series.y.push_back(sample.*what);
      }
      chart.series.push_back(std::move(series));
    }
    result.charts = {std::move(chart)};
    const int64_t tens = settings_.verify % 100 / 10, ones = settings_.verify % 10;
    const char* const ordinal = tens == 1 || ones > 3 || ones == 0 ? "th" : ones == 1 ? "st" : ones == 2 ? "nd" : "rd";
    result.note = str(spec().name, " on ", settings_.choice.backend, ", ", settings_.segments,
                      " segments, a budget of ", settings_.share,
                      " % of their bytes. Random requests in random modes, alone and in batches of up to ",
                      kMostRequests, ", beside warm-ups, flushes and evictions; ", kLives,
                      " engines one after another on the same folder, admitting at the second touch and always in "
                      "turn. Integrity is checked after each step, every ",
                      settings_.verify, ordinal, " answer against an engine that has seen nothing",
                      only_finite() ? ", only whether it is finite, for a row of a batch may go to other experts" : "",
                      ". Slopes are of the straight line through memory after the first third of the "
                      "time.");
    if (!warning_.empty()) result.note += "\nThe last warning: " + warning_;
    return result;
  }

  const Settings& settings_;
  const ProgressFn& progress_;
  std::unique_ptr<Backend> backend_;
  Model model_;
  std::mt19937_64 rng_;
  const TemporaryFolder folder_;
  const Mode usual_ = mode_named("transition_rope_seam");
  std::vector<Tokens> segments_;
  std::chrono::steady_clock::time_point start_;
  std::vector<Sample> samples_;
  CacheUsage total_;  // of engines that are gone
  std::string warning_;
  int64_t requests_ = 0, batches_ = 0, verified_ = 0, wrong_ = 0;
};

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), seconds (30), gpu_seconds (as seconds), segments (40), share
// (30), the budget in percent of what all segments need; tiers (2; 0: the device alone, 1: host memory too, 2: and
// disk), verify (10), every how many answers one is checked; seed (1).
// Values: integrity_failures, wrong; resident_slope and device_slope, MiB a minute after the first third, resident and
// device, MiB at the end; requests, batches, verified; hit_rate.{device, host, disk}, shares of lookups; hits, misses,
// admitted, evicted, dropped, demoted, promoted, warnings.
Work prepare_soak(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  Settings settings;
  settings.choice = read_model_choice(parameters, context);
  settings.seconds = parameters.integer("seconds", 30, 1, 1 << 20);
  const int64_t gpu_seconds = parameters.integer("gpu_seconds", settings.seconds, 1, 1 << 20);
  if (settings.choice.backend.starts_with("cuda")) settings.seconds = gpu_seconds;
  settings.segments = parameters.integer("segments", 40, 1, 1 << 16);
  settings.share = parameters.integer("share", 30, 1, 1000);
  settings.tiers = parameters.integer("tiers", 2, 0, 2);
  settings.verify = parameters.integer("verify", 10, 1, 1 << 20);
  settings.seed = parameters.integer("seed", 1, 0, int64_t{1} << 40);
  parameters.refuse_others();
  return [settings](const ProgressFn& progress) { return Soak(settings, progress).run(); };
}

}  // namespace hypic
