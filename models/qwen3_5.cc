#include "models/qwen3_5.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"

namespace hypic {
namespace {

using nlohmann::json;

constexpr int kInterval = 4;  // every fourth layer is full attention

std::vector<LayerKind> layers_by_interval(int count, int interval) {
  std::vector<LayerKind> layers;
  for (int l = 0; l < count; ++l)
    layers.push_back((l + 1) % interval == 0 ? LayerKind::attention : LayerKind::linear);
  return layers;
}

struct Sizes {
  const char* name;
  int layers, hidden, q_heads, kv_heads, value_heads, ffn;
  bool tied;
};

constexpr Sizes kPublished[] = {
    {"qwen3.5-0.8b", 24, 1024, 8, 2, 16, 3584, true},
    {"qwen3.5-2b", 24, 2048, 8, 2, 16, 6144, true},
    {"qwen3.5-4b", 32, 2560, 16, 4, 32, 9216, true},
    {"qwen3.5-9b", 32, 4096, 16, 4, 32, 12288, false},
    {"qwen3.5-27b", 64, 5120, 24, 4, 48, 17408, false},
};


// An integer of the config in [low, high].
int integer(const json& config, const char* key, int low, int high, const std::string& where) {
  const auto value = config.find(key);
  require(value != config.end(), where, ": key ", key, " is missing");
  require(value->is_number_integer(), where, ": ", key, " must be an integer, is ", shown(*value));
  const int64_t n = *value;
  require(low <= n && n <= high, where, ": ", key, " = ", n, " is outside ", low, " … ", high);
  return static_cast<int>(n);
}

double number(const json& config, const char* key, double fallback, const std::string& where) {
  const auto value = config.find(key);
  if (value == config.end() || value->is_null()) return fallback;
  require(value->is_number(), where, ": ", key, " must be a number, is ", shown(*value));
  return *value;
}

bool flag(const json& config, const char* key, bool fallback, const std::string& where) {
  const auto value = config.find(key);
  if (value == config.end() || value->is_null()) return fallback;
  require(value->is_boolean(), where, ": ", key, " must be true or false, is ", shown(*value));
  return *value;
}

std::string text(const json& config, const char* key, const char* fallback,
                 const std::string& where) {
  const auto value = config.find(key);
  if (value == config.end() || value->is_null()) return fallback;
  require(value->is_string(), where, ": ", key, " must be a string, is ", shown(*value));
  return *value;
}

std::vector<LayerKind> layer_kinds(const json& config, int count, const std::string& where) {
  const auto types = config.find("layer_types");
  if (types == config.end() || types->is_null())
    return layers_by_interval(count,
                              config.contains("full_attention_interval")
                                  ? integer(config, "full_attention_interval", 1, 1024, where)
                                  : kInterval);
  require(types->is_array() && static_cast<int>(types->size()) == count, where,
          ": layer_types must list num_hidden_layers = ", count, " layers");
  std::vector<LayerKind> layers;
  for (const json& type : *types) {
    const std::string name = type.is_string() ? type.get<std::string>() : shown(type);
    const bool linear = name == "linear_attention" || name == "mamba";
    require(linear || name == "full_attention" || name == "attention", where, ": layer type \"",
            name, "\" is not supported (linear_attention and full_attention are)");
    layers.push_back(linear ? LayerKind::linear : LayerKind::attention);
  }
  return layers;
}

}  // namespace

std::vector<ModelSpec> qwen3_5_specs() {
  std::vector<ModelSpec> specs;
  ModelSpec base;
  base.model_type = "qwen3_5_text";
  base.max_positions = 262144;
  {
    ModelSpec tiny = base;
    tiny.name = "qwen3.5-tiny";
    tiny.vocabulary = 2048;
    tiny.hidden = 128;
    tiny.ffn = 256;
    tiny.layers = layers_by_interval(8, kInterval);
    tiny.attention = {4, 2, 32, 16, 1e7, true};
    tiny.linear = {Family::gated_delta_net, 2, 4, 64, 32, 4, Activation::silu};
    specs.push_back(tiny);
  }
  for (const Sizes& sizes : kPublished) {
    ModelSpec spec = base;
    spec.name = sizes.name;
    spec.vocabulary = 248320;
    spec.hidden = sizes.hidden;
    spec.ffn = sizes.ffn;
    spec.tied = sizes.tied;
    spec.layers = layers_by_interval(sizes.layers, kInterval);
    spec.attention = {sizes.q_heads, sizes.kv_heads, 256, 64, 1e7, true};
    spec.linear = {Family::gated_delta_net, 16, sizes.value_heads, 128, 128, 4, Activation::silu};
    specs.push_back(spec);
  }
  return specs;
}

ModelSpec qwen3_5_from_config(const json& config, const std::string& where) {
  const auto integer_of = [&](const char* key, int high) {
    return integer(config, key, 1, high, where);
  };
  ModelSpec spec;
  spec.model_type = "qwen3_5_text";
  spec.vocabulary = integer_of("vocab_size", 1 << 24);
  spec.hidden = integer_of("hidden_size", 1 << 17);
  spec.ffn = integer_of("intermediate_size", 1 << 20);
  spec.norm_eps = number(config, "rms_norm_eps", 1e-6, where);
  require(spec.norm_eps > 0 && spec.norm_eps < 1, where, ": rms_norm_eps = ", spec.norm_eps,
          " is outside (0, 1)");
  spec.tied = flag(config, "tie_word_embeddings", false, where);
  spec.max_positions = config.contains("max_position_embeddings")
                           ? integer_of("max_position_embeddings", 1 << 28)
                           : 262144;
  spec.layers = layer_kinds(config, integer_of("num_hidden_layers", 1024), where);

  AttentionSpec& attention = spec.attention;
  attention.q_heads = integer_of("num_attention_heads", 1024);
  attention.kv_heads = integer_of("num_key_value_heads", 1024);
  attention.head_dim = integer_of("head_dim", 4096);
  attention.output_gate = flag(config, "attn_output_gate", true, where);
  require(attention.q_heads % attention.kv_heads == 0, where,
          ": num_attention_heads = ", attention.q_heads,
          " is no multiple of num_key_value_heads = ", attention.kv_heads);
  require(!flag(config, "attention_bias", false, where), where,
          ": attention_bias is not supported");

  const json none = json::object();
  const auto object = [&](const char* key) -> const json& {
    const auto value = config.find(key);
    if (value == config.end() || value->is_null()) return none;
    require(value->is_object(), where, ": ", key, " must be an object, is ", shown(*value));
    return *value;
  };
  const json& rope = object("rope_parameters");
  for (const json* scaling : {&rope, &object("rope_scaling")})
    for (const char* key : {"rope_type", "type"}) {  // "type" in older files
      const std::string type = text(*scaling, key, "default", where);
      require(type == "default" || type == "mrope", where, ": RoPE type \"", type,
              "\" is refused: its frequencies may depend on the length, so cached segments cannot "
              "be moved");
    }
  attention.rope_theta =
      number(rope, "rope_theta", number(config, "rope_theta", 1e7, where), where);
  const double part = number(rope, "partial_rotary_factor",
                             number(config, "partial_rotary_factor", 0.25, where), where);
  require(attention.rope_theta > 1 && part > 0 && part <= 1, where,
          ": rope_theta must exceed 1 and partial_rotary_factor lie in (0, 1]");
  attention.rotary_dim = static_cast<int>(attention.head_dim * part);
  require(attention.rotary_dim % 2 == 0, where, ": ", attention.rotary_dim,
          " rotary dims are not even");

  LinearSpec& linear = spec.linear;
  linear.family = Family::gated_delta_net;
  linear.key_heads = integer_of("linear_num_key_heads", 1024);
  linear.value_heads = integer_of("linear_num_value_heads", 1024);
  linear.key_dim = integer_of("linear_key_head_dim", 1024);
  linear.value_dim = integer_of("linear_value_head_dim", 1024);
  linear.conv_width = integer_of("linear_conv_kernel_dim", 64);
  require(linear.value_heads % linear.key_heads == 0, where,
          ": linear_num_value_heads = ", linear.value_heads,
          " is no multiple of linear_num_key_heads = ", linear.key_heads);
  const std::string gate = text(config, "output_gate_type", "swish", where);
  require(gate == "swish" || gate == "silu" || gate == "sigmoid", where, ": output_gate_type \"",
          gate, "\" is not supported (swish, sigmoid are)");
  linear.gate = gate == "sigmoid" ? Activation::sigmoid : Activation::silu;
  const std::string activation = text(config, "hidden_act", "silu", where);
  require(activation == "silu", where, ": hidden_act \"", activation,
          "\" is not supported (silu is)");
  return spec;
}

std::vector<TensorSpec> qwen3_5_tensors(const ModelSpec& spec) {
  const int64_t H = spec.hidden;
  std::vector<TensorSpec> tensors;
  const auto add = [&](std::string name, std::vector<int64_t> shape, Init init,
                       Split split = Split::none) {
    tensors.push_back({std::move(name), std::move(shape), init, split});
  };
  add("embed_tokens.weight", {spec.vocabulary, H}, Init::embedding, Split::rows);
  for (int l = 0; l < spec.layer_count(); ++l) {
    const std::string layer = str("layers.", l, ".");
    add(layer + "input_layernorm.weight", {H}, Init::norm_offset);
    if (spec.layers[l] == LayerKind::linear) {
      const LinearSpec& a = spec.linear;
      const std::string at = layer + "linear_attn.";
      const int64_t values = a.value_heads * a.value_dim;
      add(at + "in_proj_qkv.weight", {a.conv_channels(), H}, Init::matrix, Split::rows);
      add(at + "in_proj_z.weight", {values, H}, Init::matrix, Split::rows);
      add(at + "in_proj_b.weight", {a.value_heads, H}, Init::matrix, Split::rows);
      add(at + "in_proj_a.weight", {a.value_heads, H}, Init::gate_matrix, Split::rows);
      add(at + "conv1d.weight", {a.conv_channels(), 1, a.conv_width}, Init::matrix, Split::rows);
      add(at + "dt_bias", {a.value_heads}, Init::dt_bias, Split::rows);
      add(at + "A_log", {a.value_heads}, Init::A_log, Split::rows);
      add(at + "norm.weight", {a.value_dim}, Init::norm);
      add(at + "out_proj.weight", {H, values}, Init::output_matrix, Split::columns);
    } else {
      const AttentionSpec& a = spec.attention;
      const std::string at = layer + "self_attn.";
      const int64_t q = a.q_heads * a.head_dim, kv = a.kv_heads * a.head_dim;
      add(at + "q_proj.weight", {a.output_gate ? 2 * q : q, H}, Init::matrix, Split::rows);
      add(at + "k_proj.weight", {kv, H}, Init::matrix, Split::rows);
      add(at + "v_proj.weight", {kv, H}, Init::matrix, Split::rows);
      add(at + "o_proj.weight", {H, q}, Init::output_matrix, Split::columns);
      add(at + "q_norm.weight", {a.head_dim}, Init::norm_offset);
      add(at + "k_norm.weight", {a.head_dim}, Init::norm_offset);
    }
    add(layer + "post_attention_layernorm.weight", {H}, Init::norm_offset);
    add(layer + "mlp.gate_proj.weight", {spec.ffn, H}, Init::matrix, Split::rows);
    add(layer + "mlp.up_proj.weight", {spec.ffn, H}, Init::matrix, Split::rows);
    add(layer + "mlp.down_proj.weight", {H, spec.ffn}, Init::output_matrix, Split::columns);
  }
  add("norm.weight", {H}, Init::norm_offset);
  if (!spec.tied) add("lm_head.weight", {spec.vocabulary, H}, Init::matrix, Split::rows);
  return tensors;
}

}  // namespace hypic
