#include "models/spec.h"

#include <algorithm>

#include "core/check.h"
#include "core/json.h"
#include "models/architecture.h"

namespace hypic {
namespace {

constexpr std::string_view kTiny = "-tiny";

// The one list of architectures.
const std::vector<const Architecture*>& architectures() {
  static const std::vector<const Architecture*> all = {
      &qwen3_5(), &qwen3_5_moe(), &qwen3_next(), &bailing_moe_linear(), &kimi_linear(),
      &minimax(), &nemotron_h(),  &granitemoehybrid(), &falcon_h1(), &olmo_hybrid()};
  return all;
}

const Architecture* architecture_of(std::string_view model_type) {
  for (const Architecture* one : architectures())
    for (const std::string_view type : one->model_types)
      if (type == model_type) return one;
  return nullptr;
}

const Architecture& architecture_of(const ModelSpec& spec) {
  const Architecture* found = architecture_of(spec.model_type);
  HYPIC_CHECK(found, "model type \"", spec.model_type, "\"");
  return *found;
}

// Python writes Infinity bare, which is no JSON: as transformers' newer releases write it.
std::string with_infinity_as_object(const std::string& text) {
  constexpr std::string_view kBare = "Infinity", kObject = "{\"__float__\": \"Infinity\"}";
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\' && i + 1 < text.size()) {  // whatever is escaped
      out += text[i++];
      out += text[i];
    } else if (!quoted && text.compare(i, kBare.size(), kBare) == 0) {
      out += kObject;
      i += kBare.size() - 1;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += str(text.empty() ? "" : ", ", name);
  return text;
}

}  // namespace

int ModelSpec::linear_layers() const {
  return static_cast<int>(std::count_if(layers.begin(), layers.end(), [](const Layer& l) { return l.linear; }));
}

int ModelSpec::attention_layers() const {
  return static_cast<int>(
      std::count_if(layers.begin(), layers.end(), [](const Layer& l) { return l.attention; }));
}

int64_t TensorSpec::size() const {
  int64_t size = 1;
  for (const int64_t n : shape) size *= n;
  return size;
}

std::vector<TensorSpec> tensor_specs(const ModelSpec& spec) {
  return architecture_of(spec).tensors(spec);
}

CheckpointNames checkpoint_names(const ModelSpec& spec) { return architecture_of(spec).names; }

int64_t parameter_count(const ModelSpec& spec) {
  int64_t total = 0;
  for (const TensorSpec& tensor : tensor_specs(spec)) total += tensor.size();
  return total;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Architecture* one : architectures())
    for (const NamedConfig& named : one->named()) names.push_back(named.name);
  return names;
}

ModelSpec spec_named(std::string_view name) {
  for (const Architecture* one : architectures()) {
    const std::vector<NamedConfig> all = one->named();
    for (const NamedConfig& named : all) {
      // The tiny one, listed first, stands for every size of its architecture.
      const bool tiny = name == named.name + std::string(kTiny) && &named != &all.front();
      if (name != named.name && !tiny) continue;
      ModelSpec spec = spec_from_config((tiny ? all.front() : named).config.dump(2), std::string(name));
      spec.name = name;
      return spec;
    }
  }
  fail("unknown model \"", name, "\"; known: ", list_of(model_names()));
}

std::vector<std::string> model_types() {
  std::vector<std::string> types;
  for (const Architecture* one : architectures())
    types.insert(types.end(), one->model_types.begin(), one->model_types.end());
  return types;
}

ModelSpec spec_from_config(const std::string& text, const std::string& where) {
  nlohmann::json json = parse_json(with_infinity_as_object(text), where);
  require(json.is_object(), where, ": not a JSON object");
  // Multimodal checkpoints nest the language model, and may tie its embeddings at the top only.
  if (json.contains("text_config") && json["text_config"].is_object()) {
    nlohmann::json nested = json["text_config"];
    if (!nested.contains("tie_word_embeddings") && json.contains("tie_word_embeddings"))
      nested["tie_word_embeddings"] = json["tie_word_embeddings"];
    json = std::move(nested);
  }
  const auto type = json.find("model_type");
  require(type != json.end() && type->is_string(), where, ": no model_type");
  const std::string model_type = *type;
  const Architecture* found = architecture_of(model_type);
  require(found != nullptr, where, ": model type \"", model_type, "\" is not supported; supported: ",
          list_of(model_types()));
  ModelSpec spec = found->spec(Config(json, where));
  // Bounds what tensor_specs lists, of a config that nobody trusts.
  constexpr int64_t kMaxExperts = 1 << 20, kMaxChannels = 1 << 24;
  const int64_t layers = spec.layer_count();
  require(layers * spec.moe.experts <= kMaxExperts, where, ": ", layers, " layers of ", spec.moe.experts,
          " experts are more than ", kMaxExperts, " in all");
  require(layers * spec.linear.conv_channels() <= kMaxChannels, where, ": ", layers, " layers of ",
          spec.linear.conv_channels(), " linear-attention channels are more than ", kMaxChannels, " in all");
  spec.model_type = found->model_types.front();
  spec.config = text;
  require(spec.linear.rotary_dim == 0 || traits(spec.linear.family).relocatable, where, ": ",
          traits(spec.linear.family).name,
          " with rotated keys is refused: a cached segment's state could not be moved");
  return spec;
}

}  // namespace hypic
