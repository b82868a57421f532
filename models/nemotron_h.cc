// Nemotron-H and Nemotron-3 (arXiv 2504.03624): one part a layer, which is Mamba-2, grouped attention without
// rotation, a mixture of experts or a feed-forward part.
#include <cmath>

#include "core/check.h"
#include "models/architecture.h"

namespace hypic {
namespace {

std::vector<std::string> parts_of(const Config& config) {
  if (config.has("layers_block_type")) return config.texts("layers_block_type");
  std::vector<std::string> parts;
  for (const char letter : config.text("hybrid_override_pattern", ""))
    parts.push_back(letter == 'M'   ? "mamba"
                    : letter == '*' ? "attention"
                    : letter == 'E' ? "moe"
                    : letter == '-' ? "mlp"
                                    : std::string(1, letter));
  config.check(!parts.empty(), "layers_block_type or hybrid_override_pattern is missing");
  return parts;
}

Layer layer_of(const Config& config, const std::string& part) {
  if (part == "mamba" || part == "linear_attention") return {.linear = true, .ffn = Ffn::none};
  if (part == "attention" || part == "full_attention") return {.attention = true, .ffn = Ffn::none};
  if (part == "mlp") return {.ffn = Ffn::dense};
  config.check(part == "moe", "layer type \"", part, "\" is not supported (mamba, attention, moe, mlp are)");
  return {.ffn = Ffn::moe};
}

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = common_spec(config, 1e-5, "layer_norm_epsilon");
  for (const std::string& part : parts_of(config)) spec.layers.push_back(layer_of(config, part));
  // A shorter list would leave out layers of the checkpoint as if they were for speculative decoding.
  config.check(config.size_or("num_hidden_layers", spec.layer_count(), 1024) == spec.layer_count(),
               "num_hidden_layers = ", config.size_or("num_hidden_layers", 1), ", but ", spec.layer_count(),
               " layers are listed");
  for (const char* key : {"use_bias", "mlp_bias", "mamba_proj_bias"}) config.refuse_flag(key);
  config.check(!config.has("moe_latent_size"), "moe_latent_size is not supported");
  config.expect_text("mlp_hidden_act", "relu2");
  config.expect_text("mamba_hidden_act", "silu");
  spec.attention = attention_of(config, head_dim_by_heads(config));

  config.check(!spec.tied, "tie_word_embeddings is not supported by this architecture");
  for (const char* key : {"mamba_dt_min", "mamba_dt_limit", "mamba_n_groups", "mamba_d_conv", "mamba_conv_bias"})
    config.check(!config.has(key), key, " is an older name of another key and not supported");
  spec.linear = mamba2_spec(config, config.size("mamba_num_heads", 4096), config.size("mamba_head_dim", 4096),
                            config.size("n_groups", 4096), config.size("ssm_state_size", 4096),
                            config.size_or("conv_kernel", 4, 64));
  spec.linear.conv_bias = config.flag("use_conv_bias", true);
  // transformers clamps Δ below at time_step_min and not at time_step_limit.
  spec.linear.step_min = config.number("time_step_min", 0.001);
  spec.linear.step_max = INFINITY;
  spec.linear.norm_groups = spec.linear.key_heads;
  spec.linear.norm_eps = spec.norm_eps;
  spec.linear.gate_first = true;

  bool dense = false, sparse = false;
  for (const Layer& layer : spec.layers) {
    dense |= layer.ffn == Ffn::dense;
    sparse |= layer.ffn == Ffn::moe;
  }
  spec.ffn.gated = spec.moe.gated = false;
  spec.ffn.activation = spec.moe.activation = Activation::relu2;
  if (dense)
    spec.ffn.inner = config.size("intermediate_size");
  else
    config.ignore({"intermediate_size"});
  if (!sparse) return spec;
  MoeSpec& moe = spec.moe;
  moe.experts = config.size("n_routed_experts", 1 << 16);
  read_group_router(config, "num_experts_per_tok", "n_group", 1, &moe);
  moe.inner = config.size("moe_intermediate_size");
  moe.shared_inner = config.size("moe_shared_expert_intermediate_size");
  config.ignore({"n_shared_experts"});  // however many, they are one of that size
  moe.bias = true;
  moe.renormalise = config.flag("norm_topk_prob", true);
  return spec;
}

void add_relu2(TensorList& list, const std::string& name, const std::string& stored, int64_t hidden,
               int64_t inner) {
  list.add(name + "up", {inner, hidden}, Init::matrix, Split::rows, stored + "up_proj.weight");
  list.add(name + "down", {hidden, inner}, Init::output_matrix, Split::columns, stored + "down_proj.weight");
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  const int64_t H = spec.hidden;
  const MoeSpec& moe = spec.moe;
  TensorList list;
  list.embedding(spec, "embeddings.weight");
  for (int l = 0; l < spec.layer_count(); ++l) {
    const std::string layer = str("layers.", l, "."), mixer = layer + "mixer.";
    const Layer& parts = spec.layers[l];
    list.add(layer + (parts.mixes() ? "norm" : "ffn_norm"), {H}, Init::norm, Split::none, layer + "norm.weight");
    if (parts.linear) add_mamba2(list, layer + "linear.", mixer, spec.linear, H, mixer + "norm.weight");
    if (parts.attention) list.attention(layer + "attention.", mixer, spec.attention, H);
    if (parts.ffn == Ffn::dense) add_relu2(list, layer + "ffn.", mixer, H, spec.ffn.inner);
    if (parts.ffn != Ffn::moe) continue;
    list.add(layer + "moe.router", {moe.experts, H}, Init::router, Split::none, mixer + "gate.weight");
    list.add(layer + "moe.bias", {moe.experts}, Init::router_bias, Split::none, mixer + "gate.e_score_correction_bias");
    constexpr const char* kMatrices[] = {"up_proj", "down_proj"};
    list.experts(layer + "moe.", mixer + "experts.", moe, H, kMatrices);
    add_relu2(list, layer + "moe.shared.", mixer + "shared_experts.", H, moe.shared_inner);
  }
  return list.finish(spec, "norm_f.weight");
}

std::vector<NamedConfig> named() {
  struct Sizes {
    CommonSizes common;
    const char* pattern;
    int head_dim, heads, dim, groups, state, experts, active, inner, shared;
  };
  constexpr Sizes kSizes[] = {
      {{"nemotron-3-nano-30b-a3b-tiny", 2048, 9, 128, 4, 2, 262144}, "MEM*EMEM-", 32, 8, 16, 2, 32, 16, 4, 64, 96},
      {{"nemotron-3-nano-30b-a3b", 131072, 52, 2688, 32, 2, 262144},
       "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 128, 64, 64, 8, 128, 128, 6, 1856, 3712},
  };
  std::vector<NamedConfig> all;
  for (const Sizes& s : kSizes) {
    nlohmann::json config = common_config("nemotron_h", s.common, 1e-5, "layer_norm_epsilon");
    config.update({{"hybrid_override_pattern", s.pattern},
                   {"intermediate_size", s.inner},
                   {"head_dim", s.head_dim},
                   {"mamba_num_heads", s.heads},
                   {"mamba_head_dim", s.dim},
                   {"n_groups", s.groups},
                   {"ssm_state_size", s.state},
                   {"conv_kernel", 4},
                   {"n_routed_experts", s.experts},
                   {"num_experts_per_tok", s.active},
                   {"moe_intermediate_size", s.inner},
                   {"moe_shared_expert_intermediate_size", s.shared},
                   {"routed_scaling_factor", 2.5}});
    all.push_back({s.common.name, std::move(config)});
  }
  return all;
}

}  // namespace

const Architecture& nemotron_h() {
  static const Architecture all = {
      {"nemotron_h"}, spec_of, tensors_of, {{"backbone.", "model."}, {"mtp."}}, named};
  return all;
}

}  // namespace hypic
