#include "harness/drivers/ttft.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include "core/check.h"
#include "harness/measure/bootstrap.h"
#include "harness/measure/distance.h"
#include "harness/measure/pool_sizes.h"
#include "harness/measure/roofline.h"
#include "harness/measure/routes.h"
#include "harness/measure/tolerance.h"
#include "harness/measure/workload.h"
#include "harness/model_choice.h"
#include "kernels/device.h"
#include "reports/text.h"

namespace hypic {
namespace ttft {
namespace {

struct Settings {
  ModelChoice choice;
  std::vector<std::pair<Workload, CellPrompts>> cells;
  std::vector<CellMode> modes;
  int64_t repeats = 0;
  int64_t decode = 0;  // tokens after the first, to time a step of decoding; 0: not timed
  int32_t chunk = 0;
  uint64_t seed = 0;
  bench::Ceilings ceilings;
  std::function<void(Engine&)> primed;
};

// Counts where the rows of each forward went, by layer.
class ExpertLoad : public Tap {
 public:
  ExpertLoad(Backend& backend, const MoeSpec& moe) : backend_(backend), moe_(moe) {}

  void see(const std::string& name, const Tensor& tensor) override {
    if (!name.ends_with(".moe.experts")) return;
    std::vector<int32_t> chosen(tensor.size());
    backend_.download(chosen.data(), tensor);
    std::vector<int64_t> rows(moe_.experts, 0);
    for (const int32_t expert : chosen) ++rows.at(expert);
    const size_t table = seen_[name]++;  // a forward has each name once
    if (touched.size() <= table) touched.resize(table + 1, 0);
    const double layers = static_cast<double>(layers_with_moe);
    touched[table] +=
        static_cast<double>(moe_.experts - std::count(rows.begin(), rows.end(), 0)) / layers;
    const double even = static_cast<double>(chosen.size()) / moe_.experts;
    load = std::max(load, static_cast<double>(*std::max_element(rows.begin(), rows.end())) / even);
  }

  int64_t layers_with_moe = 1;
  std::vector<double> touched;  // by forward: experts that some row went to, mean over layers
  double load = 0;  // rows of the fullest expert over the mean, the largest of all layers

 private:
  Backend& backend_;
  const MoeSpec& moe_;
  std::map<std::string, size_t> seen_;
};

// One mode on one prompt: what its runs must count, and what they take at best.
struct Plan {
  Priming priming;
  Counters counters;
  int64_t forwards = 0;
  double limit = 0;                      // seconds
  std::map<std::string, double> limits;  // by operation
};

struct Row {
  const CellMode* mode = nullptr;
  std::vector<Plan> plans;      // by prompt
  std::vector<double> seconds;  // of each repeat and prompt, in the same order for all modes
  double gate = 0;              // cached against cold logits, in units of what is allowed
  double moved = 0;             // there: rows that would have gone to other experts, the largest share of a prompt
  double touched = 0, load = 0;
  double token = 0;  // seconds of one more token, median of kDecodes runs
  // Of one more run of the first prompt: by operation where the backend times them, on the host, in all.
  std::map<std::string, double> profile;
  HostSeconds host;
  double profiled = 0;
  size_t peak = 0;  // bytes in use, the most during a timed run; 0: the backend does not count
};

int64_t token_count(const CellPrompt& prompt) {
  int64_t n = 0;
  for (const Tokens& tokens : prompt.segments) n += static_cast<int64_t>(tokens.size());
  return n;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Says how far the case is before each layer, and so lets go of it there once asked to stop.
class LayerProgress : public LayerHooks {
 public:
  explicit LayerProgress(std::function<void()> say) : say_(std::move(say)) {}
  void before(int) override { say_(); }
  void after(int) override {}

 private:
  std::function<void()> say_;
};

bool on_gpu(const Settings& settings) { return settings.choice.backend.starts_with("cuda"); }

// Ends the case with this verdict, before any time is printed.
struct Stopped {
  Verdict verdict;
  std::string why;
};

class CellRun {
 public:
  CellRun(const Settings& settings, const Model& model, const Workload& workload,
          const CellPrompts& prompts)
      : settings_(settings),
        model_(model),
        prompts_(prompts.prompts),
        label_(workload.label()),
        weights_(model.backend().memory_use().now),
        engine_(model, engine_options(prompts.prompts, settings.modes, settings.chunk, 1 + settings.decode)),
        resting_(model.backend().memory_use().now),
        fence_(model.backend(), DType::i32, {1}) {
    model.backend().fill_zero(fence_);
    for (const CellMode& mode : settings.modes) {
      Row& row = rows_.emplace_back();
      row.mode = &mode;
      for (const CellPrompt& prompt : prompts_) {
        Plan& plan = row.plans.emplace_back();
        plan.priming = priming(prompt, mode.cache);
        plan.counters = expected_counters(prompt.segments, mode.mode, plan.priming);
      }
    }
  }

  const std::string& label() const { return label_; }

  void measure(const std::function<void(double, const std::string&)>& progress) {
    const size_t count = prompts_.size();
    const double steps =
        static_cast<double>(count * rows_.size()) * static_cast<double>(settings_.repeats + 2) + 1;
    double done = 0;
    std::string at_hand;
    LayerProgress layers([&] { progress((done - 1) / steps, at_hand); });
    hooks_ = &layers;
    const std::string head = settings_.cells.size() > 1 ? label_ + ", " : "";
    const auto say = [&](const std::string& what) {
      at_hand = head + what;
      progress(done++ / steps, at_hand);
    };
    for (size_t p = 0; p < count; ++p) check(p, say);
    std::mt19937_64 bits(settings_.seed);
    for (int64_t round = -1; round < settings_.repeats; ++round)  // round −1 warms up
      for (size_t p = 0; p < count; ++p) {
        std::vector<size_t> order(rows_.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[bits() % i]);
        for (const size_t r : order) {
          Row& row = rows_[r];
          say(str(row.mode->name(), ", ",
                  round < 0 ? "warm-up" : str("round ", round + 1, " of ", settings_.repeats)));
          const double seconds = timed(row, p);
          if (round >= 0) row.seconds.push_back(seconds);
        }
      }
    if (settings_.decode > 0)
      for (Row& row : rows_) {
        at_hand = head + row.mode->name() + ", decoding";
        progress((done - 1) / steps, at_hand);
        row.token = decode(row);
      }
    say("breakdown");
    for (Row& row : rows_) {
      profile(row);
      if (row.profile.empty()) break;  // the backend does not time its operations
    }
    hooks_ = nullptr;
    engine_.flush();
    engine_.check_integrity();
  }

  const std::vector<CellPrompt>& prompts() const { return prompts_; }
  const std::vector<Row>& rows() const { return rows_; }
  const Pools& pools() const { return engine_.pools(); }
  size_t weights() const { return weights_; }  // bytes in use without the engine
  size_t resting() const { return resting_; }  // and with it, between runs

 private:
  static constexpr int kDecodes = 3;

  const ModelSpec& spec() const { return model_.spec(); }
  Backend& backend() const { return model_.backend(); }

  // `routes` for the gate: what is cached must have gone the same way.
  void prime(const Row& row, size_t p, RouteHook* routes = nullptr) {
    const Priming& priming = row.plans[p].priming;
    engine_.flush();
    if (!priming.segments.empty()) engine_.warm(priming.segments, row.mode->mode, {.hooks = hooks_, .routes = routes});
    if (!priming.prompt.empty())
      engine_.run({{priming.prompt, 1}}, row.mode->mode, {.hooks = hooks_, .routes = routes});
    if (settings_.primed) settings_.primed(engine_);
    wait();
  }

  // What priming enqueued must not run into the time of what follows.
  void wait() {
    int32_t nothing;
    backend().download(&nothing, fence_);
  }

  // As it is timed: only the first token comes back.
  std::vector<Request> request(size_t p) const { return {{.segments = prompts_[p].segments, .logits = false}}; }

  void expect_counters(const Row& row, size_t p, const Counters& counters) const {
    const std::string differs = difference(counters, row.plans[p].counters);
    if (!differs.empty())
      throw Stopped{Verdict::invalid, str(prompts_[p].id, ", ", row.mode->name(), ": ", differs)};
  }

  // A GPU that has just worked hard runs at a lower clock: without a rest the modes that much is primed for would
  // seem slow.
  void rest() const {
    if (on_gpu(settings_)) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

  // Seconds of each token after the first, on the first prompt.
  double decode(const Row& row) {
    std::vector<double> seconds;
    for (int i = 0; i <= kDecodes; ++i) {  // the first warms up
      std::array<double, 2> took{};
      for (const bool more : {false, true}) {
        std::vector<Request> asked = request(0);
        asked[0].max_tokens = static_cast<int32_t>(1 + (more ? settings_.decode : 0));
        prime(row, 0);
        rest();
        const double start = now();
        engine_.run(asked, row.mode->mode, {});
        took[more] = now() - start;
      }
      if (i > 0) seconds.push_back((took[1] - took[0]) / static_cast<double>(settings_.decode));
    }
    return median(seconds);
  }

  double timed(Row& row, size_t p) {
    const std::vector<Request> asked = request(p);
    prime(row, p);
    rest();
    backend().forget_peak();
    // On a GPU a run ends soon, and nothing may be done beside it.
    const RunOptions options{.hooks = on_gpu(settings_) ? nullptr : hooks_};
    const double start = now();
    const RunResult run = engine_.run(asked, row.mode->mode, options);
    const double seconds = now() - start;
    row.peak = std::max(row.peak, backend().memory_use().peak);
    expect_counters(row, p, run.counters);
    return seconds;
  }

  // Before any time: the logits from the cache are those of the mode cold, of an exact mode those
  // of full recompute, every row with the experts that it had there; counters are as planned. Also what
  // is to be known of the forwards: experts, limits.
  void check(size_t p, const std::function<void(const std::string&)>& say) {
    struct Cold {
      std::vector<double> logits;
      SameRoutes routes;
    };
    std::map<std::string, Cold> colds;
    for (Row& row : rows_) {
      say(str(row.mode->name(), ", check"));
      const Mode& mode =
          row.mode->mode.reuse == Reuse::segments ? row.mode->mode : mode_named("full");
      Cold& cold = colds.try_emplace(mode.name, std::vector<double>(), SameRoutes(backend())).first->second;
      std::vector<double>& reference = cold.logits;
      if (reference.empty()) {
        engine_.flush();
        const RunOptions options{.hooks = hooks_, .routes = &cold.routes};
        reference = engine_.run({{prompts_[p].segments, 1}}, mode, options).responses[0].logits;
        cold.routes.follow();
        if (!std::all_of(reference.begin(), reference.end(),
                         [](double x) { return std::isfinite(x); }))
          throw Stopped{Verdict::fail,
                        str(prompts_[p].id, ", ", mode.name, " cold: logits are not finite")};
      }
      cold.routes.forget_moved();
      prime(row, p, &cold.routes);
      const std::vector<Tokens>& primed = row.plans[p].priming.prompt;
      if (!primed.empty() && primed != prompts_[p].segments) cold.routes.forget_moved();  // rows of another prompt
      const RunResult run =
          engine_.run({{prompts_[p].segments, 1}}, row.mode->mode, {.hooks = hooks_, .routes = &cold.routes});
      expect_counters(row, p, run.counters);
      row.moved = std::max(row.moved, cold.routes.moved_share());
      row.gate = worse(row.gate, excess(largest_difference(run.responses[0].logits, reference),
                                        batch_tolerance(backend(), spec(), rms(reference))));
      if (!(row.gate <= 1))
        throw Stopped{Verdict::fail, str(prompts_[p].id, ", ", row.mode->name(),
                                         ": logits differ from those of ", mode.name, " cold by ",
                                         row.gate, " times what is allowed; nothing is timed")};
      limit(row, p, run.tables);
    }
  }

  void limit(Row& row, size_t p, const std::vector<ChainTable>& tables) {
    Plan& plan = row.plans[p];
    plan.forwards = static_cast<int64_t>(tables.size());
    RooflineSettings settings{
        backend().compute_dtype(), backend().state_dtype(), settings_.ceilings, {}};
    const auto with_experts = std::count_if(spec().layers.begin(), spec().layers.end(),
                                            [](const Layer& l) { return l.ffn == Ffn::moe; });
    if (with_experts > 0) {
      ExpertLoad load(backend(), spec().moe);
      load.layers_with_moe = with_experts;
      prime(row, p);
      engine_.run(request(p), row.mode->mode, {.tap = &load, .hooks = hooks_});
      settings.touched = load.touched;
      row.load = std::max(row.load, load.load);
      row.touched += quantile(load.touched, 1) / static_cast<double>(prompts_.size());
    }
    const Roofline least = roofline(spec(), tables, settings);
    plan.limit = least.seconds;
    plan.limits = least.by_operation;
  }

  // One more run of the first prompt, its operations timed one by one.
  void profile(Row& row) {
    struct Profiling {
      explicit Profiling(Backend& backend) : backend(backend) { backend.profile(true); }
      ~Profiling() { backend.profile(false); }
      Backend& backend;
    };
    const std::vector<Request> asked = request(0);
    prime(row, 0);
    const Profiling on(backend());
    const double start = now();
    row.host = engine_.run(asked, row.mode->mode, {.host_times = true}).host;
    row.profiled = now() - start;
    row.profile = backend().profile_seconds();
  }

  const Settings& settings_;
  const Model& model_;
  const std::vector<CellPrompt>& prompts_;
  const std::string label_;
  const size_t weights_;
  Engine engine_;
  const size_t resting_;
  Buffer fence_;
  LayerHooks* hooks_ = nullptr;  // while measuring: progress
  std::vector<Row> rows_;
};

Cell milliseconds(double seconds) { return Cell(1e3 * seconds, Format::fixed, seconds < 0.1 ? 2 : 1); }
Cell times(double ratio) { return Cell(ratio, Format::fixed, 2); }

std::string between(const Cell& low, const Cell& high) { return str(cell_text(low), " – ", cell_text(high)); }

// Of the first mode that reuses in this way, to which the others are compared; nullptr without one.
const Row* baseline(const std::vector<Row>& rows, Reuse reuse) {
  for (const Row& row : rows)
    if (row.mode->mode.reuse == reuse) return &row;
  return nullptr;
}

// What a case says of its cells.
class Writer {
 public:
  Writer(const Settings& settings, const Model& model) : settings_(settings), model_(model) {
    result_.verdict = Verdict::pass;
    limits_ = on_gpu(settings);  // a CPU has other ceilings, and none are known
    times_.heads = {"cell", "mode",   "cache", "p50 ms",   "95 %", "p90",
                    "p99",  "× full", "95 %",  "× prefix", "95 %"};
    if (settings.decode > 0) times_.heads.emplace_back("ms a token");
    if (limits_) times_.heads.insert(times_.heads.end(), {"limit ms", "over limit"});
    reuse_.heads = {"cell",    "mode and cache", "tokens", "found in cache", "isolated", "seam",
                    "context", "prefix",         "jumped", "rotated",        "jumps",    "forwards",
                    "cached against cold"};
    if (model.spec().moe.experts > 0)
      reuse_.heads.insert(
          reuse_.heads.end(),
          {"rows to other experts", str("experts touched, of ", model.spec().moe.experts), "max / mean load"});
    chart_.y_label = "ms, median";
    for (const CellMode& mode : settings.modes) chart_.categories.push_back(mode.name());
  }

  void add(const CellRun& cell) {
    const Row* full = baseline(cell.rows(), Reuse::none);
    const Row* prefix = baseline(cell.rows(), Reuse::prefix);
    Series line{cell.label(), {}, {}};
    for (const Row& row : cell.rows()) {
      const std::string name = row.mode->name();
      const auto value = [&](const char* tag, double x, const char* unit) {
        result_.values.push_back({str(tag, ".", cell.label(), ".", name), x, unit});
      };
      const double p50 = median(row.seconds);
      const Interval around = median_interval(row.seconds, settings_.seed);
      const bool intervals = static_cast<int64_t>(row.seconds.size()) >= kSamplesForInterval;
      value("p50", 1e3 * p50, "ms");
      if (intervals) {
        value("p50_low", 1e3 * around.low, "ms");
        value("p50_high", 1e3 * around.high, "ms");
      }
      line.y.push_back(1e3 * p50);
      std::vector<Cell> cells = {cell.label(), row.mode->mode.name, row.mode->cache.name(),
                                 milliseconds(p50),
                                 intervals ? between(milliseconds(around.low), milliseconds(around.high)) : "–"};
      for (const auto& [tag, p] : {std::pair{"p90", 0.9}, {"p99", 0.99}}) {
        if (static_cast<int64_t>(row.seconds.size()) < samples_for(p)) {
          cells.emplace_back("–");
          continue;
        }
        value(tag, 1e3 * quantile(row.seconds, p), "ms");
        cells.push_back(milliseconds(quantile(row.seconds, p)));
      }
      for (const auto& [tag, base] : {std::pair{"ratio_full", full}, {"ratio_prefix", prefix}}) {
        if (!base) {
          cells.insert(cells.end(), 2, "–");
          continue;
        }
        const double ratio = median(base->seconds) / p50;
        const Interval of = ratio_interval(base->seconds, row.seconds, settings_.seed);
        value(tag, ratio, "times");
        if (intervals) {
          value(str(tag, "_low").c_str(), of.low, "times");
          value(str(tag, "_high").c_str(), of.high, "times");
        }
        cells.push_back(times(ratio));
        cells.emplace_back(intervals ? between(times(of.low), times(of.high)) : "–");
        ratios_[str(tag, ".geomean.", name)].push_back(ratio);
      }
      value("gate", row.gate, "bounds");
      if (settings_.decode > 0) {
        value("token", 1e3 * row.token, "ms");
        cells.push_back(milliseconds(row.token));
      }
      if (limits_) add_limit(row, value, cells);
      times_.rows.push_back(std::move(cells));
      last_ = {p50, full ? median(full->seconds) / p50 : 0, prefix ? median(prefix->seconds) / p50 : 0};
      add_reuse(cell, row, value);
      add_profile(cell, row, value);
      add_memory(cell, row, value);
    }
    chart_.series.push_back(std::move(line));
  }

  Result take() {
    if (settings_.cells.size() > 1)
      for (const auto& [tag, ratios] : ratios_) {
        double logs = 0;
        for (const double ratio : ratios) logs += std::log(ratio);
        result_.values.push_back(
            {tag, std::exp(logs / static_cast<double>(ratios.size())), "times"});
      }
    result_.why = in_short();
    if (!nothing_.empty()) times_.note = "Reused no token, all was computed: " + nothing_ + ".";
    reuse_.note =
        "Cached against cold compares a mode with itself cold, full and prefix with full recompute: it shows that the "
        "cache changes nothing, not that the mode composes states rightly. That hypic validate and suites/reuse.json "
        "judge.";
    result_.tables = {std::move(times_), std::move(reuse_)};
    if (!profile_.rows.empty()) result_.tables.push_back(std::move(profile_));
    if (!memory_.rows.empty()) result_.tables.push_back(std::move(memory_));
    result_.charts = {std::move(chart_)};
    result_.note = note();
    return std::move(result_);
  }

 private:
  struct Last {
    double p50 = 0, full = 0, prefix = 0;  // seconds; times, 0: no such mode
  };

  // The last mode, which is what the others stand beside: of one cell its numbers, of several their means.
  std::string in_short() const {
    const std::string name = settings_.modes.back().name();
    Last last = last_;
    std::string text = str(name, ": ");
    if (settings_.cells.size() == 1) {
      text += str("p50 ", cell_text(milliseconds(last.p50)), " ms");
    } else {
      text += str("geometric mean of ", settings_.cells.size(), " cells");
      for (const auto& [tag, ratio] : {std::pair{"ratio_full", &Last::full}, {"ratio_prefix", &Last::prefix}})
        for (const Value& value : result_.values)
          if (value.tag == str(tag, ".geomean.", name)) last.*ratio = value.value;
    }
    for (const auto& [what, ratio] : {std::pair{"full", last.full}, {"prefix", last.prefix}})
      if (ratio > 0) text += str(", × ", what, " ", cell_text(times(ratio)));
    return text;
  }

  using AddValue = std::function<void(const char*, double, const char*)>;

  void add_limit(const Row& row, const AddValue& value, std::vector<Cell>& cells) const {
    std::vector<double> limits, over;
    for (const Plan& plan : row.plans) limits.push_back(plan.limit);
    for (size_t i = 0; i < row.seconds.size(); ++i)
      over.push_back(row.seconds[i] / limits[i % limits.size()]);
    value("limit", 1e3 * median(limits), "ms");
    value("over_limit", median(over), "times");
    cells.push_back(milliseconds(median(limits)));
    cells.push_back(times(median(over)));
  }

  void add_reuse(const CellRun& cell, const Row& row, const AddValue& value) {
    Counters all;
    int64_t tokens = 0, forwards = 0, found = 0;
    for (size_t p = 0; p < row.plans.size(); ++p) {
      all += row.plans[p].counters;
      forwards += row.plans[p].forwards;
      tokens += token_count(cell.prompts()[p]);
      found += found_tokens(cell.prompts()[p].segments, row.mode->mode, row.plans[p].priming);
    }
    if (row.mode->cache.kind != CacheState::Kind::cold && all.prefix + all.jumped == 0)
      nothing_ += str(nothing_.empty() ? "" : "; ", cell.label(), ", ", row.mode->name());
    value("found", static_cast<double>(found) / static_cast<double>(tokens), "share");
    value("computed", static_cast<double>(all.computed()) / static_cast<double>(tokens), "share");
    reuse_.rows.push_back({cell.label(), row.mode->name(), tokens, found, all.isolated, all.seam,
                           all.context, all.prefix, all.jumped, all.rotated, all.jumps, forwards,
                           Cell(row.gate, Format::compact, 2)});
    if (model_.spec().moe.experts == 0) return;
    value("moved", row.moved, "share");
    value("touched", row.touched, "experts");
    value("load", row.load, "times the mean");
    reuse_.rows.back().emplace_back(row.moved, Format::percent, 2);
    reuse_.rows.back().emplace_back(row.touched, Format::fixed);
    reuse_.rows.back().emplace_back(row.load, Format::fixed);
  }

  // Nothing where the backend does not time its operations.
  void add_profile(const CellRun& cell, const Row& row, const AddValue& value) {
    if (row.profile.empty()) return;
    double rest = row.profiled;
    const auto line = [&](const std::string& part, double seconds) {
      const double share = seconds / row.profiled;
      value(str("share.", part).c_str(), share, "share");
      std::vector<Cell> cells = {cell.label(), row.mode->name(), part, milliseconds(seconds),
                                 Cell(share, Format::percent, 0)};
      const auto least = row.plans[0].limits.find(part);
      if (limits_)
        cells.push_back(least == row.plans[0].limits.end() ? Cell("–") : milliseconds(least->second));
      profile_.rows.push_back(std::move(cells));
    };
    const auto add = [&](const std::string& part, double seconds) {
      line(part, seconds);
      rest -= seconds;
    };
    add("match", row.host.match);
    add("load", row.host.load);
    for (const auto& [operation, seconds] : row.profile) add(operation, seconds);
    add("store", row.host.store);
    line("rest", rest);
    profile_.heads = {"cell", "mode and cache", "part", "ms", "share of the run"};
    if (limits_) profile_.heads.emplace_back("limit ms");
  }

  // What is in use at the peak, by owner; what no pool owns belongs to the forwards.
  void add_memory(const CellRun& cell, const Row& row, const AddValue& value) {
    if (row.peak == 0) return;
    const Pools& pools = cell.pools();
    const auto mib = [](double bytes) { return bytes / (1 << 20); };
    const std::pair<const char*, double> owners[] = {
        {"weights", static_cast<double>(cell.weights())},
        {"pages", static_cast<double>(pools.sizes.pages * pools.page_bytes())},
        {"operators", static_cast<double>(pools.sizes.operator_slots * pools.operator_bytes())},
        {"states", static_cast<double>(pools.sizes.state_slots * pools.state_bytes())},
        {"activations", static_cast<double>(row.peak) - static_cast<double>(cell.resting())},
        {"peak", static_cast<double>(row.peak)}};
    std::vector<Cell>& cells = memory_.rows.emplace_back();
    cells = {cell.label(), row.mode->name()};
    for (const auto& [owner, bytes] : owners) {
      value(str("memory.", owner).c_str(), mib(bytes), "MiB");
      cells.emplace_back(mib(bytes), Format::fixed);
    }
  }

  std::string note() const {
    std::string text =
        str(model_.spec().name, " on ", settings_.choice.on(), ", ", settings_.repeats,
            " repeats after one that warms up, forwards of at most ", settings_.chunk,
            " rows, seed ", settings_.seed, ".");
    for (const auto& [workload, prompts] : settings_.cells) {
      int64_t tokens = 0;
      for (const CellPrompt& prompt : prompts.prompts) tokens += token_count(prompt);
      text += str("\n", workload.label(), ": ", prompts.prompts.size(),
                  prompts.prompts.size() == 1 ? " prompt, " : " prompts, ", tokens, " tokens, ",
                  prompts.source, ".");
    }
    text +=
        "\nTime from handing the request to the engine until its first token is known on the host; "
        "the modes of a "
        "round in a random order; cache state made before and not timed. × full, × prefix: how "
        "many times the median "
        "of the first such mode is that of the row. 95 %: percentile bootstrap over rounds, ";
    text += str(kResamples, " resamples, from ", kSamplesForInterval, " times on. p90 needs ",
                samples_for(0.9), " times, p99 ", samples_for(0.99),
                ". Counters of every timed run were as planned; logits from the cache as cold, in "
                "units of what a batch "
                "may change.");
    if (limits_)
      text += str(" Limit: docs/ttft.md, at ", settings_.ceilings.bytes_per_second / 1e9,
                  " GB/s and ", settings_.ceilings.operations_per_second / 1e12, " TFLOP/s.");
    if (settings_.choice.model.starts_with("random:")) text += " Weights are random.";
    return text;
  }

  const Settings& settings_;
  const Model& model_;
  bool limits_ = false;
  Last last_;            // of the last mode in the last cell
  std::string nothing_;  // cells and modes that were to reuse and reused no token
  Result result_;
  Table times_{kTimes, {}, {}}, reuse_{"Proof of reuse, tokens of all prompts", {}, {}},
      profile_{"Where the time goes: one run, its operations timed one by one", {}, {}},
      memory_{"Memory at the peak of a timed run, MiB",
              {"cell", "mode and cache", "weights", "K, V pages", "operators", "states", "activations", "peak"},
              {}};
  Chart chart_{.title = "Median time to first token", .kind = ChartKind::bar};
  std::map<std::string, std::vector<double>> ratios_;  // by tag, over cells
};

Result run(const Settings& settings, ModelShelf& shelf, const ProgressFn& progress) {
  try {
    progress(0, "opens the model");
    const Model& model = shelf.open(settings.choice);
    Writer writer(settings, model);
    double done = 0;
    for (const auto& [workload, prompts] : settings.cells) {
      CellRun cell(settings, model, workload, prompts);
      const double count = static_cast<double>(settings.cells.size());
      cell.measure(
          [&](double share, const std::string& what) { progress((done + share) / count, what); });
      writer.add(cell);
      ++done;
    }
    return writer.take();
  } catch (const Stopped& stopped) {
    Result result;
    result.verdict = stopped.verdict;
    result.why = stopped.why;
    return result;
  }
}

Workload read_workload(const nlohmann::json& json, const std::string& where) {
  require(json.is_object(), where, ": must be an object, is ", json.type_name());
  Parameters parameters(json, where);
  Workload w;
  w.dataset = parameters.text("dataset", "");
  constexpr int64_t kMost = 1 << 20;
  if (w.dataset.empty()) {
    w.segments = parameters.integer("segments", w.segments, 1, 1 << 12);
    w.tokens = parameters.integer("tokens", w.tokens, 1, kMost);
    w.question = parameters.integer("question", w.question, 1, kMost);
    w.system = parameters.integer("system", w.system, 0, kMost);
  } else {
    w.divide = parameters.integer("divide", w.divide, 1, kMost);
  }
  w.rows = parameters.integer("rows", w.dataset.empty() ? 1 : 8, 1, 1 << 12);
  parameters.refuse_others();
  return w;
}

// What `read` gives; its errors begin with their place.
template <class Read>
auto at(const std::string& place, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    fail(place, ": ", error.what());
  }
}

// Whether both run alike, however they are written.
bool is_same(const CellMode& a, const CellMode& b) {
  const auto runs = [](const CellMode& m) {
    using Kind = CacheState::Kind;
    const bool none_missed = m.cache.kind == Kind::missed && m.cache.missed == 0;
    return std::tuple(m.mode.reuse, m.mode.compose, m.mode.rotate, m.mode.head, m.mode.tail,
                      none_missed ? Kind::warm_segment : m.cache.kind, m.cache.missed);
  };
  return runs(a) == runs(b);
}

bool from_data(const CellPrompts& prompts, const std::string& data) {
  return !data.empty() && prompts.source == data;
}

}  // namespace

EngineOptions engine_options(const std::vector<CellPrompt>& prompts, const std::vector<CellMode>& modes,
                             int32_t chunk, int64_t new_tokens) {
  EngineOptions options;
  options.max_rows = chunk;
  options.pools.state_slots = options.pools.operator_slots = options.pools.pages = 1;
  for (const CellPrompt& prompt : prompts)
    for (const CellMode& mode : modes) raise(options.pools, pools_for({&prompt, 1}, mode, chunk, new_tokens));
  return options;
}

Work prepare(const SuiteCase& suite_case, const std::string& where, const DriverContext& context,
             std::function<void(Engine&)> primed) {
  const std::string place = where + ".parameters";
  nlohmann::json rest = suite_case.parameters;
  const nlohmann::json cells = rest.contains("cells") ? rest["cells"] : nlohmann::json();
  rest.erase("cells");
  require(cells.is_array() && !cells.empty(), place,
          ".cells: must be an array of at least one workload");
  Parameters parameters(rest, place);
  const auto settings = std::make_shared<Settings>();
  try {
    settings->choice = read_model_choice(parameters, context, Ranks::several);
  } catch (const Error& error) {
    const bool wants_gpu = backend_of(suite_case, context).starts_with("cuda");
    std::string why_none;
    if (!wants_gpu || !gpus(&why_none).empty()) throw;
    fail(error.what(), "; without a GPU: hypic run suites/ttft_tiny.json");
  }
  for (const std::string& mode :
       parameters.texts("modes", {"full", "prefix", "transition_rope_seam"})) {
    const CellMode one = at(place + ".modes", [&] { return cell_mode(mode); });
    const auto same = std::find_if(settings->modes.begin(), settings->modes.end(),
                                   [&](const CellMode& other) { return is_same(one, other); });
    require(same == settings->modes.end(), place, ".modes: \"", one.name(), "\" appears twice",
            same == settings->modes.end() || same->name() == one.name() ? "" : str(", also as \"", same->name(), "\""));
    settings->modes.push_back(one);
  }
  settings->repeats = parameters.integer("repeats", 20, 1, 1 << 20);
  settings->decode = parameters.integer("decode", 0, 0, 1 << 16);
  settings->chunk = static_cast<int32_t>(parameters.integer("chunk", 8192, 1, 1 << 24));
  settings->seed = parameters.integer("seed", 1, 0, INT64_MAX);
  settings->ceilings = {
      1e9 * static_cast<double>(parameters.integer("copy_gbs", 4300, 1, 1 << 24)),
      1e12 * static_cast<double>(parameters.integer("matmul_tflops", 780, 1, 1 << 24))};
  parameters.refuse_others();
  const ModelSpec spec = spec_of(settings->choice.model);
  std::vector<std::string> labels, datasets;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string cell = str(place, ".cells[", i, "]");
    const Workload workload = read_workload(cells[i], cell);
    labels.push_back(workload.label());
    require(std::count(labels.begin(), labels.end(), labels.back()) == 1, cell, ": ", labels.back(),
            " appears twice");
    CellPrompts prompts = cell_prompts(workload, settings->choice.model, spec, context.data, context.progress);
    at(place + ".modes", [&] {
      for (const CellMode& mode : settings->modes)
        for (const CellPrompt& prompt : prompts.prompts) priming(prompt, mode.cache);  // refuses what cannot miss
    });
    if (!workload.dataset.empty() && !from_data(prompts, context.data)) datasets.push_back(workload.dataset);
    settings->cells.emplace_back(workload, std::move(prompts));
  }
  // In a case of several datasets the others keep their random tokens; none at all is a mistake.
  const bool used = std::any_of(settings->cells.begin(), settings->cells.end(),
                                [&](const auto& cell) { return from_data(cell.second, context.data); });
  if (!context.data.empty() && !datasets.empty() && !used) {
    std::string names;
    for (const std::string& name : datasets) names += str(names.empty() ? "" : ", ", name);
    fail(context.data, ": rows of ", dataset_of(context.data), ", not of ", names,
         "; without --data ", datasets.size() == 1 ? "its" : "their", " tokens are random");
  }
  if (used && context.data_used) *context.data_used = true;
  settings->primed = std::move(primed);
  return [settings, shelf = ModelShelf::shared()](const ProgressFn& progress) {
    return run(*settings, *shelf, progress);
  };
}

}  // namespace ttft

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tensor_parallel (1), devices (0, 1, …), cells: workloads, {"segments": 4, "tokens": 1024,
// "question": 64, "system": 0, "rows": 1} or {"dataset": hotpotqa, triviaqa, multi_news or gov_report, "rows": 8,
// "divide": 1}; modes (full, prefix, transition_rope_seam), each MODE or MODE@STATE with STATE cold, warm_prefix,
// warm_prefix_other_order, warm_segment or missed=K; repeats (20), chunk (8192, rows of a forward), seed (1),
// copy_gbs (4300) and matmul_tflops (780), the device's ceilings. Values, each NAME.CELL.MODE@STATE: p50, p50_low,
// p50_high, p90, p99 (ms, the last two where there are enough), and ratio_full, ratio_prefix with _low, _high; gate
// (cached against cold logits, bounds), found (in the cache) and computed (shares of the prompt); on a GPU limit
// (ms), over_limit; of MoE models touched, load; share.OPERATION where the backend times itself. With several cells
// also ratio_full.geomean.MODE@STATE, ratio_prefix.geomean.MODE@STATE.
Work prepare_ttft(const SuiteCase& suite_case, const std::string& where,
                  const DriverContext& context) {
  return ttft::prepare(suite_case, where, context, {});
}

}  // namespace hypic
