#include <map>

#include "core/check.h"
#include "harness/measure/prompts.h"
#include "harness/model_choice.h"
#include "models/end_tokens.h"

namespace hypic {
namespace {

// "attention", "linear", "moe", "ffn"; everything outside layers and the layers' own norms apart.
std::string part_of(const std::string& name) {
  const size_t dot = name.find('.', std::string_view("layers.").size());
  if (!name.starts_with("layers.")) return name == "norm" ? "norms" : name;
  const std::string rest = name.substr(dot + 1);
  return rest.find('.') == rest.npos ? "norms" : rest.substr(0, rest.find('.'));
}

Result run(const ModelChoice& choice) {
  Result result;
  try {
    const OpenModel open(choice);
    const Model& model = open.model();
    const ModelSpec& spec = model.spec();
    end_tokens(choice.model, spec.vocabulary);
    if (has_tokenizer(choice.model)) {
      const int ids = tokenizer_for(choice.model).vocab_size();
      require(ids <= spec.vocabulary, choice.model, ": its tokenizer has ids up to ", ids - 1,
              ", outside the vocabulary of ", spec.vocabulary, "; it does not belong to the model");
    }
    const std::vector<TensorSpec> tensors = tensor_specs(spec);
    struct Sum {
      int64_t tensors = 0, parameters = 0;
    };
    std::map<std::string, Sum> parts;
    int64_t parameters = 0;
    for (const TensorSpec& tensor : tensors) {
      Sum& sum = parts[part_of(tensor.name)];
      ++sum.tensors;
      sum.parameters += tensor.size();
      parameters += tensor.size();
    }
    result.verdict = Verdict::pass;
    result.values = {{"stored_tensors", static_cast<double>(model.stored_tensors()), "tensors"},
                     {"unread_keys", static_cast<double>(spec.unread.size()), "keys"},
                     {"tensors", static_cast<double>(tensors.size()), "tensors"},
                     {"parameters", static_cast<double>(parameters), "parameters"},
                     {"layers.all", static_cast<double>(spec.layer_count()), "layers"},
                     {"layers.linear", static_cast<double>(spec.linear_layers()), "layers"},
                     {"layers.attention", static_cast<double>(spec.attention_layers()), "layers"}};
    Table table{"Tensors, each accounted for", {"part", "tensors", "parameters"}, {}};
    for (const auto& [part, sum] : parts) table.rows.push_back({part, Cell(sum.tensors), Cell(sum.parameters)});
    table.rows.push_back({"all", Cell(tensors.size()), Cell(parameters)});
    result.tables = {std::move(table)};
    std::string unread;
    for (const std::string& key : spec.unread) unread += str(unread.empty() ? "" : ", ", key);
    if (!unread.empty()) result.why = "not read in config.json: " + unread;
    result.note = str(spec.name, ", model type ", spec.model_type, ", ", traits(spec.linear.family).name, ", on ",
                      choice.on(), ". ",
                      model.stored_tensors() > 0 ? str("The checkpoint's ", model.stored_tensors(),
                                                       " tensors make the ", tensors.size(), " of the table. ")
                                                 : "",
                      unread.empty() ? "Every key of config.json was read or is known to change nothing."
                                     : "Keys of config.json that were not read: " + unread + ".");
  } catch (const OutOfMemory&) {  // of the machine
    throw;
  } catch (const MachineLacks&) {
    throw;
  } catch (const Error& error) {  // of the model: what this case is about
    result.verdict = Verdict::fail;
    result.why = error.what();
  }
  return result;
}

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tensor_parallel (1), devices.
// Values: stored_tensors (of the checkpoint), tensors (of the model), unread_keys (of config.json), parameters, layers.{all, linear, attention}. A model that cannot be loaded is a FAIL.
Work prepare_load(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  const ModelChoice choice = read_model_choice(parameters, context, Ranks::several);
  parameters.refuse_others();
  return [choice](const ProgressFn& progress) {
    progress(0, choice.model);
    return run(choice);
  };
}

}  // namespace hypic
