#include <memory>

#include "core/check.h"
#include "harness/assets.h"
#include "harness/measure/reference_logits.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"

namespace hypic {
namespace {

// `reference` is null where none was named.
Result run(const ModelChoice& choice, const ReferenceLogits* reference, const ProgressFn& progress) {
  Result result;
  if (!reference) {
    result.verdict = Verdict::skip;
    result.why = "no reference logits: name them by --logits";
    return result;
  }
  const OpenModel open(choice);
  const Model& model = open.model();
  if (!can_judge(open.backend(), *reference)) {
    result.verdict = Verdict::skip;
    result.why = str(reference->path, ": has no bfloat16.N, the reference's own bfloat16 logits, to tell how far backend ",
                     choice.backend, " may be off");
    return result;
  }
  result.verdict = Verdict::pass;
  Table table{"Logits against the reference",
              {"reference", "tokens", "rms", "largest difference", "bound", "KL (nats)", "top-1", "experts"},
              {}};
  for (const LogitDifference& d :
       compare_logits(model, choice.model, *reference, [&](double share) { progress(share, choice.model); })) {
    result.values.push_back({"difference." + d.name, d.difference, "logits"});
    if (d.rerouted)
      result.values.push_back({"rerouted." + d.name, 1, ""});
    else
      result.values.push_back({"excess." + d.name, excess(d.difference, d.bound), "bounds"});
    table.rows.push_back({d.name, Cell(d.length), Cell(d.rms), Cell(d.difference, Format::scientific),
                          Cell(d.bound, Format::scientific), Cell(d.kl, Format::scientific),
                          d.same_top1 ? "same" : "other", d.rerouted ? "other" : "same"});
  }
  result.tables = {std::move(table)};
  result.note = str(model.spec().name, " on ", choice.on(), " against ", reference->path,
                    ". Experts, of differences beyond the bound: whether some row went to others than in float64, where "
                    "scores nearly tie; such a difference is not judged here, but by the driver layers.");
  return result;
}

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tensor_parallel (1), devices, logits (none), replaced by --logits. SKIP without.
// Values by tensor of the reference: difference, and excess, the same in units of what is allowed.
Work prepare_logits(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  const ModelChoice choice = read_model_choice(parameters, context, Ranks::several);
  const std::string in_suite = parameters.text("logits", "");
  const std::string path = context.logits.empty() && !in_suite.empty() ? asset(in_suite) : context.logits;
  parameters.refuse_others();
  std::shared_ptr<const ReferenceLogits> reference;
  if (!path.empty()) reference = std::make_shared<ReferenceLogits>(load_reference_logits(path));
  return [choice, reference](const ProgressFn& progress) { return run(choice, reference.get(), progress); };
}

}  // namespace hypic
