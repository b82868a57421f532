#include "models/forward.h"

#include <cmath>

namespace hypic {
namespace {

// The activations of one forward, allocated once for all layers.
class Pass {
 public:
  Pass(const Model& model, Pools& pools, const ChainTable& table, const ForwardOptions& options)
      : model_(model),
        spec_(model.spec()),
        backend_(model.backend()),
        pools_(pools),
        options_(options),
        R_(table.row_count()) {
    backend_.begin(table);
    tokens_ = Buffer(backend_, DType::i32, {R_});
    positions_ = Buffer(backend_, DType::i32, {R_});
    backend_.upload(tokens_, table.tokens.data());
    backend_.upload(positions_, table.positions.data());
    residual_ = activation(spec_.hidden);
    normed_ = activation(spec_.hidden);
    update_ = activation(spec_.hidden);
    gate_ = activation(spec_.ffn);
    up_ = activation(spec_.ffn);
  }

  void run(const ChainTable& table, const Tensor& logits) {
    backend_.embedding({tokens_, model_.weight("embed_tokens.weight"), residual_});
    tap("embedding", residual_);
    bool pending = false;  // update_ waits to be added to the residual
    for (int l = 0; l < spec_.layer_count(); ++l) {
      if (options_.hooks) options_.hooks->before(l);
      prefix_ = str("layers.", l, ".");
      norm("input_layernorm.weight", pending);
      if (spec_.layers[l] == LayerKind::linear)
        linear(pools_.linear[l]);
      else
        attention(pools_.attention[l]);
      backend_.all_reduce(update_);
      norm("post_attention_layernorm.weight", true);
      mlp();
      backend_.all_reduce(update_);
      pending = true;
      if (options_.tap) {  // only a watcher needs the sum before the next norm
        backend_.add({residual_, update_});
        pending = false;
        tap(prefix_ + "residual", residual_);
      }
      if (options_.hooks) options_.hooks->after(l);
    }
    prefix_.clear();
    if (table.logit_rows.empty()) return;
    norm("norm.weight", pending);
    const int64_t n = static_cast<int64_t>(table.logit_rows.size());
    const Buffer rows(backend_, DType::i32, {n}),
        last(backend_, backend_.compute_dtype(), {n, spec_.hidden});
    backend_.upload(rows, table.logit_rows.data());
    backend_.gather_rows({normed_, rows, last});
    backend_.matmul({last, model_.lm_head(), logits});
    tap("logits", logits);
  }

 private:
  Buffer activation(int64_t n) { return Buffer(backend_, backend_.compute_dtype(), {R_, n}); }
  Buffer state_rows(int64_t n) { return Buffer(backend_, backend_.state_dtype(), {R_, n}); }
  const Tensor& weight(const char* name) const { return model_.weight(prefix_ + name); }

  void tap(const std::string& name, const Tensor& tensor) const {
    if (options_.tap) options_.tap->see(name, tensor);
  }

  void norm(const char* name, bool add_update) {
    backend_.add_rms_norm({residual_, add_update ? update_.tensor() : Tensor(), weight(name),
                           spec_.norm_plus_one, spec_.norm_eps, normed_});
  }

  void project(const char* name, const Tensor& out) {
    backend_.matmul({normed_, weight(name), out});
  }

  void mlp() {
    project("mlp.gate_proj.weight", gate_);
    project("mlp.up_proj.weight", up_);
    backend_.gate_mul({up_, gate_, Activation::silu, up_});
    backend_.matmul({up_, weight("mlp.down_proj.weight"), update_});
  }

  void linear(LinearPool& pool) {
    const LinearSpec& a = spec_.linear;
    const int64_t C = a.conv_channels(), keys = a.key_heads * a.key_dim,
                  values = a.value_heads * a.value_dim;
    if (!qkv_) {
      qkv_ = activation(C);
      conv_ = activation(C);
      z_ = activation(values);
      o_ = activation(values);
      q_ = activation(keys);
      k_ = activation(keys);
      alpha_ = activation(a.value_heads);
      beta_logit_ = activation(a.value_heads);
      g_ = state_rows(a.value_heads);
      beta_ = state_rows(a.value_heads);
    }
    project("linear_attn.in_proj_qkv.weight", qkv_);
    project("linear_attn.in_proj_z.weight", z_);
    project("linear_attn.in_proj_a.weight", alpha_);
    project("linear_attn.in_proj_b.weight", beta_logit_);
    const Tensor q = q_.tensor().reshape({R_, a.key_heads, a.key_dim});
    const Tensor k = k_.tensor().reshape({R_, a.key_heads, a.key_dim});
    const Tensor v = conv_.tensor().columns(2 * keys, C).reshape({R_, a.value_heads, a.value_dim});
    const Tensor o = o_.tensor().reshape({R_, a.value_heads, a.value_dim});
    backend_.conv_gates(
        {.conv = {qkv_, weight("linear_attn.conv1d.weight").reshape({C, a.conv_width}),
                  Activation::silu, pool.window, pool.tail, conv_},
         .key_heads = a.key_heads,
         .value_heads = a.value_heads,
         .key_dim = a.key_dim,
         .value_dim = a.value_dim,
         .l2_eps = 1e-6,
         .q = q,
         .k = k,
         .alpha = alpha_,
         .A_log = weight("linear_attn.A_log"),
         .dt_bias = weight("linear_attn.dt_bias"),
         .g = g_,
         .beta_logit = beta_logit_,
         .beta = beta_});
    const FamilyTraits& family = traits(a.family);
    LinearAttentionArgs args{};
    args.decay = family.decay;
    args.update = family.update;
    args.readout = family.readout;
    args.side = family.side;
    args.scale = 1 / std::sqrt(static_cast<double>(a.key_dim));
    args.q = q;
    args.k = k;
    args.v = v;
    args.g = g_;
    args.beta = beta_;
    args.state = pool.state;
    args.operators = pool.operators();
    args.o = o;
    backend_.linear_attention(args);
    for (const auto& [name, tensor] : {std::pair{"qkv", qkv_.tensor()},
                                       {"q", q},
                                       {"k", k},
                                       {"v", v},
                                       {"g", g_.tensor()},
                                       {"beta", beta_.tensor()},
                                       {"o", o},
                                       {"state", pool.state.tensor()}})
      if (options_.tap) tap(str(prefix_, "linear.", name), tensor);
    backend_.gated_norm({o, weight("linear_attn.norm.weight"), spec_.norm_eps,
                         z_.tensor().reshape({R_, a.value_heads, a.value_dim}), a.gate, o});
    backend_.matmul({o_, weight("linear_attn.out_proj.weight"), update_});
  }

  void attention(AttentionPool& pool) {
    const AttentionSpec& a = spec_.attention;
    const int64_t D = a.head_dim, width = a.output_gate ? 2 * D : D;
    if (!q_proj_) {
      q_proj_ = activation(a.q_heads * width);
      k_proj_ = activation(a.kv_heads * D);
      v_proj_ = activation(a.kv_heads * D);
      q_rows_ = activation(a.q_heads * D);
      attended_ = activation(a.q_heads * D);
    }
    project("self_attn.q_proj.weight", q_proj_);
    project("self_attn.k_proj.weight", k_proj_);
    project("self_attn.v_proj.weight", v_proj_);
    const Tensor per_head =
        q_proj_.tensor().reshape({R_, a.q_heads, width});  // [q | gate] per head
    const Tensor q = q_rows_.tensor().reshape({R_, a.q_heads, D});
    const Tensor k = k_proj_.tensor().reshape({R_, a.kv_heads, D});
    const Tensor v = v_proj_.tensor().reshape({R_, a.kv_heads, D});
    const Tensor o = attended_.tensor().reshape({R_, a.q_heads, D});
    backend_.qk_norm_append({.q = per_head.columns(0, D),
                             .k = k,
                             .v = v,
                             .q_weight = weight("self_attn.q_norm.weight"),
                             .k_weight = weight("self_attn.k_norm.weight"),
                             .plus_one = spec_.norm_plus_one,
                             .eps = spec_.norm_eps,
                             .positions = positions_,
                             .rotary_dim = a.rotary_dim,
                             .theta = a.rope_theta,
                             .k_pages = pool.k,
                             .v_pages = pool.v,
                             .q_out = q,
                             .k_out = k});
    backend_.attention({q, positions_, pool.k, pool.v, a.rotary_dim, a.rope_theta,
                        1 / std::sqrt(static_cast<double>(D)), o});
    for (const auto& [name, tensor] : {std::pair{"q", q}, {"k", k}, {"v", v}, {"o", o}})
      if (options_.tap) tap(str(prefix_, "attention.", name), tensor);
    if (a.output_gate) backend_.gate_mul({o, per_head.columns(D, 2 * D), Activation::sigmoid, o});
    backend_.matmul({attended_, weight("self_attn.o_proj.weight"), update_});
  }

  const Model& model_;
  const ModelSpec& spec_;
  Backend& backend_;
  Pools& pools_;
  const ForwardOptions& options_;
  const int64_t R_;
  std::string prefix_;
  Buffer tokens_, positions_, residual_, normed_, update_, gate_, up_;
  Buffer qkv_, conv_, z_, o_, q_, k_, alpha_, beta_logit_, g_, beta_;  // linear
  Buffer q_proj_, k_proj_, v_proj_, q_rows_, attended_;                // attention
};

}  // namespace

void forward(const Model& model, Pools& pools, const ChainTable& table, const Tensor& logits,
             const ForwardOptions& options) {
  table.check(pools.sizes.state_slots, pools.sizes.operator_slots, pools.sizes.pages);
  HYPIC_CHECK(table.page_size == pools.sizes.page_size);
  Pass(model, pools, table, options).run(table, logits);
}

}  // namespace hypic
