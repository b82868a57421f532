#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/check.h"
#include "harness/driver.h"
#include "harness/measure/distance.h"
#include "harness/measure/replay.h"
#include "harness/measure/workload.h"
#include "harness/model_choice.h"
#include "reports/text.h"
#include "serving/engine.h"

namespace hypic {
namespace {

// What the recurrences of a forward start from; all that it offers of a large model would fill the host.
class RecurrenceInputs : public InputRecorder {
 public:
  RecurrenceInputs(Backend& backend, bool wanted) : InputRecorder(backend), wanted_(wanted) {}
  void see(const std::string& name, const Tensor& tensor) override {
    if (!wanted_) return;  // watches all the same: a watched forward rounds elsewhere
    for (const char* input : {".linear.k", ".linear.v", ".linear.g", ".linear.beta"})
      if (name.ends_with(input)) InputRecorder::see(name, tensor);
  }

 private:
  const bool wanted_;
};

using States = std::vector<std::vector<double>>;  // by layer; empty without a state

// Relative errors of states by layer, their largest and their mean.
struct Errors {
  double largest = 0, mean = 0;
};
Errors errors_of(const States& states, const States& from) {
  Errors e;
  int layers = 0;
  for (size_t l = 0; l < states.size(); ++l) {
    if (states[l].empty()) continue;
    const double error = relative_error(states[l], from[l]);
    e.largest = worse(e.largest, error);
    e.mean += error;
    ++layers;
  }
  if (layers > 0) e.mean /= layers;
  return e;
}

std::vector<ResidueFormat> all_formats() {
  std::vector<ResidueFormat> formats;
  for (uint8_t i = 0; name_of(static_cast<ResidueFormat>(i)) != "?"; ++i)
    formats.push_back(static_cast<ResidueFormat>(i));
  return formats;
}

class FormsRun {
 public:
  FormsRun(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
    Parameters parameters(suite_case.parameters, where + ".parameters");
    choice_ = read_model_choice(parameters, context);
    mode_ = mode_named(parameters.text("mode", "transition_rope_seam"));
    workload_.segments = parameters.integer("segments", 4, 1, 64);
    workload_.tokens = parameters.integer("tokens", 64, 1, 4096);
    workload_.question = parameters.integer("question", 16, 1, 4096);
    parameters.refuse_others();
    const ModelSpec spec = spec_of(choice_.model);
    require(spec.linear_layers() > 0, where, ".parameters.model: ", spec.name, " has no states");
    require(mode_.reuse == Reuse::segments && mode_.rotate != Rotate::built_at, where,
            ".parameters.mode: must reuse segments, and not where they were built, is ", mode_.name);
    require(workload_.tokens > mode_.head + mode_.tail, where, ".parameters.tokens: ", workload_.tokens,
            " are no more than the seams");
    prompt_ = cell_prompts(workload_, choice_.model, spec, "").prompts[0].segments;
  }

  Result run(const ProgressFn& progress) const {
    const Model& model = shelf_->open(choice_);
    Backend* const backend = &model.backend();
    const std::vector<ResidueFormat> formats = all_formats();
    std::vector<Form> forms;
    States recurrence, recomputed;
    for (const ResidueFormat format : formats) {
      progress(static_cast<double>(forms.size()) / static_cast<double>(formats.size()), std::string(name_of(format)));
      Engine engine(model, options_for(model, format));
      if (forms.empty())
        recomputed = engine.run({{prompt_, 1}}, mode_named("full"), {.keep_state = true})
                         .responses[0].state_before_question;
      // Every form of the very same residues: those of a cold run, which leaves the same bits each time.
      RecurrenceInputs inputs(*backend, forms.empty());
      const RunResult cold = engine.run({{prompt_, 1}}, mode_, {.tap = &inputs});
      HYPIC_CHECK(cold.tables.size() == 1);
      if (forms.empty())
        for (int l = 0; l < model.spec().layer_count(); ++l)
          recurrence.push_back(model.spec().layers[l].linear
                                   ? replayed_state(model.spec(), cold.tables[0], inputs, l)
                                   : std::vector<double>());
      while (engine.evict_one()) {
      }
      RunResult cached = engine.run({{prompt_, 1}}, mode_, {.keep_state = true});
      HYPIC_CHECK(cached.counters.isolated == 0 && cached.counters.jumps == workload_.segments,
                  "a residue did not come back from the host");
      Form& form = forms.emplace_back();
      form.name = name_of(format);
      const ResidueLayout layout(model.spec(), backend->compute_dtype(), backend->state_dtype(), format);
      form.bytes = layout.bytes(Part::op, workload_.tokens);
      form.kv = layout.bytes(Part::kv, workload_.tokens).total();
      form.response = std::move(cached.responses[0]);
      form.from_full = errors_of(form.states(), forms[0].states());
      form.from_recurrence = errors_of(form.states(), recurrence);
      form.from_recomputed = errors_of(form.states(), recomputed);
      form.kl = kl_divergence(forms[0].response.logits, form.response.logits);
      engine.flush();
      engine.check_integrity();
    }
    return report(model, forms);
  }

 private:
  struct Form {
    std::string name;
    ResidueBytes bytes;  // beside K, V
    int64_t kv = 0;
    Response response;
    Errors from_full, from_recurrence, from_recomputed;
    double kl = 0;
    const States& states() const { return response.state_before_question; }
  };

  EngineOptions options_for(const Model& model, ResidueFormat format) const {
    EngineOptions options;
    const int64_t n = workload_.segments, seams = mode_.head + mode_.tail;
    const int64_t rows = n * (workload_.tokens + seams) + workload_.question;
    options.max_rows = static_cast<int32_t>(rows);  // one forward, as the recurrence wants it
    PoolSizes& pools = options.pools;
    pools = {.state_slots = n + 3, .operator_slots = n, .pages = rows / pools.page_size + 2 * n + 4};
    const Backend& backend = model.backend();
    const ResidueLayout full(model.spec(), backend.compute_dtype(), backend.state_dtype(), ResidueFormat::full);
    options.cache.host_bytes = 2 * n * (full.bytes(Part::op, workload_.tokens).total() +
                                        full.bytes(Part::kv, workload_.tokens).total()) + (1 << 20);
    options.cache.format = format;
    return options;
  }

  Result report(const Model& model, const std::vector<Form>& forms) const {
    constexpr double kMiB = 1 << 20;
    Result result;
    result.verdict = Verdict::pass;
    Table bytes{"Bytes of a residue by owner, MiB",
                {"form", "T", "U", "log scale", "tails", "beside K, V", "K, V"},
                {}},
        errors{"State before the question, relative error by layer",
               {"form", "MiB", "from the full form, largest", "mean", "from the recurrence, largest", "mean",
                "× T16", "from full recompute, mean", "KL, nats"},
               {}};
    Chart chart{.title = "State error by form, and what it takes beside K, V",
                .y_label = "relative error, largest of all layers (log)",
                .log_y = true,
                .kind = ChartKind::dot,
                .series = {{"from the recurrence", {}, {}}, {"from the full form", {}, {}}}};
    const auto T16 =
        std::find_if(forms.begin(), forms.end(), [](const Form& f) { return f.name == name_of(ResidueFormat::T16); });
    for (const Form& form : forms) {
      const auto mib = [](int64_t n) { return static_cast<double>(n) / kMiB; };
      const double all = mib(form.bytes.total());
      const double times = form.from_recurrence.largest / T16->from_recurrence.largest;
      for (const auto& [tag, value, unit] :
           {std::tuple{"mib", all, "MiB"}, {"mib_kv", mib(form.kv), "MiB"},
            {"state", form.from_recurrence.largest, "relative"}, {"state_mean", form.from_recurrence.mean, "relative"},
            {"state_full_form", form.from_full.largest, "relative"},
            {"state_full_form_mean", form.from_full.mean, "relative"},
            {"state_recomputed", form.from_recomputed.mean, "relative"}, {"times_T16", times, "times"},
            {"kl", form.kl, "nats"}})
        result.values.push_back({str(tag, ".", form.name), value, unit});
      const auto fixed = [&](int64_t n) { return Cell(mib(n), Format::fixed, 2); };
      const auto error = [](double x) { return Cell(x, Format::scientific); };
      bytes.rows.push_back({form.name, fixed(form.bytes.T), fixed(form.bytes.U), fixed(form.bytes.log_scale),
                            fixed(form.bytes.tails), fixed(form.bytes.total()), fixed(form.kv)});
      errors.rows.push_back({form.name, Cell(all, Format::fixed, 2), error(form.from_full.largest),
                             error(form.from_full.mean), error(form.from_recurrence.largest),
                             error(form.from_recurrence.mean), Cell(times, Format::fixed, 3),
                             error(form.from_recomputed.mean), error(form.kl)});
    }
    std::vector<size_t> order(forms.size());  // by bytes
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return forms[a].bytes.total() < forms[b].bytes.total(); });
    for (const size_t i : order) {
      const double all = static_cast<double>(forms[i].bytes.total()) / kMiB;
      chart.categories.push_back(str(forms[i].name, ", ", format_number(all), " MiB"));
      chart.series[0].y.push_back(forms[i].from_recurrence.largest);
      chart.series[1].y.push_back(forms[i].from_full.largest);
    }
    result.tables = {std::move(bytes), std::move(errors)};
    result.charts = {std::move(chart)};
    result.note = str(model.spec().name, " on ", choice_.backend, ": ", workload_.segments, " segments of ",
                      workload_.tokens, " random tokens, mode ", mode_.name,
                      ". Each form: residues of the same cold run, evicted to host memory in that form and brought "
                      "back, then composed. Recurrence: float64, over the inputs that the residues were made from. "
                      "Full recompute: with the context that segments lack, the same for all forms. KL: of the first "
                      "token's distribution from that of the full form. K, V keep their form; pages are whole on the "
                      "device.");
    if (choice_.model.starts_with("random:")) result.note += " Weights are random.";
    return result;
  }

  const std::shared_ptr<ModelShelf> shelf_ = ModelShelf::shared();
  ModelChoice choice_;
  Mode mode_;
  Workload workload_;
  std::vector<Tokens> prompt_;
};

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), mode (transition_rope_seam), segments (4), tokens (64, of
// each), question (16). Values by form, full, T16 and compact: mib (of a residue beside its K, V), mib_kv;
// relative errors of the state before the question, the largest of all layers: state and state_mean from a float64
// recurrence, times_T16 the first over that of T16, state_full_form and _mean from the form full,
// state_recomputed the mean from full recompute; kl (nats, from the form full).
Work prepare_residue_forms(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  const auto run = std::make_shared<const FormsRun>(suite_case, where, context);
  return [run](const ProgressFn& progress) { return run->run(progress); };
}

}  // namespace hypic
