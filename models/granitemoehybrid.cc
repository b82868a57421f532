// Granite-4.0-H: Mamba-2 and a few grouped attention layers without rotation; experts beside a shared
// feed-forward part, or that part alone; constant multipliers.
#include <numeric>

#include "core/check.h"
#include "models/architecture.h"

namespace hypic {
namespace {

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = common_spec(config, 1e-6);
  config.check(config.has("layer_types"), "key layer_types is missing");
  spec.layers = layers_of(config, config.size("num_hidden_layers", 1024), 1);
  config.expect_text("hidden_act", "silu");
  config.refuse_flag("mamba_proj_bias");
  spec.embedding_scale = config.number("embedding_multiplier", 1);
  const double logits = config.number("logits_scaling", 1);
  config.check(logits > 0, "logits_scaling must be positive");
  spec.logit_scale = 1 / logits;
  const Mix mix = {1, config.number("residual_multiplier", 1)};
  spec.linear_mix = spec.attention_mix = spec.ffn_mix = mix;

  spec.attention = attention_of(config, head_dim_by_heads(config));
  spec.attention.scale = config.number("attention_multiplier", 1);
  config.check(spec.attention.scale > 0, "attention_multiplier must be positive");
  const std::string position = config.text("position_embedding_type", "nope");
  config.check(position == "nope" || position == "rope", "position_embedding_type \"", position,
               "\" is not supported (nope and rope are)");
  if (position == "rope")
    read_rope(config, {}, spec.attention.head_dim, &spec.attention.rotary_dim, &spec.attention.rope_theta);
  else
    config.ignore({"rope_parameters", "rope_scaling", "rope_theta"});

  const int heads = config.size("mamba_n_heads", 4096), dim = config.size("mamba_d_head", 4096);
  spec.linear = mamba2_spec(config, heads, dim, config.size("mamba_n_groups", 4096),
                            config.size("mamba_d_state", 4096), config.size_or("mamba_d_conv", 4, 64));
  spec.linear.conv_bias = config.flag("mamba_conv_bias", true);
  spec.linear.norm_groups = 1;  // whatever the number of B, C groups
  spec.linear.norm_eps = spec.norm_eps;
  spec.linear.gate_first = true;

  const int shared = config.size("shared_intermediate_size");
  MoeSpec& moe = spec.moe;
  moe.experts = config.integer("num_local_experts", 0, 1 << 16);
  if (moe.experts == 0) {
    spec.ffn.inner = shared;
    config.ignore({"intermediate_size", "num_experts_per_tok"});
    return spec;
  }
  for (Layer& layer : spec.layers) layer.ffn = Ffn::moe;
  moe.active = config.size("num_experts_per_tok", moe.experts);
  moe.inner = config.size("intermediate_size");
  moe.shared_inner = shared;
  return spec;
}

// Gate and up are one matrix there.
void add_fused(TensorList& list, const std::string& name, const std::string& stored, int64_t hidden,
               int64_t inner) {
  const auto half = [&](int64_t begin) {
    std::vector<int64_t> rows(inner);
    std::iota(rows.begin(), rows.end(), begin);
    return std::vector<Piece>{{stored + "input_linear.weight", {2 * inner, hidden}, std::move(rows)}};
  };
  list.make(name + "gate", {inner, hidden}, Init::matrix, Split::rows, half(0));
  list.make(name + "up", {inner, hidden}, Init::matrix, Split::rows, half(inner));
  list.add(name + "down", {hidden, inner}, Init::output_matrix, Split::columns, stored + "output_linear.weight");
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  const int64_t H = spec.hidden;
  const MoeSpec& moe = spec.moe;
  TensorList list;
  list.embedding(spec);
  for (int l = 0; l < spec.layer_count(); ++l) {
    const std::string layer = str("layers.", l, "."), mamba = layer + "mamba.";
    list.add(layer + "norm", {H}, Init::norm, Split::none, layer + "input_layernorm.weight");
    if (spec.layers[l].linear)
      add_mamba2(list, layer + "linear.", mamba, spec.linear, H, mamba + "norm.weight");
    else
      list.attention(layer + "attention.", layer + "self_attn.", spec.attention, H);
    list.add(layer + "ffn_norm", {H}, Init::norm, Split::none, layer + "post_attention_layernorm.weight");
    if (moe.experts == 0) {
      add_fused(list, layer + "ffn.", layer + "shared_mlp.", H, spec.ffn.inner);
      continue;
    }
    const std::string sparse = layer + "block_sparse_moe.";
    const int64_t E = moe.experts, I = moe.inner;
    list.add(layer + "moe.router", {E, H}, Init::router, Split::none, sparse + "router.layer.weight");
    list.add(layer + "moe.up", {E, 2 * I, H}, Init::matrix, Split::expert_rows, sparse + "input_linear.weight");
    list.add(layer + "moe.down", {E, H, I}, Init::output_matrix, Split::columns, sparse + "output_linear.weight");
    add_fused(list, layer + "moe.shared.", layer + "shared_mlp.", H, moe.shared_inner);
  }
  return list.finish(spec);
}

std::vector<NamedConfig> named() {
  struct Sizes {
    CommonSizes common;
    int heads, dim, state, experts, active, inner, shared;
    std::vector<int> attention;
    double attention_multiplier, residual_multiplier, logits_scaling;
  };
  const Sizes sizes[] = {
      {{"granite-4.0-h-350m-tiny", 2048, 4, 128, 4, 2, 131072}, 8, 32, 32, 0, 0, 0, 256, {2}, 0.03, 0.246, 3},
      {{"granite-4.0-h-350m", 100352, 32, 768, 12, 4, 131072}, 48, 32, 128, 0, 0, 0, 2048, {10, 13, 17, 27},
       0.015625, 0.246, 3},
      {{"granite-4.0-h-tiny", 100352, 40, 1536, 12, 4, 131072}, 48, 64, 128, 64, 6, 512, 1024, {5, 15, 25, 35},
       0.0078125, 0.22, 6},
  };
  std::vector<NamedConfig> all;
  for (const Sizes& s : sizes) {
    std::vector<std::string> types(s.common.layers, "mamba");
    for (const int l : s.attention) types[l] = "attention";
    nlohmann::json config = common_config("granitemoehybrid", s.common, 1e-5);
    config.update({{"layer_types", types},
                   {"mamba_n_heads", s.heads},
                   {"mamba_d_head", s.dim},
                   {"mamba_d_state", s.state},
                   {"mamba_n_groups", 1},
                   {"mamba_d_conv", 4},
                   {"num_local_experts", s.experts},
                   {"num_experts_per_tok", s.active},
                   {"intermediate_size", s.inner},
                   {"shared_intermediate_size", s.shared},
                   {"embedding_multiplier", 12},
                   {"attention_multiplier", s.attention_multiplier},
                   {"residual_multiplier", s.residual_multiplier},
                   {"logits_scaling", s.logits_scaling},
                   {"position_embedding_type", "nope"},
                   {"tie_word_embeddings", true}});
    all.push_back({s.common.name, std::move(config)});
  }
  return all;
}

}  // namespace

const Architecture& granitemoehybrid() {
  static const Architecture all = {{"granitemoehybrid"}, spec_of, tensors_of, {{"model."}, {}}, named};
  return all;
}

}  // namespace hypic
