#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/measure/distance.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "reference/ops/moe.h"
#include "serving/engine.h"

namespace hypic {
namespace {

constexpr uint64_t kSeed = 13;
constexpr const char* kTruth = "cpu64";

struct Settings {
  ModelChoice choice;
  bool ranks = false;  // that several are to be judged
  int64_t tokens = 0;
};

// Keeps the residual stream and the routing of one forward, by name, in host memory.
class Recorder : public Tap {
 public:
  explicit Recorder(Backend& backend) : backend_(backend) {}
  void see(const std::string& name, const Tensor& tensor) override {
    if (name.ends_with(".residual") || name.ends_with(".moe.logits")) {
      values[name] = to_doubles(backend_, tensor);
    } else if (name.ends_with(".moe.experts")) {
      experts[name].resize(tensor.size());
      backend_.download(experts[name].data(), tensor);
    }
  }
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, std::vector<int32_t>> experts;

 private:
  Backend& backend_;
};

struct Trace {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, std::vector<int32_t>> experts;
  std::map<std::string, std::vector<double>> biases;  // of the routers
  std::vector<std::vector<double>> states;
};

// One forward over a segment and a last token, so that there is a state before the question.
Trace trace(const Settings& settings, const std::string& backend_name) {
  const auto backend = make_backend(backend_name);
  const Model model = Model::open(*backend, settings.choice.model);
  const int64_t count = std::min<int64_t>(settings.tokens, model.spec().max_positions - 2);
  EngineOptions options;
  options.pools = {.state_slots = 4, .operator_slots = 1, .pages = count / 16 + 3, .page_size = 16};
  options.max_rows = static_cast<int32_t>(count + 1);
  Engine engine(model, options);
  Recorder recorder(*backend);
  auto run = engine.run({{{random_tokens(count, model.spec().vocabulary, kSeed), {0}}, 1}}, mode_named("full"),
                        {.keep_state = true, .tap = &recorder});
  Trace trace{std::move(recorder.values), std::move(recorder.experts), {},
              std::move(run.responses[0].state_before_question)};
  if (backend_name != kTruth || !model.spec().moe.bias) return trace;
  for (int l = 0; l < model.spec().layer_count(); ++l) {
    if (model.spec().layers[l].ffn != Ffn::moe) continue;
    const std::string name = str("layers.", l, ".moe.bias");
    std::vector<double>& bias = trace.biases[name];
    bias.resize(model.spec().moe.experts);
    backend->download(bias.data(), model.weight(name));
  }
  return trace;
}

// The experts of each row, in rising order.
std::vector<std::vector<int32_t>> rows_of(const std::vector<int32_t>& experts, int64_t k) {
  std::vector<std::vector<int32_t>> rows;
  for (size_t i = 0; i + k <= experts.size(); i += k) {
    rows.emplace_back(experts.begin() + i, experts.begin() + i + k);
    std::sort(rows.back().begin(), rows.back().end());
  }
  return rows;
}

// Whether float64 chooses these experts from these logits, of which each may be off by `noise`: those chosen
// least and those left out most may change places only within it.
bool chosen_rightly(const MoeSpec& moe, std::vector<double> logits, std::vector<double> bias,
                    const std::vector<int32_t>& experts, double noise) {
  const int64_t E = moe.experts, k = moe.active;
  const auto choose = [&](const std::vector<double>& from) {
    std::vector<int32_t> chosen(k);
    std::vector<double> weights(k);
    reference::route<double>({.logits = Tensor(from.data(), {1, E}),
                              .bias = bias.empty() ? Tensor() : Tensor(bias.data(), {E}),
                              .score = moe.score,
                              .groups = moe.groups,
                              .kept_groups = moe.kept_groups,
                              .renormalise = moe.renormalise,
                              .experts = Tensor(chosen.data(), {1, k}),
                              .weights = Tensor(weights.data(), {1, k})});
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  };
  if (choose(logits) == experts) return true;
  // Lift what the backend chose by the noise and lower the rest: a near tie then falls its way.
  for (int64_t e = 0; e < E; ++e)
    logits[e] += std::binary_search(experts.begin(), experts.end(), e) ? noise : -noise;
  return choose(logits) == experts;
}

Result run(const Settings& settings, const ProgressFn& progress) {
  Result result;
  if (settings.ranks) {
    result.verdict = Verdict::skip;
    result.why = "of tensor-parallel ranks no one has the states of all heads";
    return result;
  }
  if (settings.choice.backend == kTruth) {
    result.verdict = Verdict::skip;
    result.why = str(kTruth, " is the truth itself; name another backend by --backend");
    return result;
  }
  const ModelSpec spec = spec_of(settings.choice.model);
  const auto backend = make_backend(settings.choice.backend);
  progress(0, settings.choice.backend);
  const Trace ours = trace(settings, settings.choice.backend);
  progress(0.3, kTruth);
  const Trace truth = trace(settings, kTruth);
  result.verdict = Verdict::pass;
  Table table{str("Backend ", settings.choice.backend, " against ", kTruth, ", relative errors"),
              {"layer", "parts", "residual stream", "state", "bound", "rows routed otherwise", "routed wrongly"},
              {}};
  Chart chart{.title = "Residual stream by layer",
              .x_label = "layer",
              .y_label = "relative error (log)",
              .log_y = true,
              .series = {{"error", {}, {}}, {"bound", {}, {}}}};
  const int64_t H = spec.hidden, rows = static_cast<int64_t>(truth.values.at("layers.0.residual").size()) / H;
  std::vector<bool> rerouted(rows, false);  // so far
  bool mixed = false;  // a rerouted row has reached the others
  for (int l = 0; l < spec.layer_count(); ++l) {
    const Layer& parts = spec.layers[l];
    const std::string at = str("layers.", l, "."), tag = str("layer_", l < 10 ? "0" : "", l);
    const double bound = layer_tolerance(*backend, spec, l);
    if (parts.mixes()) mixed |= std::count(rerouted.begin(), rerouted.end(), true) > 0;
    Cell state("–"), otherwise("–"), wrong("–");
    if (parts.linear) {
      const double error = relative_error(ours.states[l], truth.states[l]);
      result.values.push_back({"state." + tag, error, "relative"});
      // Products of two vectors that each carry the stream's error.
      if (!mixed) result.values.push_back({"excess.state." + tag, excess(error, 2 * bound), "bounds"});
      state = Cell(error, Format::scientific);
    }
    if (parts.ffn == Ffn::moe) {
      const auto x = rows_of(ours.experts.at(at + "moe.experts"), spec.moe.active);
      const auto y = rows_of(truth.experts.at(at + "moe.experts"), spec.moe.active);
      const std::vector<double>& logits = ours.values.at(at + "moe.logits");
      const auto bias = truth.biases.find(at + "moe.bias");
      int64_t other = 0, misrouted = 0;
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<double> own(logits.begin() + r * spec.moe.experts,
                                      logits.begin() + (r + 1) * spec.moe.experts);
        double size = 0;
        for (const double z : own) size = worse(size, std::abs(z));
        misrouted += !chosen_rightly(spec.moe, own, bias == truth.biases.end() ? std::vector<double>() : bias->second,
                                     x[r], 16 * unit_roundoff(backend->state_dtype()) * std::max(size, 1.0));
        if (x[r] == y[r]) continue;
        ++other;
        rerouted[r] = true;
      }
      result.values.push_back({"routed_otherwise." + tag, static_cast<double>(other), "rows"});
      result.values.push_back({"routed_wrongly." + tag, static_cast<double>(misrouted), "rows"});
      otherwise = Cell(other);
      wrong = Cell(misrouted, misrouted > 0 ? Mark::bad : Mark::none);
    }
    // A row whose scores nearly tie may go to other experts; it is not off by rounding then, nor, from the next
    // layer that mixes rows on, is any other.
    std::vector<double> got, want;
    for (int64_t r = 0; r < rows; ++r) {
      if (rerouted[r]) continue;
      const auto row = [&](const Trace& t) { return t.values.at(at + "residual").begin() + r * H; };
      got.insert(got.end(), row(ours), row(ours) + H);
      want.insert(want.end(), row(truth), row(truth) + H);
    }
    const double error = relative_error(got, want);
    result.values.push_back({"residual." + tag, error, "relative"});
    if (!mixed) result.values.push_back({"excess.residual." + tag, excess(error, bound), "bounds"});
    std::string kind = parts.linear && parts.attention ? "linear + attention"
                       : parts.linear                  ? "linear"
                       : parts.attention               ? "attention"
                                                       : "";
    if (parts.ffn != Ffn::none) kind += str(kind.empty() ? "" : ", ", parts.ffn == Ffn::moe ? "experts" : "ffn");
    table.rows.push_back({Cell(l), kind, Cell(error, Format::scientific), state,
                          mixed ? Cell("shown only") : Cell(bound, Format::scientific), otherwise, wrong});
    chart.series[0].x.push_back(l);
    chart.series[0].y.push_back(error);
    chart.series[1].x.push_back(l);
    chart.series[1].y.push_back(bound);
  }
  result.values.push_back({"routed_wrongly.any", 0, "rows"});  // of a model without experts
  result.tables = {std::move(table)};
  result.charts = {std::move(chart)};
  result.note = str(spec.name, ", ", settings.tokens, " random tokens in one forward. A row is routed wrongly where "
                    "float64 would not choose its experts from the backend's own logits; it may be routed otherwise "
                    "than by ", kTruth, " where scores nearly tie. Rows routed otherwise are left out, and after them "
                    "nothing is judged that mixes rows.");
  return result;
}

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tokens (200).
// Values by layer: residual, state (relative errors), excess.residual, excess.state, the same in units of what is
// allowed; routed_otherwise, rows whose experts differ from those of cpu64; routed_wrongly, rows whose experts do
// not follow from the backend's own logits.
Work prepare_layers(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  Settings settings;
  settings.choice = read_model_choice(parameters, context);
  settings.ranks = context.devices.size() > 1;
  settings.tokens = parameters.integer("tokens", 200, 1, 1 << 20);
  parameters.refuse_others();
  return [settings](const ProgressFn& progress) { return run(settings, progress); };
}

}  // namespace hypic
