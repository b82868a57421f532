#include "harness/drivers/reuse_laws.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "harness/measure/distance.h"
#include "harness/measure/replay.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "serving/engine.h"

namespace hypic {
namespace reuse_laws {
namespace {

constexpr uint64_t kSeed = 17;
constexpr int32_t kNarrow = 25;  // rows of a forward that cuts segments and their operators

struct Settings {
  ModelChoice choice;
  std::vector<Mode> modes;
  std::vector<int64_t> lengths;
  Faults faults;
};

using Prompt = std::vector<Tokens>;

class LawRun {
 public:
  LawRun(const Settings& settings, const ProgressFn& progress)
      : settings_(settings),
        progress_(progress),
        open_(settings.choice),
        model_(open_.model()) {
    uint64_t seed = kSeed;
    for (const int64_t n : settings.lengths) prompt_.push_back(random_tokens(n, spec().vocabulary, ++seed));
    options_.faults = settings.faults;
    options_.pools = {.state_slots = 16, .operator_slots = 16, .pages = 0, .page_size = 16};
    for (const int64_t n : settings.lengths) options_.pools.pages += 4 * (n / 16 + 2);
    for (const int64_t n : settings.lengths) options_.max_rows += static_cast<int32_t>(4 * n);
  }

  Result run() {
    Result result;
    result.verdict = Verdict::pass;
    Table table{"Laws of reuse, each in units of what is allowed (0 where equality is asked and holds)",
                {"mode", "again, from the cache", "cold in chunks", "partly from the cache", "another order, cached", "two at once",
                 "composed state", "attention outputs", "first layer = full recompute"},
                {}};
    double done = 0;
    for (const Mode& mode : settings_.modes) {
      progress_(done++ / static_cast<double>(settings_.modes.size()), mode.name);
      const auto row = laws(mode);
      std::vector<Cell> cells = {mode.name};
      for (const auto& [law, value] : row) {
        if (std::isnan(value) && law == kAbsent) {
          cells.emplace_back("–");
          continue;
        }
        result.values.push_back({str(law, ".", mode.name), value, "bounds"});
        cells.emplace_back(value, Format::compact, 2, value <= 1 ? Mark::none : Mark::bad);
      }
      table.rows.push_back(std::move(cells));
    }
    result.tables = {std::move(table)};
    result.note = str(
        spec().name, " on ", settings_.choice.on(), ", random tokens: ", settings_.lengths.size() - 1,
        " segments and a question. The same request once more, its residues now from the cache of an earlier "
        "forward; cold but in forwards of 25 rows; with one segment cached and the others not; with the segments in another order; beside another "
        "request: the logits must not change. The state before the question must be what the mode defines, and the "
        "attention outputs what each row must see, by float64 over the same inputs. Where the seam covers the "
        "convolution window, all that the question computes in the first layer equals full recompute.");
    return result;
  }

 private:
  static constexpr const char* kAbsent = "";
  const ModelSpec& spec() const { return model_.spec(); }

  std::vector<double> logits(Engine& engine, const Prompt& prompt, const Mode& mode) const {
    return engine.run({{prompt, 1}}, mode).responses[0].logits;
  }

  // NaN logits fail every law.
  double logit_excess(const std::vector<double>& x, const std::vector<double>& y) const {
    return excess(largest_difference(x, y), batch_tolerance(open_.backend(), spec(), rms(y)));
  }

  std::vector<std::pair<const char*, double>> laws(const Mode& mode) {
    Engine engine(model_, options_);
    InputRecorder inputs(open_.backend());
    const RunResult cold = engine.run({{prompt_, 1}}, mode, {.keep_state = true, .tap = &inputs});
    HYPIC_CHECK(cold.tables.size() == 1);
    const ChainTable& table = cold.tables[0];
    const std::vector<double>& expected = cold.responses[0].logits;
    std::vector<std::pair<const char*, double>> values;
    values.emplace_back("again", logit_excess(logits(engine, prompt_, mode), expected));

    EngineOptions narrow = options_;
    narrow.max_rows = kNarrow;
    Engine chunks(model_, narrow);
    values.emplace_back("chunked", logit_excess(logits(chunks, prompt_, mode), expected));
    Prompt moved = prompt_;
    std::reverse(moved.begin() + 1, moved.end() - 1);
    const std::vector<double> moved_cached = logits(engine, moved, mode);
    engine.flush();
    engine.warm({prompt_[1]}, mode);
    values.emplace_back("partly", logit_excess(logits(engine, prompt_, mode), expected));
    engine.flush();
    values.emplace_back("moved", logit_excess(moved_cached, logits(engine, moved, mode)));
    engine.flush();
    const auto both = engine.run({{moved, 1}, {prompt_, 1}}, mode).responses;
    values.emplace_back("beside", logit_excess(both[1].logits, expected));
    engine.flush();
    engine.check_integrity();

    double state = 0, attention = 0;
    for (int l = 0; l < spec().layer_count(); ++l) {
      if (spec().layers[l].linear)
        state = worse(state, excess(relative_error(cold.responses[0].state_before_question[l],
                                                   composed_state(spec(), table, inputs, l)),
                                    tolerance(open_.backend().compute_dtype())));  // a fast kernel multiplies in it
      if (spec().layers[l].attention)
        attention = worse(attention,
                          excess(relative_error(last_chain_rows(table, inputs.get(l, "attention.o")),
                                                replayed_attention(spec(), table, inputs, l)),
                                 tolerance(open_.backend().compute_dtype())));
    }
    if (spec().linear_layers() > 0)
      values.emplace_back("composed", state);
    else
      values.emplace_back(kAbsent, NAN);
    if (spec().attention_layers() > 0)
      values.emplace_back("attention", attention);
    else
      values.emplace_back(kAbsent, NAN);
    if (mode.compose == Compose::transfer && mode.rotate == Rotate::on &&
        (!spec().layers[0].linear || mode.head >= spec().linear.conv_width - 1))
      values.emplace_back("first_layer", first_layer(table, inputs));
    else
      values.emplace_back(kAbsent, NAN);
    return values;
  }

  // The residual stream of the question's rows after layer 0, whose inputs are the embeddings alone.
  double first_layer(const ChainTable& table, const InputRecorder& inputs) {
    Engine engine(model_, options_);
    InputRecorder full(open_.backend());
    const RunResult run = engine.run({{prompt_, 1}}, mode_named("full"), {.tap = &full});
    const auto question = [&](const ChainTable& t, const InputRecorder& recorded) {
      const std::vector<double> rows = last_chain_rows(t, recorded.get(0, "residual"));
      return std::vector<double>(rows.end() - static_cast<std::ptrdiff_t>(prompt_.back().size()) * spec().hidden,
                                 rows.end());
    };
    return excess(relative_error(question(table, inputs), question(run.tables[0], full)),
                  layer_tolerance(open_.backend(), spec(), 0));
  }

  const Settings& settings_;
  const ProgressFn& progress_;
  const OpenModel open_;
  const Model& model_;
  Prompt prompt_;
  EngineOptions options_{.max_rows = 1};
};

}  // namespace

Work prepare(const SuiteCase& suite_case, const std::string& where, const DriverContext& context, const Faults& faults) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  Settings settings;
  settings.faults = faults;
  settings.choice = read_model_choice(parameters, context, Ranks::several);
  std::vector<std::string> all;
  for (const Mode& mode : modes())
    if (mode.reuse == Reuse::segments) all.push_back(mode.name);
  for (const std::string& name : parameters.texts("modes", all)) {
    settings.modes.push_back(mode_named(name));
    require(settings.modes.back().reuse == Reuse::segments, where, ".parameters.modes: ", name, " reuses no segments");
  }
  settings.lengths = parameters.integers("lengths", {12, 70, 33, 40, 9}, 1, 1 << 16);
  require(settings.lengths.size() >= 3 && settings.lengths.size() <= 8, where,
          ".parameters.lengths: two to seven segments and a question are asked for");
  parameters.refuse_others();
  return [settings](const ProgressFn& progress) { return LawRun(settings, progress).run(); };
}

}  // namespace reuse_laws

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tensor_parallel (1), devices, modes (all that reuse segments), lengths ([12, 70, 33,
// 40, 9]), tokens of each segment, the question last.
// Values by mode, in units of what is allowed: again, chunked, partly, moved, beside (logits), composed (states), attention
// (outputs), first_layer (where it must hold).
Work prepare_reuse_laws(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  return reuse_laws::prepare(suite_case, where, context, {});
}

}  // namespace hypic
