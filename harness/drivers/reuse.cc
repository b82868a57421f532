#include <algorithm>
#include <cmath>
#include <memory>

#include "core/check.h"
#include "harness/measure/distance.h"
#include "harness/measure/prompts.h"
#include "harness/measure/replay.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "serving/engine.h"

namespace hypic {
namespace {

// Sums over rows of one mode.
struct ModeSums {
  double kl = 0, worst_kl = 0, top1 = 0;
  int64_t jumps = 0;
  int64_t computed = 0, reordered = 0, total = 0;  // rows, of a warm run and of one in another order
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

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

class ReuseRun {
 public:
  ReuseRun(const SuiteCase& suite_case, const std::string& where, const DriverContext& context)
      : data_(context.data) {
    if (context.data_used) *context.data_used = true;
    Parameters parameters(suite_case.parameters, where + ".parameters");
    choice_ = read_model_choice(parameters, context, Ranks::several);
    limits_.rows = parameters.integer("rows", 1, 1, 1 << 20);
    limits_.passages = parameters.integer("passages", 8, 1, 1 << 12);
    limits_.tokens = parameters.integer("tokens", 128, 1, 1 << 20);
    std::vector<std::string> all;
    for (const Mode& mode : modes()) all.push_back(mode.name);
    for (const std::string& name : parameters.texts("modes", all)) {
      modes_.push_back(mode_named(name));
      require(std::count_if(modes_.begin(), modes_.end(), [&](const Mode& m) { return m.name == name; }) == 1,
              where, ".parameters.modes: \"", name, "\" appears twice");
    }
    parameters.refuse_others();
    const ModelSpec spec = spec_of(choice_.model);
    require(data_.empty() || has_tokenizer(choice_.model), choice_.model,
            ": has no tokenizer to read the data with; add tokenizer.json, or leave --data out");
    prompts_ = has_tokenizer(choice_.model) ? load_prompts(data_, tokenizer_for(choice_.model), limits_)
                                          : random_prompts(spec.vocabulary, limits_);
    for (const TokenPrompt& prompt : prompts_) {
      require(prompt.segments.size() >= 3, prompt.id, ": its context has no segments");
      require(token_count(prompt) < spec.max_positions, prompt.id, ": ", token_count(prompt),
              " tokens exceed the model's ", spec.max_positions, " positions; ask for fewer passages or tokens");
      for (const auto& segment : prompt.segments)
        for (const int32_t token : segment)
          require(token < spec.vocabulary, prompt.id, ": token ", token, " is outside the model's vocabulary of ",
                  spec.vocabulary, "; the tokenizer does not belong to it");
    }
  }

  Result run(const ProgressFn& progress) const {
    const OpenModel open(choice_);
    const Model& model = open.model();
    Engine engine(model, options_for(prompts_));
    const int layers = model.spec().layer_count();
    std::vector<ModeSums> sums(modes_.size());
    for (ModeSums& s : sums) {
      s.operator_error.assign(layers, 0);
      s.drift.assign(layers, 0);
      s.state_error.assign(layers, 0);
    }
    double done = 0;
    const double steps = static_cast<double>(prompts_.size() * (modes_.size() + 1));
    for (const TokenPrompt& prompt : prompts_) {
      progress(done++ / steps, prompt.id + ", full recompute");
      const Response full =
          engine.run({{prompt.segments, 1}}, mode_named("full"), {.keep_state = true}).responses[0];
      const auto failed = [&](const auto&... why) {
        Result result;
        result.verdict = Verdict::fail;
        result.why = str(prompt.id, ": full recompute ", why...);
        return result;
      };
      if (!std::all_of(full.logits.begin(), full.logits.end(), [](double x) { return std::isfinite(x); }))
        return failed("gives logits that are not finite");
      for (int l = 0; l < layers; ++l)
        if (model.spec().layers[l].linear && !(norm(full.state_before_question[l]) > 0))
          return failed("leaves a zero state in layer ", l, "; nothing can be measured on it");
      for (size_t m = 0; m < modes_.size(); ++m) {
        progress(done++ / steps, prompt.id + ", " + modes_[m].name);
        measure(model, engine, prompt, full, modes_[m], sums[m]);
      }
    }
    for (size_t m = 0; m < modes_.size(); ++m)
      require(modes_[m].reuse != Reuse::segments || sums[m].jumps > 0, "mode ", modes_[m].name,
              " reused nothing: no segment is longer than its seams");
    return report(model, sums);
  }

 private:
  void measure(const Model& model, Engine& engine, const TokenPrompt& prompt, const Response& full,
               const Mode& mode, ModeSums& sums) const {
    InputRecorder inputs(model.backend());
    if (mode.reuse == Reuse::prefix) {  // a cold prefix cache is full recompute: fill it first
      engine.run({{prompt.segments, 1}}, mode);
    }
    const RunResult run =
        engine.run({{prompt.segments, 1}}, mode, {.keep_state = true, .tap = &inputs});
    const Response& response = run.responses[0];
    const double kl = kl_divergence(full.logits, response.logits);
    sums.kl += kl;
    sums.worst_kl = worse(sums.worst_kl, kl);
    sums.top1 += argmax(response.logits) == argmax(full.logits);  // −1 agrees with no finite logits
    sums.jumps += run.counters.jumps;
    sums.computed += run.counters.seam + run.counters.context;
    sums.total += token_count(prompt);
    for (int l = 0; l < model.spec().layer_count(); ++l) {
      if (!model.spec().layers[l].linear) continue;
      const auto& state = response.state_before_question[l];
      sums.state_error[l] += relative_error(state, full.state_before_question[l]);
      if (mode.reuse != Reuse::segments) continue;
      HYPIC_CHECK(run.tables.size() == 1);
      const std::vector<double> replayed = replayed_state(model.spec(), run.tables[0], inputs, l);
      sums.operator_error[l] = worse(sums.operator_error[l], relative_error(state, replayed));
      sums.drift[l] += relative_error(replayed, full.state_before_question[l]);
    }
    TokenPrompt moved = prompt;  // the same passages, the last one first
    std::reverse(moved.segments.begin() + 1, moved.segments.end() - 1);
    sums.reordered += engine.run({{moved.segments, 1}}, mode).counters.computed();
    engine.flush();
    engine.check_integrity();
  }

  Result report(const Model& model, const std::vector<ModeSums>& sums) const {
    const double n = static_cast<double>(prompts_.size());
    int64_t tokens = 0;
    for (const TokenPrompt& prompt : prompts_) tokens += token_count(prompt);
    const int layers = model.spec().layer_count();
    Result result;
    result.verdict = Verdict::pass;
    Table table{"Modes against full recompute",
                {"mode", "KL (nats)", "worst KL", "top-1 agreement", "operator error",
                 "context drift", "state error, first layer", "recomputed, same order",
                 "recomputed, other order"},
                {}};
    Chart kl{.title = "KL of the first token from full recompute",
             .y_label = "KL, nats (log scale)",
             .log_y = true,
             .kind = ChartKind::dot,
             .series = {{"KL", {}, {}}}};
    Chart drift{.title = "Context drift by layer",
                .x_label = "linear-attention layer",
                .y_label = "relative error, mean"};
    Chart error{.title = "Operator error by layer",
                .x_label = "linear-attention layer",
                .y_label = "relative error (log)",
                .log_y = true};
    for (size_t m = 0; m < modes_.size(); ++m) {
      const std::string& mode = modes_[m].name;
      const bool segments = modes_[m].reuse == Reuse::segments;
      result.values.push_back({"kl." + mode, sums[m].kl / n, "nats"});
      result.values.push_back({"kl_worst." + mode, sums[m].worst_kl, "nats"});
      if (!segments)  // exact by definition; KL is second order in what logits may differ by
        result.values.push_back({"exact_excess." + mode,
                                 excess(sums[m].worst_kl, std::pow(batch_tolerance(model.backend(), model.spec(), 1), 2)), "bounds"});
      result.values.push_back({"top1." + mode, sums[m].top1 / n, "share"});
      Series drift_line{mode, {}, {}}, error_line{mode, {}, {}};
      double worst = 0, drift_sum = 0, first_layer = 0;
      int linear = 0;
      for (int l = 0; l < layers; ++l) {
        if (!model.spec().layers[l].linear) continue;
        if (linear++ == 0) first_layer = sums[m].state_error[l] / n;
        result.values.push_back(
            {str("state.", mode, ".", layer_tag(l)), sums[m].state_error[l] / n, "relative"});
        if (!segments) continue;
        worst = worse(worst, sums[m].operator_error[l]);
        drift_sum += sums[m].drift[l] / n;
        result.values.push_back(
            {str("operator.", mode, ".", layer_tag(l)), sums[m].operator_error[l], "relative"});
        result.values.push_back({str("operator_excess.", mode, ".", layer_tag(l)),
                                 excess(sums[m].operator_error[l], tolerance(model.backend().compute_dtype())), "bounds"});
        result.values.push_back(
            {str("drift.", mode, ".", layer_tag(l)), sums[m].drift[l] / n, "relative"});
        drift_line.x.push_back(l);
        drift_line.y.push_back(sums[m].drift[l] / n);
        error_line.x.push_back(l);
        error_line.y.push_back(sums[m].operator_error[l]);
      }
      const double total = static_cast<double>(sums[m].total);
      const double same = static_cast<double>(sums[m].computed) / total;
      const double other = static_cast<double>(sums[m].reordered) / total;
      result.values.push_back({"computed." + mode, same, "share"});
      result.values.push_back({"computed_reordered." + mode, other, "share"});
      table.rows.push_back(
          {mode, Cell(sums[m].kl / n), Cell(sums[m].worst_kl),
           str(sums[m].top1, " of ", prompts_.size()),
           segments ? Cell(worst, Format::scientific) : Cell("–"),
           segments && linear ? Cell(drift_sum / linear, Format::fixed, 3) : Cell("–"),
           Cell(first_layer, Format::scientific), Cell(same, Format::percent, 0),
           Cell(other, Format::percent, 0)});
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
        model.spec().name, " on ", choice_.on(), ", ", prompts_.size(), " of ", limits_.rows,
        " rows asked for, from ", source(), ", ", tokens,
        " tokens; at most ", limits_.passages, " passages of ", limits_.tokens,
        " tokens a row. KL: of the first token's distribution, in nats, mean over rows. "
        "Operator error: the state before the question against a float64 recurrence over the inputs "
        "that the cached residues were made from, the largest over layers and rows. Context drift: "
        "that recurrence against full recompute, mean over layers and rows. State error: both "
        "together, mean over rows, first linear layer. Recomputed: the share of the prompt's tokens "
        "that run through the model when all segments, for prefix this very prompt, have been seen; "
        "in another order: the same passages reversed.");
    if (choice_.model.starts_with("random:"))
      result.note += " Weights are random: orders of modes are shown, not asserted.";
    return result;
  }

  std::string source() const {
    if (!has_tokenizer(choice_.model)) return "random tokens (the model has no tokenizer)";
    return data_.empty() ? "the project's own text" : data_;
  }

  const std::string data_;
  ModelChoice choice_;
  PromptLimits limits_;
  std::vector<Mode> modes_;
  std::vector<TokenPrompt> prompts_;
};

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tensor_parallel (1), devices, rows (1), passages (8), tokens (128), modes (all).
// Values by mode: kl, kl_worst, top1, computed and computed_reordered (shares of the prompt); by mode and
// linear layer: operator (largest over rows), operator_excess, the same in units of what is allowed, drift,
// state (means).
Work prepare_reuse(const SuiteCase& suite_case, const std::string& where,
                   const DriverContext& context) {
  const auto run = std::make_shared<const ReuseRun>(suite_case, where, context);
  return [run](const ProgressFn& progress) { return run->run(progress); };
}

}  // namespace hypic
