// MiniMax-Text-01 and M1 (arXiv 2501.08313): Lightning attention, every eighth layer grouped attention, each
// sublayer added to its own normed input.
#include "core/check.h"
#include "models/architecture.h"

namespace hypic {
namespace {

double slope_factor(int l, int L) { return 1 - l / (L - 1 + 1e-5) + 1e-5; }

Mix mix_of(const Config& config, const char* alpha, const char* beta) {
  return {config.number(alpha, 1), config.number(beta, 1)};
}

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = common_spec(config, 1e-5);
  spec.layers = layers_of(config, config.integer("num_hidden_layers", 2, 1024), 8);
  for (Layer& layer : spec.layers) {
    layer.ffn = Ffn::moe;
    layer.residual = Residual::normed;
  }
  spec.linear_mix = mix_of(config, "linear_attn_alpha_factor", "linear_attn_beta_factor");
  spec.attention_mix = mix_of(config, "full_attn_alpha_factor", "full_attn_beta_factor");
  spec.ffn_mix = mix_of(config, "mlp_alpha_factor", "mlp_beta_factor");

  AttentionSpec& attention = spec.attention;
  attention = attention_of(config, head_dim_by_heads(config));
  // rotary_dim is of the original configuration; transformers rotates the whole head.
  const double part = config.has("rotary_dim")
                          ? static_cast<double>(config.size("rotary_dim", attention.head_dim)) / attention.head_dim
                          : 1;
  read_rope(config, part, attention.head_dim, &attention.rotary_dim, &attention.rope_theta);

  LinearSpec& linear = spec.linear;
  linear.family = Family::lightning;
  linear.key_heads = linear.value_heads = attention.q_heads;
  linear.key_dim = linear.value_dim = attention.head_dim;
  linear.norm_groups = 1;
  linear.norm_eps = 1e-6;  // not the config's
  linear.gate = Activation::sigmoid;
  spec.slopes = lightning_slopes(linear.value_heads, spec.layer_count(), slope_factor);

  MoeSpec& moe = spec.moe;
  moe.experts = config.size("num_local_experts", 1 << 16);
  moe.active = config.size("num_experts_per_tok", moe.experts);
  moe.inner = config.size("intermediate_size");
  config.check(config.number("shared_intermediate_size", 0) == 0, "shared_intermediate_size is not supported");
  config.expect_text("hidden_act", "silu");
  return spec;
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  const int64_t H = spec.hidden, heads = spec.linear.value_heads, D = spec.linear.value_dim, width = heads * D;
  TensorList list;
  list.embedding(spec);
  for (int l = 0; l < spec.layer_count(); ++l) {
    const std::string layer = str("layers.", l, "."), stored = layer + "self_attn.";
    list.add(layer + "norm", {H}, Init::norm, Split::none, layer + "input_layernorm.weight");
    if (spec.layers[l].linear) {
      const std::string name = layer + "linear.";
      std::vector<int64_t> rows;  // stored [q | k | v] of each head
      for (int part = 0; part < 3; ++part)
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t i = 0; i < D; ++i) rows.push_back((3 * h + part) * D + i);
      list.make(name + "qkv", {3 * width, H}, Init::matrix, Split::qkv_rows,
                {{stored + "qkv_proj.weight", {3 * width, H}, std::move(rows)}});
      list.add(name + "z", {width, H}, Init::matrix, Split::rows, stored + "output_gate.weight");
      list.add(name + "norm", {1, width}, Init::norm, Split::norm_groups, stored + "norm.weight", {width});
      list.add(name + "out", {H, width}, Init::output_matrix, Split::columns, stored + "out_proj.weight");
    } else {
      list.attention(layer + "attention.", stored, spec.attention, H);
    }
    list.add(layer + "ffn_norm", {H}, Init::norm, Split::none, layer + "post_attention_layernorm.weight");
    const std::string sparse = layer + "block_sparse_moe.";
    list.add(layer + "moe.router", {spec.moe.experts, H}, Init::router, Split::none, sparse + "gate.weight");
    constexpr const char* kMatrices[] = {"w1", "w3", "w2"};
    list.experts(layer + "moe.", sparse + "experts.", spec.moe, H, kMatrices);
  }
  return list.finish(spec);
}

std::vector<NamedConfig> named() {
  struct Sizes {
    CommonSizes common;
    int head_dim, rotary, experts, ffn;
  };
  constexpr Sizes kSizes[] = {
      {{"minimax-text-01-tiny", 2048, 8, 128, 4, 2, 10240000}, 32, 16, 8, 64},
      {{"minimax-text-01", 200064, 80, 6144, 64, 8, 10240000}, 128, 64, 32, 9216},
  };
  constexpr double kAlpha = 3.5565588200778455;
  std::vector<NamedConfig> all;
  for (const Sizes& s : kSizes) {
    nlohmann::json config = common_config("minimax", s.common, 1e-5);
    config.update({{"head_dim", s.head_dim},
                   {"rotary_dim", s.rotary},
                   {"rope_theta", 1e7},
                   {"num_local_experts", s.experts},
                   {"num_experts_per_tok", 2},
                   {"intermediate_size", s.ffn},
                   {"linear_attn_alpha_factor", kAlpha},
                   {"full_attn_alpha_factor", kAlpha},
                   {"mlp_alpha_factor", kAlpha}});
    all.push_back({s.common.name, std::move(config)});
  }
  return all;
}

}  // namespace

const Architecture& minimax() {
  // Buffers of the decay that transformers saves with the weights.
  static const Architecture all = {
      {"minimax"},
      spec_of,
      tensors_of,
      {{"model."}, {".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay"}},
      named};
  return all;
}

}  // namespace hypic
