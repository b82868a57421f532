#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "harness/assets.h"
#include "harness/backends.h"
#include "harness/measure/distance.h"
#include "harness/measure/reference_logits.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

Result run(const std::string& folder, const std::string& backend_name, const ProgressFn& progress) {
  std::vector<std::string> models;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory()) models.push_back(entry.path());
  std::sort(models.begin(), models.end());
  Result result;
  result.verdict = Verdict::pass;
  Table table{"Logits of small checkpoints against the implementation that wrote them",
              {"model", "model type", "family", "layers", "tensors", "parameters", "references",
               "largest difference", "bound", "reference's bfloat16 noise", "top-1 agreement"},
              {}};
  double done = 0;
  for (const std::string& path : models) {
    const std::string name = fs::path(path).filename();
    progress(done++ / static_cast<double>(models.size()), name);
    const auto backend = make_backend(backend_name);
    const ReferenceLogits reference = load_reference_logits(path + "/golden.safetensors");
    if (!can_judge(*backend, reference)) continue;
    const Model model = Model::open(*backend, path);
    const auto all = compare_logits(model, path, reference, [](double) {});
    LogitDifference worst = all.front();
    double most = 0, same = 0;
    for (const LogitDifference& d : all) {
      if (d.difference >= worst.difference) worst = d;
      if (!d.rerouted) most = worse(most, excess(d.difference, d.bound));
      same += d.same_top1;
    }
    result.values.push_back({"difference." + name, worst.difference, "logits"});
    result.values.push_back({"excess." + name, most, "bounds"});
    const ModelSpec& spec = model.spec();
    table.rows.push_back({name, spec.model_type, std::string(traits(spec.linear.family).name),
                          Cell(spec.layer_count()), Cell(tensor_specs(spec).size()), Cell(parameter_count(spec)),
                          Cell(all.size()), Cell(worst.difference, Format::scientific),
                          Cell(worst.bound, Format::scientific),
                          reference.bfloat16_noise > 0 ? Cell(reference.bfloat16_noise, Format::scientific) : Cell("–"),
                          str(same, " of ", all.size())});
  }
  result.tables = {std::move(table)};
  result.note = str("On ", backend_name, ", from ", folder, ".");
  return result;
}

}  // namespace

// Parameters: folder (models/testdata/transformers), of folders with a model and golden.safetensors; backend
// (cpu).
// Values by model: difference, the largest; excess, in units of what is allowed.
Work prepare_goldens(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  const std::string folder = asset(parameters.text("folder", "models/testdata/transformers"));
  const std::string in_suite = parameters.text("backend", "cpu");
  const std::string backend = context.backend.empty() ? in_suite : context.backend;
  parameters.refuse_others();
  require_backend(backend, context);
  require(context.model.empty(), where, ": the goldens driver has models of its own and takes no --model");
  std::error_code error;
  require(fs::is_directory(folder, error), where, ": ", folder, ": no such folder");
  return [folder, backend](const ProgressFn& progress) { return run(folder, backend, progress); };
}

}  // namespace hypic
