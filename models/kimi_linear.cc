// Kimi-Linear (arXiv 2510.26692): Kimi delta attention, every fourth layer multi-head latent attention
// without rotation, sigmoid routing.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "models/architecture.h"

namespace hypic {
namespace {

ModelSpec spec_of(const Config& config) {
  ModelSpec spec = common_spec(config, 1e-5);
  config.check(!spec.tied, "tie_word_embeddings is not supported by this architecture");
  spec.max_positions = config.size_or("model_max_length", spec.max_positions, 1 << 28);
  const int L = config.size("num_hidden_layers", 1024);
  const Config linear_config = config.object("linear_attn_config");
  spec.layers.assign(L, kAttentionLayer);
  const std::vector<int> kda = linear_config.integers("kda_layers");  // from 1
  config.check(!kda.empty(), "linear_attn_config.kda_layers is missing");
  for (const int number : kda) {
    config.check(1 <= number && number <= L, "kda_layers names layer ", number, " of ", L);
    spec.layers[number - 1] = kLinearLayer;
  }
  const int dense = config.integer("first_k_dense_replace", 0, L);
  const int every = config.size_or("moe_layer_freq", 1, 1024);
  for (int l = dense; l < L; ++l)
    if (l % every == 0) spec.layers[l].ffn = Ffn::moe;
  spec.ffn.inner = config.size("intermediate_size");

  AttentionSpec& attention = spec.attention;
  attention.q_heads = attention.kv_heads = config.size("num_attention_heads", 1024);
  config.check(!config.has("q_lora_rank"), "q_lora_rank is not supported");
  config.check(config.flag("mla_use_nope", true), "mla_use_nope must be true");
  config.refuse_flag("attention_bias");
  attention.latent_dim = config.size("kv_lora_rank", 1 << 16);
  attention.nope_dim = config.size("qk_nope_head_dim", 4096);
  attention.shared_dim = config.size("qk_rope_head_dim", 4096);
  attention.value_dim = config.size("v_head_dim", 4096);
  attention.head_dim = attention.nope_dim + attention.shared_dim;
  config.ignore({"head_dim", "num_key_value_heads", "qk_head_dim"});  // of latent attention

  LinearSpec& linear = spec.linear;
  linear.family = Family::kda;
  linear.key_heads = linear.value_heads = linear_config.size("num_heads", 1024);
  linear.key_dim = linear.value_dim = linear_config.size("head_dim", 1024);
  linear.conv_width = linear_config.size("short_conv_kernel_size", 64);
  linear.qk_norm = QkNorm::l2;
  linear.scale = 1 / std::sqrt(static_cast<double>(linear.key_dim));
  linear.decay_rank = linear.gate_rank = linear.key_dim;
  linear.norm_eps = spec.norm_eps;
  linear.gate = Activation::sigmoid;

  MoeSpec& moe = spec.moe;
  // transformers knows these keys by two names each.
  const auto either = [&](const char* ours, const char* other) {
    config.check(!config.has(ours) || !config.has(other), ours, " and ", other, " are the same; give one");
    return config.has(other) ? other : ours;
  };
  moe.experts = config.size(either("num_experts", "num_local_experts"), 1 << 16);
  read_group_router(config, either("num_experts_per_token", "num_experts_per_tok"),
                    either("num_expert_group", "n_group"), 2.446, &moe);
  moe.inner = config.size("moe_intermediate_size");
  moe.shared_inner = moe.inner * config.integer(either("num_shared_experts", "n_shared_experts"), 0, 1024);
  moe.bias = true;
  moe.renormalise = config.flag(either("moe_renormalize", "norm_topk_prob"), true);
  config.expect_text("hidden_act", "silu");
  config.expect_text("moe_router_activation_func", "sigmoid");
  return spec;
}

void add_kda(TensorList& list, const ModelSpec& spec, const std::string& name, const std::string& stored) {
  const LinearSpec& a = spec.linear;
  const int64_t H = spec.hidden, heads = a.value_heads, D = a.value_dim, width = heads * D, W = a.conv_width;
  std::vector<Piece> qkv, conv;
  for (const char* letter : {"q", "k", "v"}) {
    qkv.push_back({str(stored, letter, "_proj.weight"), {width, H}, {}});
    conv.push_back({str(stored, letter, "_conv1d.weight"), {width, 1, W}, {}});
  }
  list.make(name + "qkv", {3 * width, H}, Init::matrix, Split::qkv_rows, std::move(qkv));
  list.make(name + "conv", {3 * width, W}, Init::matrix, Split::qkv_rows, std::move(conv));
  list.add(name + "beta", {heads, H}, Init::matrix, Split::rows, stored + "b_proj.weight");
  list.add(name + "decay_down", {a.decay_rank, H}, Init::matrix, Split::none, stored + "f_a_proj.weight");
  list.add(name + "decay", {width, a.decay_rank}, Init::gate_matrix, Split::rows, stored + "f_b_proj.weight");
  list.add(name + "dt_bias", {heads, D}, Init::dt_bias, Split::rows, stored + "dt_bias", {width});
  list.add(name + "A_log", {heads}, Init::A_log, Split::rows, stored + "A_log", {1, 1, heads, 1});
  list.add(name + "z_down", {a.gate_rank, H}, Init::matrix, Split::none, stored + "g_a_proj.weight");
  list.add(name + "z", {width, a.gate_rank}, Init::matrix, Split::rows, stored + "g_b_proj.weight");
  list.add(name + "norm", {D}, Init::norm, Split::none, stored + "o_norm.weight");
  list.add(name + "out", {H, width}, Init::output_matrix, Split::columns, stored + "o_proj.weight");
}

void add_mla(TensorList& list, const ModelSpec& spec, const std::string& name, const std::string& stored) {
  const AttentionSpec& a = spec.attention;
  const int64_t H = spec.hidden, heads = a.q_heads, head = a.nope_dim + a.value_dim, latent = a.latent_dim;
  list.add(name + "q", {heads * a.head_dim, H}, Init::matrix, Split::rows, stored + "q_proj.weight");
  list.add(name + "latent", {latent + a.shared_dim, H}, Init::matrix, Split::none,
           stored + "kv_a_proj_with_mqa.weight");
  list.add(name + "latent_norm", {latent}, Init::norm, Split::none, stored + "kv_a_layernorm.weight");
  // kv_b_proj holds, for each head, the rows [k | v] that the latent is expanded by.
  const auto part = [&](int64_t first, int64_t count) {
    std::vector<int64_t> rows;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < count; ++i) rows.push_back(h * head + first + i);
    return std::vector<Piece>{{stored + "kv_b_proj.weight", {heads * head, latent}, std::move(rows)}};
  };
  list.make(name + "latent_k", {heads, a.nope_dim, latent}, Init::matrix, Split::rows, part(0, a.nope_dim));
  list.make(name + "latent_v", {heads, a.value_dim, latent}, Init::matrix, Split::rows,
            part(a.nope_dim, a.value_dim));
  list.add(name + "o", {H, heads * a.value_dim}, Init::output_matrix, Split::columns, stored + "o_proj.weight");
}

std::vector<TensorSpec> tensors_of(const ModelSpec& spec) {
  const int64_t H = spec.hidden;
  const MoeSpec& moe = spec.moe;
  TensorList list;
  list.embedding(spec);
  for (int l = 0; l < spec.layer_count(); ++l) {
    const std::string layer = str("layers.", l, "."), stored = layer + "self_attn.";
    list.add(layer + "norm", {H}, Init::norm, Split::none, layer + "input_layernorm.weight");
    if (spec.layers[l].linear)
      add_kda(list, spec, layer + "linear.", stored);
    else
      add_mla(list, spec, layer + "attention.", stored);
    list.add(layer + "ffn_norm", {H}, Init::norm, Split::none, layer + "post_attention_layernorm.weight");
    const std::string sparse = layer + "block_sparse_moe.";
    if (spec.layers[l].ffn == Ffn::dense) {
      // The hub's name, and the one that transformers saves.
      TensorList hub, saved;
      hub.swiglu(layer + "ffn.", layer + "mlp.", H, spec.ffn.inner);
      saved.swiglu(layer + "ffn.", sparse, H, spec.ffn.inner);
      std::vector<TensorSpec> other = saved.take();
      size_t i = 0;
      for (TensorSpec& tensor : hub.take()) {
        list.make(tensor.name, tensor.shape, tensor.init, tensor.split, std::move(tensor.sources[0]));
        list.or_else(std::move(other[i++].sources[0]));
      }
      continue;
    }
    list.add(layer + "moe.router", {moe.experts, H}, Init::router, Split::none, sparse + "gate.weight");
    list.add(layer + "moe.bias", {moe.experts}, Init::router_bias, Split::none, sparse + "gate.e_score_correction_bias");
    constexpr const char* kMatrices[] = {"w1", "w3", "w2"};
    list.experts(layer + "moe.", sparse + "experts.", moe, H, kMatrices);
    if (moe.shared_inner > 0)
      list.swiglu(layer + "moe.shared.", sparse + "shared_experts.", H, moe.shared_inner);
  }
  return list.finish(spec);
}

std::vector<NamedConfig> named() {
  struct Sizes {
    CommonSizes common;
    int latent, nope, shared, value, linear_heads, linear_dim, ffn, experts, active, inner;
    std::vector<int> attention;  // from 1
  };
  const Sizes sizes[] = {
      {{"kimi-linear-48b-a3b-tiny", 2048, 4, 128, 4, 4, 1048576}, 64, 32, 16, 32, 4, 32, 256, 16, 4, 64, {4}},
      {{"kimi-linear-48b-a3b", 163840, 27, 2304, 32, 32, 1048576}, 512, 128, 64, 128, 32, 128, 9216, 256, 8, 1024,
       {4, 8, 12, 16, 20, 24, 27}},
  };
  std::vector<NamedConfig> all;
  for (const Sizes& s : sizes) {
    std::vector<int> kda;
    for (int number = 1; number <= s.common.layers; ++number)
      if (std::find(s.attention.begin(), s.attention.end(), number) == s.attention.end()) kda.push_back(number);
    nlohmann::json config = common_config("kimi_linear", s.common, 1e-5);
    config.update({{"kv_lora_rank", s.latent},
                   {"qk_nope_head_dim", s.nope},
                   {"qk_rope_head_dim", s.shared},
                   {"v_head_dim", s.value},
                   {"linear_attn_config",
                    {{"kda_layers", kda},
                     {"full_attn_layers", s.attention},
                     {"num_heads", s.linear_heads},
                     {"head_dim", s.linear_dim},
                     {"short_conv_kernel_size", 4}}},
                   {"intermediate_size", s.ffn},
                   {"first_k_dense_replace", 1},
                   {"num_experts", s.experts},
                   {"num_experts_per_token", s.active},
                   {"moe_intermediate_size", s.inner},
                   {"num_shared_experts", 1},
                   {"routed_scaling_factor", 2.446}});
    all.push_back({s.common.name, std::move(config)});
  }
  return all;
}

}  // namespace

const Architecture& kimi_linear() {
  static const Architecture all = {{"kimi_linear"}, spec_of, tensors_of, {{"model."}, {}}, named};
  return all;
}

}  // namespace hypic
