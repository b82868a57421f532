#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/measure/distance.h"
#include "harness/measure/routes.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "serving/engine.h"

namespace hypic {
namespace {

constexpr uint64_t kSeed = 19;
constexpr const char* kTruth = "cpu64";

struct Settings {
  ModelChoice choice;
  std::vector<Mode> modes;
  std::vector<int64_t> lengths;
  int64_t repeats = 0;
};

struct Answer {
  std::vector<double> logits;
  std::vector<std::vector<double>> states;
  std::map<std::string, std::vector<int32_t>> routes;
};

// The same requests on one backend.
class Side {
 public:
  Side(const Settings& settings, const std::string& backend)
      : backend_(make_backend(backend)), model_(Model::open(*backend_, settings.choice.model)) {
    uint64_t seed = kSeed;
    EngineOptions options{.pools = {.state_slots = 16, .operator_slots = 16, .pages = 0, .page_size = 16},
                          .max_rows = 0};
    for (const int64_t n : settings.lengths) {
      prompt_.push_back(random_tokens(n, model_.spec().vocabulary, ++seed));
      options.pools.pages += 2 * (n / 16 + 2);
      options.max_rows += static_cast<int32_t>(2 * n);
    }
    engine_ = std::make_unique<Engine>(model_, options);
  }

  const Backend& backend() const { return *backend_; }
  const ModelSpec& spec() const { return model_.spec(); }
  void flush() { engine_->flush(); }
  void warm_one(const Mode& mode) {
    mode.reuse == Reuse::segments ? static_cast<void>(engine_->warm({prompt_[1]}, mode))
                                  : static_cast<void>(engine_->run({{{prompt_[0], prompt_[1], {0}}, 1}}, mode));
  }
  Answer ask(const Mode& mode) {
    Routes routes(*backend_);
    auto run = engine_->run({{prompt_, 1}}, mode, {.keep_state = true, .tap = &routes});
    return {std::move(run.responses[0].logits), std::move(run.responses[0].state_before_question),
            std::move(routes.seen)};
  }

 private:
  std::unique_ptr<Backend> backend_;
  Model model_;
  std::vector<Tokens> prompt_;
  std::unique_ptr<Engine> engine_;
};

// The first layer at whose end some row went to other experts than in float64, where scores nearly tie: rounding
// does not bound what follows it.
int first_rerouted(const Answer& ours, const Answer& truth, int layers) {
  for (int l = 0; l < layers; ++l) {
    const std::string name = str("layers.", l, ".moe.experts");
    const auto mine = ours.routes.find(name), theirs = truth.routes.find(name);
    if (mine != ours.routes.end() && mine->second != theirs->second) return l;
  }
  return layers;
}

class Comparison {
 public:
  Comparison(const Settings& settings, const ProgressFn& progress)
      : settings_(settings),
        progress_(progress),
        ours_(settings, settings.choice.backend),
        truth_(settings, kTruth) {}

  Result run() {
    Result result;
    result.verdict = Verdict::pass;
    const Answer full = ours_.ask(mode_named("full")), full_truth = truth_.ask(mode_named("full"));
    Table table{str("Backend ", settings_.choice.backend, " against ", kTruth, " on the same requests"),
                {"mode", str("KL from ", kTruth), "logits: share of what is allowed", "state error, largest layer",
                 "states: share of what is allowed", "layers judged",
                 "KL from full recompute", str("the same in ", kTruth), "runs with other bits"},
                {}};
    double done = 0;
    for (const Mode& mode : settings_.modes) {
      progress_(done++ / static_cast<double>(settings_.modes.size()), mode.name);
      Sums sums;
      for (const char* cache : {"cold", "partly", "cached"}) compare(mode, cache, sums);
      const int64_t other = repeat(mode);
      const double kl = kl_divergence(full.logits, sums.cold.logits);
      const double kl_truth = kl_divergence(full_truth.logits, sums.cold_truth.logits);
      const auto value = [&](const char* tag, double x, const char* unit) {
        result.values.push_back({str(tag, ".", mode.name), x, unit});
      };
      value("kl", sums.kl, "nats");
      if (sums.logits_judged) value("excess.logits", sums.logits, "bounds");
      if (sums.judged > 0) value("excess.state", sums.state, "bounds");
      value("judged", sums.judged + sums.logits_judged, "comparisons");
      value("kl_full", kl, "nats");
      value("kl_full_truth", kl_truth, "nats");
      value("other_bits", static_cast<double>(other), "runs");
      for (const auto& [layer, error] : sums.state_errors)
        result.values.push_back({str("state.", mode.name, ".layer_", layer < 10 ? "0" : "", layer), error, "relative"});
      const auto share = [](double x, bool judged) {
        return judged ? Cell(x, Format::compact, 2, x <= 1 ? Mark::none : Mark::bad) : Cell("shown only");
      };
      double worst = 0;
      for (const auto& [layer, error] : sums.state_errors) worst = worse(worst, error);
      table.rows.push_back({mode.name, Cell(sums.kl, Format::scientific), share(sums.logits, sums.logits_judged > 0),
                            Cell(worst, Format::scientific), share(sums.state, sums.judged > 0),
                            str(sums.judged, " of ", 3 * static_cast<int64_t>(sums.state_errors.size())), Cell(kl),
                            Cell(kl_truth), str(other, " of ", settings_.repeats)});
    }
    result.tables = {std::move(table)};
    result.note = str(ours_.spec().name, ", random tokens, ", settings_.lengths.size() - 1,
                      " segments and a question: cold, with one segment cached, with all cached. KL: of the first "
                      "token, the largest of the three. States: before the question, relative, by layer. Where a row "
                      "goes to other experts than in float64, for scores nearly tie, what follows is shown and not "
                      "judged. Other bits: the cold request repeated.");
    return result;
  }

 private:
  struct Sums {
    double kl = 0, logits = 0, state = 0;
    int64_t judged = 0, logits_judged = 0;
    std::map<int, double> state_errors;  // by layer, the largest
    Answer cold, cold_truth;
  };

  Answer ask(Side& side, const Mode& mode, const std::string& cache) {
    if (cache != "cached") side.flush();
    if (cache == "partly") side.warm_one(mode);
    return side.ask(mode);
  }

  void compare(const Mode& mode, const std::string& cache, Sums& sums) {
    Answer ours = ask(ours_, mode, cache), truth = ask(truth_, mode, cache);
    const ModelSpec& spec = ours_.spec();
    const int sound = first_rerouted(ours, truth, spec.layer_count());
    sums.kl = worse(sums.kl, kl_divergence(truth.logits, ours.logits));
    if (sound == spec.layer_count()) {
      ++sums.logits_judged;
      sums.logits = worse(sums.logits, excess(largest_difference(ours.logits, truth.logits),
                                              logit_tolerance(ours_.backend(), spec, rms(truth.logits))));
    }
    for (int l = 0; l < spec.layer_count(); ++l) {
      if (!spec.layers[l].linear) continue;
      const double error = relative_error(ours.states[l], truth.states[l]);
      sums.state_errors[l] = worse(sums.state_errors[l], error);
      if (l > sound) continue;
      ++sums.judged;  // products of two vectors that each carry the stream's error
      sums.state = worse(sums.state, excess(error, 2 * layer_tolerance(ours_.backend(), spec, l)));
    }
    if (cache == "cold") {
      sums.cold = std::move(ours);
      sums.cold_truth = std::move(truth);
    }
  }

  // How many of the repeats leave other bits than the first.
  int64_t repeat(const Mode& mode) {
    int64_t other = 0;
    Answer first;
    for (int64_t i = 0; i < settings_.repeats; ++i) {
      Answer answer = ask(ours_, mode, "cold");
      if (i == 0)
        first = std::move(answer);
      else
        other += answer.logits != first.logits || answer.states != first.states;
    }
    return other;
  }

  const Settings& settings_;
  const ProgressFn& progress_;
  Side ours_, truth_;
};

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), modes (all), lengths ([12, 70, 33, 40, 9]), tokens of each
// segment, the question last, repeats (3).
// Values by mode: kl (nats, from cpu64), excess.logits and excess.state, the largest over cold, partly cached and
// cached requests and over layers, in units of what is allowed; judged, how many comparisons are behind them; kl_full
// and kl_full_truth, KL from full recompute here and in float64; other_bits (repeats that differ); by mode and layer
// state (relative).
Work prepare_reuse_layers(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  Settings settings;
  settings.choice = read_model_choice(parameters, context);
  std::vector<std::string> all;
  for (const Mode& mode : modes()) all.push_back(mode.name);
  for (const std::string& name : parameters.texts("modes", all)) settings.modes.push_back(mode_named(name));
  settings.lengths = parameters.integers("lengths", {12, 70, 33, 40, 9}, 1, 1 << 16);
  require(settings.lengths.size() >= 3 && settings.lengths.size() <= 8, where,
          ".parameters.lengths: two to seven segments and a question are asked for");
  settings.repeats = parameters.integer("repeats", 3, 1, 100000);
  parameters.refuse_others();
  return [settings](const ProgressFn& progress) { return Comparison(settings, progress).run(); };
}

}  // namespace hypic
