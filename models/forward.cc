#include "models/forward.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace hypic {
namespace {

constexpr double kLatentEps = 1e-6;  // of the latent's norm, whatever the config says of the others

// The activations of one forward, allocated once for all layers.
class Pass {
 public:
  Pass(const Model& model, Pools& pools, const Rows& rows, const ForwardOptions& options)
      : model_(model),
        spec_(model.spec()),
        backend_(model.backend()),
        pools_(pools),
        options_(options),
        R_(rows.tokens[0]),
        tokens_(rows.tokens),
        positions_(rows.positions),
        logit_rows_(rows.logit_rows) {
    residual_ = activation(spec_.hidden);
    normed_ = activation(spec_.hidden);
    update_ = activation(spec_.hidden);
  }

  void run(const Tensor& logits) {
    backend_.embedding({tokens_, model_.weight("embed"), residual_, spec_.embedding_scale});
    tap("embedding", residual_);
    for (int l = 0; l < spec_.layer_count(); ++l) {
      if (options_.hooks) options_.hooks->before(l);
      prefix_ = str("layers.", l, ".");
      layer(l);
      if (options_.tap) {  // only a watcher needs the sum before the next norm
        add_pending();
        tap(prefix_ + "residual", residual_);
      }
      if (options_.hooks) options_.hooks->after(l);
    }
    prefix_.clear();
    if (logit_rows_[0] == 0) return;
    norm("norm");
    const Buffer last(backend_, backend_.compute_dtype(), {logit_rows_[0], spec_.hidden});
    backend_.gather_rows({normed_, logit_rows_, last});
    backend_.matmul({last, model_.lm_head(), logits, spec_.logit_scale});
    tap("logits", logits);
  }

 private:
  Buffer activation(int64_t n) { return Buffer(backend_, backend_.compute_dtype(), {R_, n}); }
  Buffer state_rows(int64_t n) { return Buffer(backend_, backend_.state_dtype(), {R_, n}); }
  const Tensor& weight(const char* name) const { return model_.weight(prefix_ + name); }
  Tensor per_head(const Tensor& rows, int64_t heads) const {
    return rows.reshape({R_, heads, rows[1] / heads});
  }

  void tap(const std::string& name, const Tensor& tensor) const {
    if (options_.tap) options_.tap->see(name, tensor);
  }
  void tap_all(const char* part, std::initializer_list<std::pair<const char*, Tensor>> tensors) const {
    if (!options_.tap) return;
    for (const auto& [name, tensor] : tensors)
      if (tensor) tap(str(prefix_, part, ".", name), tensor);
  }

  // normed_ = norm(residual), the residual with what still waits to be added.
  void norm(const char* name) {
    backend_.add_rms_norm({.residual = residual_,
                           .update = pending_ != 0 ? update_.tensor() : Tensor(),
                           .weight = weight(name),
                           .plus_one = spec_.norm_plus_one,
                           .eps = spec_.norm_eps,
                           .out = normed_,
                           .scale = pending_});
    pending_ = 0;
  }
  void add_pending() {
    if (pending_ != 0) backend_.add({.x = residual_, .y = update_, .beta = pending_});
    pending_ = 0;
  }

  void layer(int l) {
    const Layer& parts = spec_.layers[l];
    if (parts.mixes())
      sublayer(parts.residual, "norm", parts.linear ? spec_.linear_mix : spec_.attention_mix, [&](const Tensor& x) {
        if (parts.linear) linear(x, pools_.linear[l], update_);
        if (!parts.attention) return;
        if (parts.linear && !beside_) beside_ = activation(spec_.hidden);
        attention(x, pools_.attention[l], parts.linear ? beside_ : update_);
        if (parts.linear) backend_.add({update_, beside_});
      });
    if (parts.ffn != Ffn::none)
      sublayer(parts.residual, "ffn_norm", spec_.ffn_mix, [&](const Tensor& x) {
        parts.ffn == Ffn::moe ? moe(x) : ffn("ffn.", spec_.ffn, x, update_);
      });
  }

  // The residual scheme of one part, which reads x and leaves its output in update_.
  template <class Part>
  void sublayer(Residual scheme, const char* norm_name, const Mix& mix, const Part& part) {
    switch (scheme) {
      case Residual::pre_norm:
        HYPIC_CHECK(mix.residual == 1);
        norm(norm_name);
        part(normed_);
        backend_.all_reduce(update_);
        pending_ = mix.update;  // added by the next norm
        break;
      case Residual::post_norm:
        add_pending();
        part(residual_);
        backend_.all_reduce(update_);
        backend_.rms_norm({update_, weight(norm_name), spec_.norm_plus_one, spec_.norm_eps, update_});
        pending_ = mix.update;
        break;
      case Residual::normed:
        norm(norm_name);
        part(normed_);
        backend_.all_reduce(update_);
        backend_.copy(residual_, normed_);
        backend_.add({residual_, update_, mix.residual, mix.update});
        break;
    }
  }

  void ffn(const std::string& part, const FfnSpec& f, const Tensor& x, const Tensor& out) {
    const std::string at = prefix_ + part;
    const int64_t inner = model_.weight(at + "up")[0];
    Buffer& up = inner_[inner].first;
    Buffer& gate = inner_[inner].second;
    if (!up) up = activation(inner);
    backend_.matmul({x, model_.weight(at + "up"), up});
    if (f.gated) {
      if (!gate) gate = activation(inner);
      backend_.matmul({x, model_.weight(at + "gate"), gate, f.gate_scale});
      backend_.gate_mul({up, gate, f.activation, up});
    } else {
      backend_.gate_mul({{}, up, f.activation, up});
    }
    backend_.matmul({up, model_.weight(at + "down"), out, f.down_scale});
  }

  void moe(const Tensor& x) {
    const MoeSpec& m = spec_.moe;
    if (!route_logits_) {
      route_logits_ = state_rows(m.experts);
      route_weights_ = state_rows(m.active);
      route_experts_ = Buffer(backend_, DType::i32, {R_, m.active});
    }
    backend_.moe({.router = weight("moe.router"),
                  .route = {.logits = route_logits_,
                            .bias = m.bias ? weight("moe.bias") : Tensor(),
                            .score = m.score,
                            .groups = m.groups,
                            .kept_groups = m.kept_groups,
                            .renormalise = m.renormalise,
                            .scale = m.scale,
                            .experts = route_experts_,
                            .weights = route_weights_},
                  .experts = {.x = x,
                              .experts = route_experts_,
                              .weights = route_weights_,
                              .up = weight("moe.up"),
                              .down = weight("moe.down"),
                              .gated = m.gated,
                              .activation = m.activation,
                              .out = update_}});
    tap_all("moe", {{"logits", route_logits_}, {"experts", route_experts_}, {"weights", route_weights_}});
    if (m.shared_inner == 0) return;
    if (!shared_) shared_ = activation(spec_.hidden);
    ffn("moe.shared.", {.gated = m.gated, .activation = m.activation}, x, shared_);
    if (m.shared_gate) {
      if (!shared_gate_) shared_gate_ = activation(1);
      backend_.matmul({x, weight("moe.shared_gate"), shared_gate_});
      backend_.gate_mul({shared_, shared_gate_, Activation::sigmoid, shared_});
    }
    backend_.add({update_, shared_});
  }

  void linear(const Tensor& x, LinearPool& pool, const Tensor& out) {
    const LinearSpec& a = spec_.linear;
    const FamilyTraits& family = traits(a.family);
    const bool convolves = a.family != Family::lightning, by_channel = family.decay == Decay::diagonal;
    const int64_t C = a.conv_channels(), keys = a.key_heads * a.key_dim,
                  values = a.value_heads * a.value_dim, decays = a.value_heads * (by_channel ? a.key_dim : 1);
    if (!qkv_) {
      qkv_ = activation(C);
      if (convolves) conv_ = activation(C);
      z_ = activation(values);
      o_ = activation(values);
      if (a.qk_norm != QkNorm::none) {
        q_ = activation(keys);
        k_ = activation(keys);
      }
      if (a.decay_rank > 0) decay_down_ = activation(a.decay_rank);
      if (a.gate_rank > 0) gate_down_ = activation(a.gate_rank);
      if (a.family != Family::lightning) {
        alpha_ = activation(decays);
        g_ = state_rows(decays);
        beta_ = state_rows(a.value_heads);
      }
      if (takes_beta(a.family)) beta_logit_ = activation(a.value_heads);
    }
    project_qkv(x);
    project(x, "linear.z", "linear.z_down", gate_down_, z_, a.z_scale);
    const Tensor& raw = convolves ? conv_ : qkv_;
    Tensor q = per_head(raw.columns(0, keys), a.key_heads), k = per_head(raw.columns(keys, 2 * keys), a.key_heads);
    const Tensor v = per_head(raw.columns(2 * keys, C), a.value_heads);
    const Tensor o = per_head(o_, a.value_heads);
    Tensor g, beta;
    if (a.family == Family::lightning) {
      if (a.activation != Activation::identity) backend_.gate_mul({{}, qkv_, a.activation, qkv_});
      g = weight("linear.log_decay").reshape({1, a.value_heads});  // the same for every row
      g.shape[0] = R_;
      g.stride[0] = 0;
    } else {
      g = by_channel ? per_head(g_, a.value_heads) : g_.tensor();
      beta = beta_;
      prepare(x, pool, g);
    }
    if (a.qk_norm == QkNorm::heads) {
      backend_.rms_norm({q, weight("linear.q_norm"), spec_.norm_plus_one, spec_.norm_eps, per_head(q_, a.key_heads)});
      backend_.rms_norm({k, weight("linear.k_norm"), spec_.norm_plus_one, spec_.norm_eps, per_head(k_, a.key_heads)});
    }
    if (a.qk_norm != QkNorm::none) {
      q = per_head(q_, a.key_heads);
      k = per_head(k_, a.key_heads);
    }
    if (a.rotary_dim > 0) {
      backend_.rope({q, positions_, a.rotary_dim, a.rope_theta, q});
      backend_.rope({k, positions_, a.rotary_dim, a.rope_theta, k});
    }
    backend_.linear_attention({.decay = family.decay,
                               .update = family.update,
                               .readout = family.readout,
                               .scale = a.scale,
                               .q = q,
                               .k = k,
                               .v = v,
                               .g = g,
                               .beta = beta,
                               .state = pool.state,
                               .operators = pool.operators(),
                               .side = family.side,
                               .rotary_dim = a.rotary_dim,
                               .rope_theta = a.rope_theta,
                               .o = o,
                               .skip = a.family == Family::mamba2 ? weight("linear.D") : Tensor()});
    tap_all("linear", {{"qkv", qkv_}, {"q", q}, {"k", k}, {"v", v}, {"g", g}, {"beta", beta}, {"o", o},
                       {"state", pool.state}});
    const int64_t groups = a.norm_groups == 0 ? a.value_heads : std::max(a.norm_groups, 1);
    const Tensor by_group = per_head(o_, groups);
    backend_.gated_norm({.x = by_group,
                         .weight = a.norm_groups < 0 ? Tensor() : weight("linear.norm"),
                         .eps = a.norm_eps,
                         .gate = per_head(z_, groups),
                         .activation = a.gate,
                         .out = by_group,
                         .gate_first = a.gate_first});
    backend_.matmul({o_, weight("linear.out"), out, a.out_scale});
  }

  static bool takes_beta(Family family) { return family == Family::gated_delta_net || family == Family::kda; }

  // [q | k | v], each with its own multiplier.
  void project_qkv(const Tensor& x) {
    const LinearSpec& a = spec_.linear;
    const Tensor& w = weight("linear.qkv");
    if (a.q_scale == a.k_scale && a.k_scale == a.v_scale) {
      backend_.matmul({x, w, qkv_, a.q_scale});
      return;
    }
    const int64_t keys = a.key_heads * a.key_dim, C = a.conv_channels();
    const auto part = [&](int64_t begin, int64_t end, double scale) {
      backend_.matmul({x, w.rows(begin, end), qkv_.tensor().columns(begin, end), scale});
    };
    part(0, keys, a.q_scale);
    part(keys, 2 * keys, a.k_scale);
    part(2 * keys, C, a.v_scale);
  }

  // out = scale · W x, or through a few dims, W (W_down x).
  void project(const Tensor& x, const char* name, const char* down_name, const Buffer& down, const Tensor& out,
               double scale) {
    if (down) backend_.matmul({x, weight(down_name), down});
    backend_.matmul({down ? down.tensor() : x, weight(name), out, scale});
  }

  // Convolution, l2 norms and gates of the families that have them.
  void prepare(const Tensor& x, LinearPool& pool, const Tensor& g) {
    const LinearSpec& a = spec_.linear;
    const bool mamba = a.family == Family::mamba2, l2 = a.qk_norm == QkNorm::l2;
    project(x, "linear.decay", "linear.decay_down", decay_down_, alpha_, a.dt_scale);
    if (beta_logit_) backend_.matmul({x, weight("linear.beta"), beta_logit_});
    backend_.conv_gates({.conv = {.x = qkv_,
                                  .w = weight("linear.conv"),
                                  .activation = a.activation,
                                  .window = pool.window,
                                  .tail = pool.tail,
                                  .out = conv_,
                                  .bias = a.conv_bias ? weight("linear.conv_bias") : Tensor()},
                         .key_heads = a.key_heads,
                         .key_dim = a.key_dim,
                         .l2_eps = 1e-6,
                         .q = l2 ? per_head(q_, a.key_heads) : Tensor(),
                         .k = l2 ? per_head(k_, a.key_heads) : Tensor(),
                         .decay = {.x = g.rank == 3 ? per_head(alpha_, a.value_heads) : alpha_.tensor(),
                                   .A_log = weight("linear.A_log"),
                                   .dt_bias = weight("linear.dt_bias"),
                                   .out = g,
                                   .step = mamba ? beta_.tensor() : Tensor(),
                                   .step_min = a.step_min,
                                   .step_max = a.step_max},
                         .beta = {beta_logit_, beta_, a.beta_scale}});
  }

  void attention(const Tensor& x, AttentionPool& pool, const Tensor& out) {
    if (spec_.attention.latent()) return latent_attention(x, pool, out);
    const AttentionSpec& a = spec_.attention;
    const int64_t D = a.head_dim, width = a.output_gate ? 2 * D : D;
    if (!q_proj_) {
      q_proj_ = activation(a.q_heads * width);
      k_proj_ = activation(a.kv_heads * D);
      v_proj_ = activation(a.kv_heads * D);
      q_rows_ = activation(a.q_heads * D);
      attended_ = activation(a.q_heads * D);
    }
    backend_.matmul({x, weight("attention.q"), q_proj_, a.in_scale});
    backend_.matmul({x, weight("attention.k"), k_proj_, a.in_scale * a.key_scale});
    backend_.matmul({x, weight("attention.v"), v_proj_, a.in_scale});
    const Tensor q_and_gate = per_head(q_proj_, a.q_heads);  // [q | gate] per head
    const Tensor q = per_head(q_rows_, a.q_heads), k = per_head(k_proj_, a.kv_heads);
    const Tensor v = per_head(v_proj_, a.kv_heads), o = per_head(attended_, a.q_heads);
    const bool norms = a.qk_norm != QkNorm::none;
    backend_.qk_norm_append({.q = q_and_gate.columns(0, D),
                             .k = k,
                             .v = v,
                             .q_weight = norms ? weight("attention.q_norm") : Tensor(),
                             .k_weight = norms ? weight("attention.k_norm") : Tensor(),
                             .plus_one = spec_.norm_plus_one,
                             .eps = spec_.norm_eps,
                             .positions = positions_,
                             .rotary_dim = a.rotary_dim,
                             .theta = a.rope_theta,
                             .k_pages = pool.k,
                             .v_pages = pool.v,
                             .q_out = q,
                             .k_out = k});
    backend_.attention({.q = q,
                        .k_pages = pool.k,
                        .v_pages = pool.v,
                        .rotary_dim = a.rotary_dim,
                        .theta = a.rope_theta,
                        .scale = a.scale > 0 ? a.scale : 1 / std::sqrt(static_cast<double>(D)),
                        .out = o});
    tap_all("attention", {{"q", q}, {"k", k}, {"v", v}, {"o", o}});
    if (a.output_gate)
      backend_.gate_mul({o, q_and_gate.columns(D, 2 * D), Activation::sigmoid, o});
    backend_.matmul({attended_, weight("attention.o"), out, a.out_scale});
  }

  // The absorbed form: a head's k = W_k c and v = W_v c of the latent c, so that q·k = (W_kᵀ q)·c and the sum
  // over values is W_v applied once to the sum over latents.
  void latent_attention(const Tensor& x, AttentionPool& pool, const Tensor& out) {
    const AttentionSpec& a = spec_.attention;
    const int64_t width = a.key_width();
    if (!q_proj_) {
      q_proj_ = activation(a.q_heads * a.head_dim);
      k_proj_ = activation(width);
      q_rows_ = activation(a.q_heads * width);
      latents_ = activation(a.q_heads * a.latent_dim);
      attended_ = activation(a.q_heads * a.value_dim);
    }
    backend_.matmul({x, weight("attention.q"), q_proj_});
    backend_.matmul({x, weight("attention.latent"), k_proj_});
    const Tensor c = k_proj_.tensor().columns(0, a.latent_dim);
    backend_.rms_norm({c, weight("attention.latent_norm"), false, kLatentEps, c});
    const Tensor q_in = per_head(q_proj_, a.q_heads), q = per_head(q_rows_, a.q_heads);
    backend_.head_matmul(
        {q_in.columns(0, a.nope_dim), weight("attention.latent_k"), true, q.columns(0, a.latent_dim)});
    backend_.copy(q.columns(a.latent_dim, width), q_in.columns(a.nope_dim, a.head_dim));
    const Tensor k = per_head(k_proj_, 1), sums = per_head(latents_, a.q_heads), o = per_head(attended_, a.q_heads);
    backend_.append_kv({.k = k, .k_pages = pool.k});
    backend_.attention({.q = q,
                        .k_pages = pool.k,
                        .v_pages = pool.k.tensor().columns(0, a.latent_dim),
                        .rotary_dim = 0,
                        .scale = 1 / std::sqrt(static_cast<double>(a.head_dim)),
                        .out = sums});
    backend_.head_matmul({sums, weight("attention.latent_v"), false, o});
    tap_all("attention", {{"q", q}, {"k", k}, {"o", sums}});
    backend_.matmul({attended_, weight("attention.o"), out});
  }

  const Model& model_;
  const ModelSpec& spec_;
  Backend& backend_;
  Pools& pools_;
  const ForwardOptions& options_;
  const int64_t R_;
  const Tensor tokens_, positions_, logit_rows_;
  std::string prefix_;
  double pending_ = 0;  // update_ waits to be added to the residual, times this
  Buffer residual_, normed_, update_, beside_;
  std::map<int64_t, std::pair<Buffer, Buffer>> inner_;                         // by width: up, gate
  Buffer route_logits_, route_weights_, route_experts_, shared_, shared_gate_;  // moe
  Buffer qkv_, conv_, z_, o_, q_, k_, alpha_, beta_logit_, g_, beta_;          // linear
  Buffer decay_down_, gate_down_;
  Buffer q_proj_, k_proj_, v_proj_, q_rows_, attended_, latents_;              // attention
};

}  // namespace

void check_table(const Pools& pools, const ChainTable& table) {
  table.check(pools.sizes.state_slots, pools.sizes.operator_slots, pools.sizes.pages);
  HYPIC_CHECK(table.page_size == pools.sizes.page_size);
}

void forward(const Model& model, Pools& pools, const ChainTable& table, const Tensor& logits,
             const ForwardOptions& options) {
  check_table(pools, table);
  enqueue_forward(model, pools, model.backend().begin(table), logits, options);
}

void enqueue_forward(const Model& model, Pools& pools, const Rows& rows, const Tensor& logits,
                     const ForwardOptions& options) {
  Pass(model, pools, rows, options).run(logits);
}

}  // namespace hypic
