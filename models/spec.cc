#include "models/spec.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"
#include "models/qwen3_5.h"

namespace hypic {

std::vector<TensorSpec> tensor_specs(const ModelSpec& spec) { return qwen3_5_tensors(spec); }

int64_t parameter_count(const ModelSpec& spec) {
  int64_t total = 0;
  for (const TensorSpec& tensor : tensor_specs(spec)) {
    int64_t size = 1;
    for (const int64_t n : tensor.shape) size *= n;
    total += size;
  }
  return total;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelSpec& spec : qwen3_5_specs()) names.push_back(spec.name);
  return names;
}

ModelSpec spec_named(std::string_view name) {
  std::string known;
  for (const ModelSpec& spec : qwen3_5_specs()) {
    if (spec.name == name) return spec;
    known += str(known.empty() ? "" : ", ", spec.name);
  }
  fail("unknown model \"", name, "\"; known: ", known);
}

ModelSpec spec_from_config(const std::string& config, const std::string& where) {
  const nlohmann::json json = parse_json(config, where);
  require(json.is_object(), where, ": not a JSON object");
  // Multimodal checkpoints nest the language model.
  const nlohmann::json& text =
      json.contains("text_config") && json["text_config"].is_object() ? json["text_config"] : json;
  const auto type = text.find("model_type");
  require(type != text.end() && type->is_string(), where, ": no model_type");
  const std::string model_type = *type;
  require(model_type == "qwen3_5_text" || model_type == "qwen3_5", where, ": model type \"",
          model_type, "\" is not supported; supported: qwen3_5_text");
  ModelSpec spec = qwen3_5_from_config(text, where);
  // A multimodal config may tie its embeddings at the top only.
  const auto tied = json.find("tie_word_embeddings");
  if (!text.contains("tie_word_embeddings") && tied != json.end() && tied->is_boolean())
    spec.tied = *tied;
  return spec;
}

}  // namespace hypic
