#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/measure/distance.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "serving/engine.h"

namespace hypic {
namespace {

constexpr uint64_t kSeed = 13;
constexpr const char* kTruth = "cpu64";

struct Settings {
  ModelChoice choice;
  int64_t tokens = 0;
};

// Keeps the residual stream and the routing of one forward, by name, in host memory.
class Recorder : public Tap {
 public:
  explicit Recorder(Backend& backend) : backend_(backend) {}
  void see(const std::string& name, const Tensor& tensor) override {
    if (name.ends_with(".residual")) {
      visit_float(tensor.dtype, [&](auto zero) {
        using T = decltype(zero);
        std::vector<T> held(tensor.size());
        backend_.download(held.data(), tensor);
        std::vector<double>& out = residual[name];
        for (const T x : held) {
          if constexpr (std::is_same_v<T, double>)
            out.push_back(x);
          else
            out.push_back(static_cast<float>(x));
        }
      });
    } else if (name.ends_with(".moe.experts")) {
      experts[name].resize(tensor.size());
      backend_.download(experts[name].data(), tensor);
    }
  }
  std::map<std::string, std::vector<double>> residual;
  std::map<std::string, std::vector<int32_t>> experts;

 private:
  Backend& backend_;
};

struct Trace {
  std::map<std::string, std::vector<double>> residual;
  std::map<std::string, std::vector<int32_t>> experts;
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
  const auto run = engine.run({{{random_tokens(count, model.spec().vocabulary, kSeed), {0}}, 1}},
                              mode_named("full"), {.keep_state = true, .tap = &recorder});
  return {std::move(recorder.residual), std::move(recorder.experts), run.responses[0].state_before_question};
}

// Rows of a layer's routing that chose other experts, whatever the order.
int64_t rows_routed_otherwise(std::vector<int32_t> x, std::vector<int32_t> y, size_t rows) {
  if (x.size() != y.size() || rows == 0) return -1;
  const auto k = static_cast<std::ptrdiff_t>(x.size() / rows);
  int64_t other = 0;
  for (size_t r = 0; r < rows; ++r) {
    const auto at = static_cast<std::ptrdiff_t>(r) * k;
    std::sort(x.begin() + at, x.begin() + at + k);
    std::sort(y.begin() + at, y.begin() + at + k);
    other += !std::equal(x.begin() + at, x.begin() + at + k, y.begin() + at);
  }
  return other;
}

Result run(const Settings& settings, const ProgressFn& progress) {
  const ModelSpec spec = spec_of(settings.choice.model);
  const auto backend = make_backend(settings.choice.backend);
  progress(0, settings.choice.backend);
  const Trace ours = trace(settings, settings.choice.backend);
  progress(0.3, kTruth);
  const Trace truth = trace(settings, kTruth);
  Result result;
  result.verdict = Verdict::pass;
  Table table{str("Backend ", settings.choice.backend, " against ", kTruth, ", relative errors"),
              {"layer", "parts", "residual stream", "bound", "state", "rows routed otherwise"},
              {}};
  Chart chart{.title = "Residual stream by layer",
              .x_label = "layer",
              .y_label = "relative error (log)",
              .log_y = true,
              .series = {{"error", {}, {}}, {"bound", {}, {}}}};
  int64_t flips = 0;
  for (int l = 0; l < spec.layer_count(); ++l) {
    const Layer& parts = spec.layers[l];
    const std::string at = str("layers.", l, "."), tag = str("layer_", l < 10 ? "0" : "", l);
    const std::vector<double>& expected = truth.residual.at(at + "residual");
    const double error = relative_error(ours.residual.at(at + "residual"), expected);
    const double bound = layer_tolerance(*backend, spec, l);
    result.values.push_back({"residual." + tag, error, "relative"});
    Cell state("–"), routed("–");
    if (parts.linear) {
      const double e = relative_error(ours.states[l], truth.states[l]);
      result.values.push_back({"state." + tag, e, "relative"});
      state = Cell(e, Format::scientific);
    }
    if (parts.ffn == Ffn::moe) {
      const size_t rows = expected.size() / static_cast<size_t>(spec.hidden);
      const int64_t other =
          rows_routed_otherwise(ours.experts.at(at + "moe.experts"), truth.experts.at(at + "moe.experts"), rows);
      flips += std::abs(other);
      routed = Cell(other);
    }
    // A row that goes to other experts, its scores being nearly equal, is not off by rounding: from there on
    // only the count is a fact.
    if (flips == 0) result.values.push_back({"excess." + tag, excess(error, bound), "bounds"});
    std::string kind = parts.linear && parts.attention ? "linear + attention"
                       : parts.linear                  ? "linear"
                       : parts.attention               ? "attention"
                                                       : "";
    if (parts.ffn != Ffn::none) kind += str(kind.empty() ? "" : ", ", parts.ffn == Ffn::moe ? "experts" : "ffn");
    table.rows.push_back({Cell(l), kind, Cell(error, Format::scientific), Cell(bound, Format::scientific), state,
                          routed});
    chart.series[0].x.push_back(l);
    chart.series[0].y.push_back(error);
    chart.series[1].x.push_back(l);
    chart.series[1].y.push_back(bound);
  }
  result.values.push_back({"routed_otherwise", static_cast<double>(flips), "rows"});
  result.tables = {std::move(table)};
  result.charts = {std::move(chart)};
  result.note = str(spec.name, ", ", settings.tokens, " random tokens in one forward. Layers after one that routes a "
                    "row otherwise are shown, not judged.");
  if (settings.choice.backend == kTruth) result.note += " The backend is the truth itself: all errors are 0.";
  return result;
}

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tokens (200).
// Values by layer: residual, state (relative errors), excess, residual in units of what is allowed;
// routed_otherwise, rows whose experts differ.
Work prepare_layers(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  Settings settings;
  settings.choice = read_model_choice(parameters, context);
  settings.tokens = parameters.integer("tokens", 200, 1, 1 << 20);
  parameters.refuse_others();
  return [settings](const ProgressFn& progress) { return run(settings, progress); };
}

}  // namespace hypic
