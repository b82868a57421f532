#include <algorithm>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/driver.h"
#include "harness/measure/distance.h"
#include "harness/measure/prompts.h"
#include "harness/measure/replay.h"
#include "serving/engine.h"

namespace hypic {
namespace {

// Sums over rows of one mode.
struct ModeSums {
  double kl = 0, worst_kl = 0, top1 = 0;
  int64_t computed = 0, total = 0;
  std::vector<double> operator_error, drift, state_error;  // by layer; the largest, the means
};

std::string layer_tag(int layer) {
  return str("layer_", layer < 10 ? "0" : "", layer);  // two digits, so that tags sort
}

int64_t token_count(const TokenPrompt& prompt) {
  int64_t n = 0;
  for (const auto& segment : prompt.segments) n += static_cast<int64_t>(segment.size());
  return n;
}

// Pools that hold a prompt and its residues, and no more.
EngineOptions options_for(const std::vector<TokenPrompt>& prompts) {
  EngineOptions options;
  int64_t segments = 0, tokens = 0;
  for (const TokenPrompt& prompt : prompts) {
    segments = std::max<int64_t>(segments, static_cast<int64_t>(prompt.segments.size()));
    tokens = std::max(tokens, token_count(prompt));
  }
  options.pools.state_slots = 2 * segments + 4;
  options.pools.operator_slots = segments + 1;
  options.pools.pages = 2 * (tokens / options.pools.page_size + segments + 2);
  options.max_rows = static_cast<int32_t>(4 * tokens + 1);  // one forward, as the replay needs
  return options;
}

class ReuseRun {
 public:
  ReuseRun(const SuiteCase& suite_case, const std::string& where, const DriverContext& context)
      : context_(context) {
    Parameters parameters(suite_case.parameters, where + ".parameters");
    const std::string in_suite = parameters.text("model", "random:qwen3.5-tiny");
    model_name_ = context.model.empty() ? in_suite : context.model;
    backend_name_ = parameters.text("backend", "cpu");
    limits_.rows = parameters.integer("rows", 1, 1, 1 << 20);
    limits_.passages = parameters.integer("passages", 8, 1, 1 << 12);
    limits_.tokens = parameters.integer("tokens", 128, 1, 1 << 20);
    std::vector<std::string> all;
    for (const Mode& mode : modes()) all.push_back(mode.name);
    for (const std::string& name : parameters.texts("modes", all))
      modes_.push_back(mode_named(name));
    parameters.refuse_others();
  }

  Result run() {
    const auto backend = make_backend(backend_name_);
    const Model model = Model::open(*backend, model_name_);
    const auto prompts = load_prompts(context_.data, tokenizer_for(model_name_), limits_);
    Engine engine(model, options_for(prompts));
    const int layers = model.spec().layer_count();
    std::vector<ModeSums> sums(modes_.size());
    for (ModeSums& s : sums) {
      s.operator_error.assign(layers, 0);
      s.drift.assign(layers, 0);
      s.state_error.assign(layers, 0);
    }
    int64_t tokens = 0, done = 0;
    const double steps = static_cast<double>(prompts.size() * (modes_.size() + 1));
    for (const TokenPrompt& prompt : prompts) {
      tokens += token_count(prompt);
      context_.progress(done++ / steps, prompt.id + ", full recompute");
      const Response full =
          engine.run({{prompt.segments, 1}}, mode_named("full"), {.keep_state = true}).responses[0];
      for (size_t m = 0; m < modes_.size(); ++m) {
        context_.progress(done++ / steps, prompt.id + ", " + modes_[m].name);
        measure(model, engine, prompt, full, modes_[m], sums[m]);
      }
    }
    return report(model, prompts, tokens, sums);
  }

 private:
  void measure(const Model& model, Engine& engine, const TokenPrompt& prompt, const Response& full,
               const Mode& mode, ModeSums& sums) {
    InputRecorder inputs;
    if (mode.reuse == Reuse::prefix) {  // a cold prefix cache is full recompute: fill it first
      engine.run({{prompt.segments, 1}}, mode);
    }
    const RunResult run =
        engine.run({{prompt.segments, 1}}, mode, {.keep_state = true, .tap = &inputs});
    const Response& response = run.responses[0];
    const double kl = kl_divergence(full.logits, response.logits);
    sums.kl += kl;
    sums.worst_kl = std::max(sums.worst_kl, kl);
    sums.top1 += argmax(full.logits) == argmax(response.logits);
    sums.computed += run.counters.seam + run.counters.context;
    sums.total += token_count(prompt);
    for (int l = 0; l < model.spec().layer_count(); ++l) {
      if (model.spec().layers[l] != LayerKind::linear) continue;
      const auto& state = response.state_before_question[l];
      sums.state_error[l] += relative_error(state, full.state_before_question[l]);
      if (mode.reuse != Reuse::segments) continue;
      HYPIC_CHECK(run.tables.size() == 1);
      const std::vector<double> replayed = replayed_state(model.spec(), run.tables[0], inputs, l);
      sums.operator_error[l] = std::max(sums.operator_error[l], relative_error(state, replayed));
      sums.drift[l] += relative_error(replayed, full.state_before_question[l]);
    }
    engine.flush();
    engine.check_integrity();
  }

  Result report(const Model& model, const std::vector<TokenPrompt>& prompts, int64_t tokens,
                const std::vector<ModeSums>& sums) {
    const double n = static_cast<double>(prompts.size());
    const int layers = model.spec().layer_count();
    Result result;
    result.verdict = Verdict::pass;
    Table table{"Modes against full recompute",
                {"mode", "KL (nats)", "worst KL", "top-1 agreement", "operator error",
                 "context drift", "state error, first layer", "recomputed when warm"},
                {}};
    Chart kl{.title = "KL of the first token from full recompute",
             .y_label = "nats",
             .log_y = true,
             .kind = ChartKind::dot,
             .series = {{"KL", {}, {}}}};
    Chart drift{.title = "Context drift by layer",
                .x_label = "layer",
                .y_label = "relative error of the state"};
    Chart error{.title = "Operator error by layer",
                .x_label = "layer",
                .y_label = "relative error of the state",
                .log_y = true};
    for (size_t m = 0; m < modes_.size(); ++m) {
      const std::string& mode = modes_[m].name;
      const bool segments = modes_[m].reuse == Reuse::segments;
      result.values.push_back({"kl." + mode, sums[m].kl / n, "nats"});
      result.values.push_back({"top1." + mode, sums[m].top1 / n, "share"});
      Series drift_line{mode, {}, {}}, error_line{mode, {}, {}};
      double worst = 0, drift_sum = 0, first_layer = 0;
      int linear = 0;
      for (int l = 0; l < layers; ++l) {
        if (model.spec().layers[l] != LayerKind::linear) continue;
        if (linear++ == 0) first_layer = sums[m].state_error[l] / n;
        result.values.push_back(
            {str("state.", mode, ".", layer_tag(l)), sums[m].state_error[l] / n, "relative"});
        if (!segments) continue;
        worst = std::max(worst, sums[m].operator_error[l]);
        drift_sum += sums[m].drift[l] / n;
        result.values.push_back(
            {str("operator.", mode, ".", layer_tag(l)), sums[m].operator_error[l], "relative"});
        result.values.push_back(
            {str("drift.", mode, ".", layer_tag(l)), sums[m].drift[l] / n, "relative"});
        drift_line.x.push_back(l);
        drift_line.y.push_back(sums[m].drift[l] / n);
        error_line.x.push_back(l);
        error_line.y.push_back(sums[m].operator_error[l]);
      }
      const double share =
          static_cast<double>(sums[m].computed) / static_cast<double>(sums[m].total);
      result.values.push_back({"computed." + mode, share, "share"});
      table.rows.push_back(
          {mode, Cell(sums[m].kl / n), Cell(sums[m].worst_kl),
           Cell(sums[m].top1 / n, Format::percent, 0),
           segments ? Cell(worst, Format::scientific) : Cell("–"),
           segments && linear ? Cell(drift_sum / linear, Format::fixed, 3) : Cell("–"),
           Cell(first_layer, Format::scientific), Cell(share, Format::percent, 0)});
      kl.categories.push_back(mode);
      kl.series[0].y.push_back(sums[m].kl / n);
      if (segments) {
        drift.series.push_back(std::move(drift_line));
        error.series.push_back(std::move(error_line));
      }
    }
    result.tables.push_back(std::move(table));
    result.charts = {std::move(kl), std::move(drift), std::move(error)};
    result.note = str(
        model.spec().name, " on ", backend_name_, ", ", prompts.size(), " rows of ",
        context_.data.empty() ? "the project's own text" : context_.data, ", ", tokens,
        " tokens; at most ", limits_.passages, " passages of ", limits_.tokens,
        " tokens a row. Operator error: the composed state against a float64 recurrence over the "
        "inputs that the residues were made from, the largest over rows. Context drift: that "
        "recurrence against full recompute. State error: both together. Means over rows; states "
        "are "
        "those before the question.");
    if (model_name_.starts_with("random:"))
      result.note += " Weights are random: orders of modes are shown, not asserted.";
    return result;
  }

  const DriverContext& context_;
  std::string model_name_, backend_name_;
  PromptLimits limits_;
  std::vector<Mode> modes_;
};

}  // namespace

// Parameters: model, backend, rows, passages, tokens, modes.
// Values by mode: kl, top1, computed (share of rows in full context); by mode and linear layer:
// operator, drift, state.
Result run_reuse(const SuiteCase& suite_case, const std::string& where,
                 const DriverContext& context) {
  return ReuseRun(suite_case, where, context).run();
}

}  // namespace hypic
