#include "models/qwen3_5.h"

#include <algorithm>

#include "core/check.h"

namespace hypic {
namespace {

constexpr int kInterval = 4;  // every fourth layer is full attention

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = qwen_spec(config);
  spec.ffn.inner = config.size("intermediate_size");
  return spec;
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  return qwen_tensors(spec, add_qwen3_5_projections, [](TensorList& list, const ModelSpec& s, int l) {
    list.swiglu(str("layers.", l, ".ffn."), str("layers.", l, ".mlp."), s.hidden, s.ffn.inner);
  });
}

std::vector<NamedConfig> named() {
  struct Dense {
    QwenSizes sizes;
    int ffn;
    bool tied;
  };
  constexpr Dense kSizes[] = {
      {{"qwen3.5-0.8b", 24, 1024, 8, 2, 256, 16, 16, 128, 128}, 3584, true},
      {{"qwen3.5-2b", 24, 2048, 8, 2, 256, 16, 16, 128, 128}, 6144, true},
      {{"qwen3.5-4b", 32, 2560, 16, 4, 256, 16, 32, 128, 128}, 9216, true},
      {{"qwen3.5-9b", 32, 4096, 16, 4, 256, 16, 32, 128, 128}, 12288, false},
      {{"qwen3.5-27b", 64, 5120, 24, 4, 256, 16, 48, 128, 128}, 17408, false},
  };
  constexpr Dense kTiny = {{"qwen3.5-tiny", 8, 128, 4, 2, 32, 2, 4, 64, 32}, 256, false};
  std::vector<NamedConfig> all;
  const auto add = [&](const Dense& d, int vocabulary, double part) {
    nlohmann::json config = qwen_config(d.sizes, "qwen3_5_text", vocabulary);
    config["intermediate_size"] = d.ffn;
    config["tie_word_embeddings"] = d.tied;
    config["rope_parameters"]["partial_rotary_factor"] = part;
    all.push_back({d.sizes.name, config});
  };
  add(kTiny, 2048, 0.5);
  for (const Dense& d : kSizes) add(d, 248320, 0.25);
  return all;
}

}  // namespace

const Architecture& qwen3_5() {
  static const Architecture all = {{"qwen3_5_text", "qwen3_5"},
                                   spec_of,
                                   tensors_of,
                                   {{"model.", "model.language_model."}, {"model.visual.", "visual.", "mtp."}},
                                   named};
  return all;
}

ModelSpec qwen_spec(const Config& config) {
  ModelSpec spec = common_spec(config, 1e-6);
  spec.norm_plus_one = true;
  const int interval = config.size_or("full_attention_interval", kInterval, 1024);
  spec.layers = layers_of(config, config.size("num_hidden_layers", 1024), interval);

  AttentionSpec& attention = spec.attention;
  attention = attention_of(config, 256);
  attention.output_gate = config.flag("attn_output_gate", true);
  attention.qk_norm = QkNorm::heads;
  read_rope(config, 0.25, attention.head_dim, &attention.rotary_dim, &attention.rope_theta);

  spec.linear = gated_delta_net_spec(config, spec.norm_eps);
  const std::string gate = config.text("output_gate_type", "swish");
  config.check(gate == "swish" || gate == "silu" || gate == "sigmoid", "output_gate_type \"", gate,
               "\" is not supported (swish, sigmoid are)");
  spec.linear.gate = gate == "sigmoid" ? Activation::sigmoid : Activation::silu;
  config.expect_text("hidden_act", "silu");
  return spec;
}

void read_qwen_moe(const Config& config, ModelSpec* spec) {
  MoeSpec& moe = spec->moe;
  moe.experts = config.size("num_experts", 1 << 16);
  moe.active = config.size("num_experts_per_tok", moe.experts);
  moe.inner = config.size("moe_intermediate_size");
  moe.shared_inner = config.size("shared_expert_intermediate_size");
  moe.shared_gate = true;
  moe.renormalise = config.flag("norm_topk_prob", true);
  const int step = config.size_or("decoder_sparse_step", 1, 1024);
  const std::vector<int> dense = config.integers("mlp_only_layers");
  bool any_dense = false;
  for (int l = 0; l < spec->layer_count(); ++l) {
    const bool sparse = (l + 1) % step == 0 && std::find(dense.begin(), dense.end(), l) == dense.end();
    spec->layers[l].ffn = sparse ? Ffn::moe : Ffn::dense;
    any_dense |= !sparse;
  }
  if (any_dense)
    spec->ffn.inner = config.size("intermediate_size");
  else
    config.ignore({"intermediate_size"});
}

std::vector<TensorSpec> qwen_tensors(const ModelSpec& spec,
                                     void (*linear)(TensorList& list, const ModelSpec& spec,
                                                    const std::string& name, const std::string& stored),
                                     void (*ffn)(TensorList& list, const ModelSpec& spec, int layer)) {
  const int64_t H = spec.hidden;
  TensorList list;
  list.embedding(spec);
  for (int l = 0; l < spec.layer_count(); ++l) {
    const std::string layer = str("layers.", l, ".");
    list.add(layer + "norm", {H}, Init::norm_offset, Split::none, layer + "input_layernorm.weight");
    if (spec.layers[l].linear) {
      const LinearSpec& a = spec.linear;
      const std::string name = layer + "linear.", stored = layer + "linear_attn.";
      linear(list, spec, name, stored);
      list.add(name + "conv", {a.conv_channels(), a.conv_width}, Init::matrix, Split::qkv_rows,
               stored + "conv1d.weight", {a.conv_channels(), 1, a.conv_width});
      list.add(name + "dt_bias", {a.value_heads}, Init::dt_bias, Split::rows, stored + "dt_bias");
      list.add(name + "A_log", {a.value_heads}, Init::A_log, Split::rows, stored + "A_log");
      list.add(name + "norm", {a.value_dim}, Init::norm, Split::none, stored + "norm.weight");
      list.add(name + "out", {H, a.value_heads * a.value_dim}, Init::output_matrix, Split::columns,
               stored + "out_proj.weight");
    } else {
      const std::string name = layer + "attention.", stored = layer + "self_attn.";
      list.attention(name, stored, spec.attention, H);
      list.add(name + "q_norm", {spec.attention.head_dim}, Init::norm_offset, Split::none,
               stored + "q_norm.weight");
      list.add(name + "k_norm", {spec.attention.head_dim}, Init::norm_offset, Split::none,
               stored + "k_norm.weight");
    }
    list.add(layer + "ffn_norm", {H}, Init::norm_offset, Split::none,
             layer + "post_attention_layernorm.weight");
    ffn(list, spec, l);
  }
  return list.finish(spec);
}

void add_qwen3_5_projections(TensorList& list, const ModelSpec& spec, const std::string& name,
                             const std::string& stored) {
  const LinearSpec& a = spec.linear;
  const int64_t H = spec.hidden, heads = a.value_heads;
  list.add(name + "qkv", {a.conv_channels(), H}, Init::matrix, Split::qkv_rows, stored + "in_proj_qkv.weight");
  list.add(name + "z", {heads * a.value_dim, H}, Init::matrix, Split::rows, stored + "in_proj_z.weight");
  list.add(name + "beta", {heads, H}, Init::matrix, Split::rows, stored + "in_proj_b.weight");
  list.add(name + "decay", {heads, H}, Init::gate_matrix, Split::rows, stored + "in_proj_a.weight");
}

void add_qwen_moe(TensorList& list, const ModelSpec& spec, int l) {
  const int64_t H = spec.hidden;
  const MoeSpec& moe = spec.moe;
  const std::string name = str("layers.", l, ".moe."), stored = str("layers.", l, ".mlp.");
  list.add(name + "router", {moe.experts, H}, Init::router, Split::none, stored + "gate.weight");
  constexpr const char* kMatrices[] = {"gate_proj", "up_proj", "down_proj"};
  list.experts(name, stored + "experts.", moe, H, kMatrices);
  list.swiglu(name + "shared.", stored + "shared_expert.", H, moe.shared_inner);
  list.add(name + "shared_gate", {1, H}, Init::matrix, Split::none, stored + "shared_expert_gate.weight");
}

nlohmann::json qwen_config(const QwenSizes& s, const char* model_type, int vocabulary) {
  nlohmann::json config =
      common_config(model_type, {s.name, vocabulary, s.layers, s.hidden, s.q_heads, s.kv_heads, 262144}, 1e-6);
  config.update({{"full_attention_interval", kInterval},
                 {"head_dim", s.head_dim},
                 {"rope_parameters",
                  {{"rope_type", "default"}, {"rope_theta", 1e7}, {"partial_rotary_factor", 0.25}}},
                 {"linear_num_key_heads", s.key_heads},
                 {"linear_num_value_heads", s.value_heads},
                 {"linear_key_head_dim", s.key_dim},
                 {"linear_value_head_dim", s.value_dim},
                 {"linear_conv_kernel_dim", 4},
                 {"hidden_act", "silu"}});
  return config;
}

}  // namespace hypic
