// OLMo-Hybrid: gated DeltaNet layers with beta up to 2, normed before, and every fourth layer attention of
// many heads, normed after.
#include "core/check.h"
#include "models/architecture.h"

namespace hypic {
namespace {

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = common_spec(config, 1e-6);
  spec.layers = layers_of(config, config.size("num_hidden_layers", 1024), 4);
  for (Layer& layer : spec.layers)
    if (layer.attention) layer.residual = Residual::post_norm;
  config.expect_text("hidden_act", "silu");

  AttentionSpec& attention = spec.attention;
  attention = attention_of(config, head_dim_by_heads(config));
  attention.qk_norm = QkNorm::all_heads;
  if (config.has("rope_parameters") || config.has("rope_theta") || config.has("rope_scaling"))
    read_rope(config, {}, attention.head_dim, &attention.rotary_dim, &attention.rope_theta);

  spec.linear = gated_delta_net_spec(config, 1e-5);  // not the config's eps
  spec.linear.beta_scale = config.flag("linear_allow_neg_eigval", true) ? 2 : 1;
  spec.ffn.inner = config.size("intermediate_size");
  return spec;
}

void add_linear(TensorList& list, const ModelSpec& spec, const std::string& name, const std::string& stored) {
  const LinearSpec& a = spec.linear;
  const int64_t H = spec.hidden, keys = a.key_heads * a.key_dim, values = a.value_heads * a.value_dim,
                W = a.conv_width, C = a.conv_channels();
  list.make(name + "qkv", {C, H}, Init::matrix, Split::qkv_rows,
            {{stored + "q_proj.weight", {keys, H}, {}},
             {stored + "k_proj.weight", {keys, H}, {}},
             {stored + "v_proj.weight", {values, H}, {}}});
  list.make(name + "conv", {C, W}, Init::matrix, Split::qkv_rows,
            {{stored + "q_conv1d.weight", {keys, 1, W}, {}},
             {stored + "k_conv1d.weight", {keys, 1, W}, {}},
             {stored + "v_conv1d.weight", {values, 1, W}, {}}});
  // transformers' save_pretrained cuts it in three equal parts, whatever the sizes of q, k and v.
  if (C % 3 == 0)
    list.or_else({{stored + "q_conv1d.weight", {C / 3, 1, W}, {}},
                  {stored + "k_conv1d.weight", {C / 3, 1, W}, {}},
                  {stored + "v_conv1d.weight", {C / 3, 1, W}, {}}});
  list.add(name + "z", {values, H}, Init::matrix, Split::rows, stored + "g_proj.weight");
  list.add(name + "beta", {a.value_heads, H}, Init::matrix, Split::rows, stored + "b_proj.weight");
  list.add(name + "decay", {a.value_heads, H}, Init::gate_matrix, Split::rows, stored + "a_proj.weight");
  list.add(name + "dt_bias", {a.value_heads}, Init::dt_bias, Split::rows, stored + "dt_bias");
  list.add(name + "A_log", {a.value_heads}, Init::A_log, Split::rows, stored + "A_log");
  list.add(name + "norm", {a.value_dim}, Init::norm, Split::none, stored + "o_norm.weight");
  list.add(name + "out", {H, values}, Init::output_matrix, Split::columns, stored + "o_proj.weight");
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  const int64_t H = spec.hidden;
  const AttentionSpec& a = spec.attention;
  TensorList list;
  list.embedding(spec);
  for (int l = 0; l < spec.layer_count(); ++l) {
    const std::string layer = str("layers.", l, ".");
    const bool linear = spec.layers[l].linear;
    list.add(layer + "norm", {H}, Init::norm, Split::none,
             layer + (linear ? "attention_layer_norm.weight" : "post_attention_layernorm.weight"));
    // The name that transformers' save_pretrained gives it.
    if (!linear) list.or_else({{layer + "feedforward_layer_norm.weight", {H}, {}}});
    if (linear) {
      add_linear(list, spec, layer + "linear.", layer + "linear_attn.");
    } else {
      const std::string name = layer + "attention.", stored = layer + "self_attn.";
      list.attention(name, stored, a, H);
      list.add(name + "q_norm", {a.q_heads * a.head_dim}, Init::norm, Split::none, stored + "q_norm.weight");
      list.add(name + "k_norm", {a.kv_heads * a.head_dim}, Init::norm, Split::none, stored + "k_norm.weight");
    }
    list.add(layer + "ffn_norm", {H}, Init::norm, Split::none,
             layer + (linear ? "feedforward_layer_norm.weight" : "post_feedforward_layernorm.weight"));
    list.swiglu(layer + "ffn.", layer + "mlp.", H, spec.ffn.inner);
  }
  return list.finish(spec);
}

std::vector<NamedConfig> named() {
  struct Sizes {
    CommonSizes common;
    int linear_heads, key_dim, value_dim, ffn;
  };
  constexpr Sizes kSizes[] = {
      {{"olmo-hybrid-7b-tiny", 2048, 4, 128, 4, 4, 65536}, 4, 24, 48, 256},
      {{"olmo-hybrid-7b", 100352, 32, 3840, 30, 30, 65536}, 30, 96, 192, 11008},
  };
  std::vector<NamedConfig> all;
  for (const Sizes& s : kSizes) {
    nlohmann::json config = common_config("olmo_hybrid", s.common, 1e-6);
    config.update({{"linear_num_key_heads", s.linear_heads},
                   {"linear_num_value_heads", s.linear_heads},
                   {"linear_key_head_dim", s.key_dim},
                   {"linear_value_head_dim", s.value_dim},
                   {"linear_conv_kernel_dim", 4},
                   {"linear_allow_neg_eigval", true},
                   {"intermediate_size", s.ffn},
                   {"rope_parameters", nullptr}});
    all.push_back({s.common.name, std::move(config)});
  }
  return all;
}

}  // namespace

const Architecture& olmo_hybrid() {
  static const Architecture all = {{"olmo_hybrid"}, spec_of, tensors_of, {{"model."}, {}}, named};
  return all;
}

}  // namespace hypic
