// Ring-mini-linear-2.0 and Ring-flash-linear-2.0 (arXiv 2510.19338): Lightning attention with rotated keys,
// every G-th layer grouped attention, group-limited sigmoid routing.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "models/architecture.h"

namespace hypic {
namespace {

// Sources differ on the layer's factor. The inference engines (SGLang, vLLM) count layers from 0, the
// model's own code on the hub uses l − 1, as from a 1-based number. slope_form in config.json chooses.
double slope_by_index(int l, int L) { return 1 - static_cast<double>(l) / (L - 1) + 1e-5; }
double slope_by_number(int l, int L) { return 1 - static_cast<double>(l - 1) / (L - 1) + 1e-5; }

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = common_spec(config, 1e-6);
  for (const char* key : {"use_bias", "use_qkv_bias", "linear_silu"}) config.refuse_flag(key);
  config.check(config.flag("use_qk_norm", true), "use_qk_norm must be true");
  config.check(config.flag("norm_topk_prob", true), "norm_topk_prob must be true");
  config.expect_text("score_function", "sigmoid");
  config.expect_text("hidden_act", "silu");
  const int L = config.integer("num_hidden_layers", 2, 1024), G = config.size("layer_group_size", L);
  for (int l = 0; l < L; ++l)
    spec.layers.push_back((l + 1) % G == 0 || l >= L / G * G ? kAttentionLayer : kLinearLayer);
  const int dense = config.integer("first_k_dense_replace", 0, L);
  for (int l = dense; l < L; ++l) spec.layers[l].ffn = Ffn::moe;
  spec.ffn.inner = config.size("intermediate_size");

  AttentionSpec& attention = spec.attention;
  attention = attention_of(config, head_dim_by_heads(config));
  attention.qk_norm = QkNorm::heads;
  read_rope(config, 0.5, attention.head_dim, &attention.rotary_dim, &attention.rope_theta);

  LinearSpec& linear = spec.linear;
  linear.family = Family::lightning;
  linear.key_heads = linear.value_heads = attention.q_heads;
  linear.key_dim = linear.value_dim = attention.head_dim;
  linear.activation = Activation::identity;
  linear.qk_norm = QkNorm::heads;
  linear.rotary_dim = attention.rotary_dim;
  linear.rope_theta = attention.rope_theta;
  linear.scale = 1 / std::sqrt(static_cast<double>(linear.key_dim));
  linear.norm_groups = config.size("group_norm_size", 1024);
  linear.norm_eps = spec.norm_eps;
  linear.gate = Activation::sigmoid;
  config.check(linear.value_heads * linear.value_dim % linear.norm_groups == 0,
               "group_norm_size = ", linear.norm_groups, " does not divide ",
               linear.value_heads * linear.value_dim);
  const std::string form = config.text("slope_form", "sglang");
  config.check(form == "sglang" || form == "huggingface", "slope_form \"", form,
               "\" is unknown (sglang and huggingface are known)");
  spec.slopes = lightning_slopes(linear.value_heads, L, form == "sglang" ? slope_by_index : slope_by_number);

  MoeSpec& moe = spec.moe;
  moe.experts = config.size("num_experts", 1 << 16);
  read_group_router(config, "num_experts_per_tok", "n_group", 1, &moe);
  moe.inner = config.size("moe_intermediate_size");
  moe.shared_inner = moe.inner * config.integer("num_shared_experts", 0, 1024);
  moe.bias = config.flag("moe_router_enable_expert_bias", true);
  return spec;
}

// Part of the fused [Q | K | V].
Piece qkv_rows(const std::string& stored, int64_t all, int64_t hidden, int64_t begin, int64_t end) {
  std::vector<int64_t> rows(end - begin);
  std::iota(rows.begin(), rows.end(), begin);
  return {stored + "query_key_value.weight", {all, hidden}, std::move(rows)};
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  const int64_t H = spec.hidden, D = spec.attention.head_dim, q = spec.attention.q_heads * D,
                kv = spec.attention.kv_heads * D;
  const MoeSpec& moe = spec.moe;
  TensorList list;
  list.embedding(spec, "word_embeddings.weight");
  for (int l = 0; l < spec.layer_count(); ++l) {
    const std::string layer = str("layers.", l, "."), stored = layer + "attention.";
    list.add(layer + "norm", {H}, Init::norm, Split::none, layer + "input_layernorm.weight");
    const std::string name = layer + (spec.layers[l].linear ? "linear." : "attention.");
    if (spec.layers[l].linear) {
      list.add(name + "qkv", {3 * q, H}, Init::matrix, Split::qkv_rows, stored + "query_key_value.weight");
      list.add(name + "z", {q, H}, Init::matrix, Split::rows, stored + "g_proj.weight");
      list.add(name + "norm", {spec.linear.norm_groups, q / spec.linear.norm_groups}, Init::norm, Split::norm_groups,
               stored + "g_norm.weight", {q});
      list.add(name + "out", {H, q}, Init::output_matrix, Split::columns, stored + "dense.weight");
    } else {
      const int64_t all = q + 2 * kv;
      list.make(name + "q", {q, H}, Init::matrix, Split::rows, {qkv_rows(stored, all, H, 0, q)});
      list.make(name + "k", {kv, H}, Init::matrix, Split::kv_rows, {qkv_rows(stored, all, H, q, q + kv)});
      list.make(name + "v", {kv, H}, Init::matrix, Split::kv_rows, {qkv_rows(stored, all, H, q + kv, all)});
      list.add(name + "o", {H, q}, Init::output_matrix, Split::columns, stored + "dense.weight");
    }
    list.add(name + "q_norm", {D}, Init::norm, Split::none, stored + "query_layernorm.weight");
    list.add(name + "k_norm", {D}, Init::norm, Split::none, stored + "key_layernorm.weight");
    list.add(layer + "ffn_norm", {H}, Init::norm, Split::none, layer + "post_attention_layernorm.weight");
    const std::string mlp = layer + "mlp.";
    if (spec.layers[l].ffn == Ffn::dense) {
      list.swiglu(layer + "ffn.", mlp, H, spec.ffn.inner);
      continue;
    }
    list.add(layer + "moe.router", {moe.experts, H}, Init::router, Split::none, mlp + "gate.weight");
    if (moe.bias)
      list.add(layer + "moe.bias", {moe.experts}, Init::router_bias, Split::none, mlp + "gate.expert_bias");
    constexpr const char* kMatrices[] = {"gate_proj", "up_proj", "down_proj"};
    list.experts(layer + "moe.", mlp + "experts.", moe, H, kMatrices);
    if (moe.shared_inner > 0) list.swiglu(layer + "moe.shared.", mlp + "shared_experts.", H, moe.shared_inner);
  }
  return list.finish(spec);
}

std::vector<NamedConfig> named() {
  struct Sizes {
    CommonSizes common;
    int group, head_dim, ffn, experts, active, inner, groups, kept, norm_groups;
  };
  // flash: group_norm_size and rope_theta are not published in what we read; a checkpoint's config says.
  constexpr Sizes kSizes[] = {
      {{"ring-mini-linear-2.0-tiny", 2048, 5, 128, 4, 2, 131072}, 5, 32, 256, 16, 4, 64, 4, 2, 2},
      {{"ring-mini-linear-2.0", 157184, 20, 2048, 16, 4, 131072}, 5, 128, 5120, 256, 8, 512, 8, 4, 4},
      {{"ring-flash-linear-2.0", 157184, 32, 4096, 32, 4, 131072}, 8, 128, 9216, 256, 8, 1024, 8, 4, 8},
  };
  std::vector<NamedConfig> all;
  for (const Sizes& s : kSizes) {
    nlohmann::json config = common_config("bailing_moe_linear", s.common, 1e-6);
    config.update({{"layer_group_size", s.group},
                   {"head_dim", s.head_dim},
                   {"intermediate_size", s.ffn},
                   {"first_k_dense_replace", 1},
                   {"num_experts", s.experts},
                   {"num_experts_per_tok", s.active},
                   {"moe_intermediate_size", s.inner},
                   {"num_shared_experts", 1},
                   {"n_group", s.groups},
                   {"topk_group", s.kept},
                   {"routed_scaling_factor", 2.5},
                   {"group_norm_size", s.norm_groups},
                   {"partial_rotary_factor", 0.5},
                   {"rope_theta", 1e6}});
    all.push_back({s.common.name, std::move(config)});
  }
  return all;
}

}  // namespace

const Architecture& bailing_moe_linear() {
  static const Architecture all = {
      {"bailing_moe_linear"}, spec_of, tensors_of, {{"model."}, {".slope"}}, named};
  return all;
}

}  // namespace hypic
