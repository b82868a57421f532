// Falcon-H1 (arXiv 2507.22448): in every layer Mamba-2 and grouped attention side by side; constant
// multipliers nearly everywhere.
#include <cmath>

#include "core/check.h"
#include "models/architecture.h"

namespace hypic {
namespace {

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = common_spec(config, 1e-5);
  spec.layers.assign(config.size("num_hidden_layers", 1024), Layer{.linear = true, .attention = true});
  for (const char* key : {"mamba_proj_bias", "projectors_bias", "mlp_bias"}) config.refuse_flag(key);
  config.expect_text("hidden_act", "silu");
  spec.embedding_scale = config.number("embedding_multiplier", 1);
  spec.logit_scale = config.number("lm_head_multiplier", 1);

  AttentionSpec& attention = spec.attention;
  attention = attention_of(config, head_dim_by_heads(config));
  read_rope(config, {}, attention.head_dim, &attention.rotary_dim, &attention.rope_theta);
  attention.in_scale = config.number("attention_in_multiplier", 1);
  attention.key_scale = config.number("key_multiplier", 1);
  attention.out_scale = config.number("attention_out_multiplier", 1);

  const int heads = config.size("mamba_n_heads", 4096), dim = config.size("mamba_d_head", 4096);
  LinearSpec& linear = spec.linear;
  linear = mamba2_spec(config, heads, dim, config.size_or("mamba_n_groups", 1, 4096),
                       config.size("mamba_d_state", 4096), config.size_or("mamba_d_conv", 4, 64));
  const int inner = config.size_or("mamba_d_ssm", heads * dim, 1 << 20);
  config.check(inner == heads * dim, "mamba_d_ssm = ", inner, " is not mamba_n_heads · mamba_d_head = ", heads * dim);
  linear.conv_bias = config.flag("mamba_conv_bias", true);
  linear.norm_eps = spec.norm_eps;
  linear.norm_groups = config.flag("mamba_rms_norm", false) ? linear.key_heads : -1;
  linear.gate_first = !config.flag("mamba_norm_before_gate", true);
  const double in = config.number("ssm_in_multiplier", 1);
  const std::vector<double> parts = config.numbers("ssm_multipliers", 5, 1);  // z, x, B, C, dt
  linear.z_scale = in * parts[0];
  linear.v_scale = in * parts[1];
  linear.k_scale = in * parts[2];
  linear.q_scale = in * parts[3];
  linear.dt_scale = in * parts[4];
  linear.out_scale = config.number("ssm_out_multiplier", 1);

  spec.ffn.inner = config.size("intermediate_size");
  const std::vector<double> mlp = config.numbers("mlp_multipliers", 2, 1);
  spec.ffn.gate_scale = mlp[0];
  spec.ffn.down_scale = mlp[1];
  return spec;
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  const int64_t H = spec.hidden;
  TensorList list;
  list.embedding(spec);
  for (int l = 0; l < spec.layer_count(); ++l) {
    const std::string layer = str("layers.", l, "."), mamba = layer + "mamba.";
    list.add(layer + "norm", {H}, Init::norm, Split::none, layer + "input_layernorm.weight");
    add_mamba2(list, layer + "linear.", mamba, spec.linear, H, spec.linear.norm_groups < 0 ? "" : mamba + "norm.weight");
    list.attention(layer + "attention.", layer + "self_attn.", spec.attention, H);
    list.add(layer + "ffn_norm", {H}, Init::norm, Split::none, layer + "pre_ff_layernorm.weight");
    list.swiglu(layer + "ffn.", layer + "feed_forward.", H, spec.ffn.inner);
  }
  return list.finish(spec, "final_layernorm.weight");
}

std::vector<NamedConfig> named() {
  struct Sizes {
    CommonSizes common;
    int head_dim, heads, dim, state, ffn;
  };
  // The multipliers are stand-ins: a checkpoint's config has its own.
  constexpr Sizes kSizes[] = {
      {{"falcon-h1-1.5b-tiny", 2048, 4, 128, 4, 2, 131072}, 32, 8, 16, 32, 256},
      {{"falcon-h1-1.5b", 65537, 24, 2048, 8, 2, 131072}, 128, 48, 64, 256, 4096},
  };
  std::vector<NamedConfig> all;
  for (const Sizes& s : kSizes) {
    nlohmann::json config = common_config("falcon_h1", s.common, 1e-5);
    config.update({{"head_dim", s.head_dim},
                   {"rope_theta", 1e11},
                   {"mamba_n_heads", s.heads},
                   {"mamba_d_head", s.dim},
                   {"mamba_d_ssm", s.heads * s.dim},
                   {"mamba_d_state", s.state},
                   {"mamba_n_groups", 1},
                   {"mamba_d_conv", 4},
                   {"mamba_rms_norm", false},
                   {"intermediate_size", s.ffn},
                   {"key_multiplier", 0.5},
                   {"ssm_multipliers", {0.5, 0.8, 1.2, 0.9, 0.7}}});
    all.push_back({s.common.name, std::move(config)});
  }
  return all;
}

}  // namespace

const Architecture& falcon_h1() {
  static const Architecture all = {{"falcon_h1"}, spec_of, tensors_of, {{"model."}, {".mup_vector"}}, named};
  return all;
}

}  // namespace hypic
