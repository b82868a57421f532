#include "models/spec.h"

#include <algorithm>

#include "core/check.h"
#include "core/json.h"
#include "models/architecture.h"
#include "models/tensor_parallel.h"

namespace hypic {
namespace {

constexpr std::string_view kTiny = "-tiny";

// Keys that change nothing in a forward of a text model.
constexpr const char* kNoEffect[] = {
    "model_type", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range",
    "bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout", "hidden_dropout", "router_aux_loss_coef",
    "output_router_logits", "_name_or_path", "auto_map", "block_size", "chunk_size", "mamba_chunk_size", "use_mamba_kernels",
    "router_jitter_noise", "mtp_num_hidden_layers", "num_logits_to_keep", "rescale_prenorm_residual",
    "mamba_ssm_dtype", "mamba_ssm_cache_dtype", "residual_in_fp32", "pretraining_tp", "mtp_layers_block_type",
    "linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max", "linear_dt_min",
    "moe_shared_expert_overlap", "expand", "mamba_expand", "time_step_floor", "time_step_max"};

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
  if (!spec.whole) return architecture_of(spec).tensors(spec);
  std::vector<TensorSpec> tensors = tensor_specs(*spec.whole);
  for (TensorSpec& tensor : tensors) cut(tensor, spec);
  return tensors;
}

std::vector<StackSpec> stack_specs(const ModelSpec& spec) {
  std::vector<StackSpec> stacks;
  for (int l = 0; l < spec.layer_count(); ++l) {
    const Layer& layer = spec.layers[l];
    const auto add = [&](const char* name, std::initializer_list<std::string_view> parts) {
      StackSpec& stack = stacks.emplace_back(StackSpec{str("layers.", l, ".", name), {}});
      for (const std::string_view part : parts)
        if (!part.empty()) stack.parts.push_back(str("layers.", l, ".", part));
    };
    const LinearSpec& a = spec.linear;
    if (layer.linear)
      add("linear.in", {"linear.qkv", a.gate_rank > 0 ? "linear.z_down" : "linear.z",
                     a.family == Family::lightning ? "" : a.decay_rank > 0 ? "linear.decay_down" : "linear.decay",
                     a.takes_beta() ? "linear.beta" : ""});
    if (layer.attention && spec.attention.latent()) add("attention.in", {"attention.q", "attention.latent"});
    if (layer.attention && !spec.attention.latent()) add("attention.in", {"attention.q", "attention.k", "attention.v"});
    if (layer.ffn == Ffn::dense) add("ffn.in", {"ffn.up", spec.ffn.gated ? "ffn.gate" : ""});
    if (layer.ffn == Ffn::moe && spec.moe.shared_inner > 0)
      add("moe.shared.in", {"moe.shared.up", spec.moe.gated ? "moe.shared.gate" : "",
                         spec.moe.shared_gate ? "moe.shared_gate" : ""});
  }
  return stacks;
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
  require(type != json.end() && type->is_string(), where, ": no model_type, which is to name the architecture");
  const std::string model_type = *type;
  const Architecture* found = architecture_of(model_type);
  require(found != nullptr, where, ": model type \"", model_type, "\" is not supported; supported: ",
          list_of(model_types()));
  const Config config(json, where);
  for (const char* key : kNoEffect) config.has(key);
  // In any architecture these would change what is computed.
  config.check(!config.has("sliding_window") || !config.flag("use_sliding_window", true),
               "sliding_window is not supported");
  if (config.has("quantization_config")) {
    const Config quantization = config.object("quantization_config");
    const std::vector<int> block = quantization.integers("weight_block_size");
    config.check(quantization.text("quant_method", "") == "fp8" && block == std::vector{128, 128},
                 "quantization_config is not supported; fp8 with weight_block_size [128, 128] is");
  }
  ModelSpec spec = found->spec(config);
  spec.later_layers = config.has("num_nextn_predict_layers") ? config.integer("num_nextn_predict_layers", 0, 1024) : 0;
  spec.unread = config.unread();
  // Bounds what tensor_specs lists, of a config that nobody trusts.
  constexpr int64_t kMaxExperts = 1 << 20, kMaxChannels = 1 << 24;
  const int64_t layers = spec.layer_count();
  require(layers * spec.moe.experts <= kMaxExperts, where, ": ", layers, " layers of ", spec.moe.experts,
          " experts are more than ", kMaxExperts, " in all");
  const AttentionSpec& a = spec.attention;
  const int64_t rows = int64_t{spec.linear.conv_channels()} + spec.ffn.inner + spec.moe.shared_inner +
                       int64_t{a.q_heads} * (a.nope_dim + a.value_dim);
  require(layers * rows <= kMaxChannels, where, ": ", layers, " layers of ", rows, " rows are more than ",
          kMaxChannels, " in all");
  spec.model_type = found->model_types.front();
  spec.config = text;
  require(spec.linear.rotary_dim == 0 || traits(spec.linear.family).relocatable, where, ": ",
          traits(spec.linear.family).name,
          " with rotated keys is refused: a cached segment's state could not be moved");
  return spec;
}

}  // namespace hypic
