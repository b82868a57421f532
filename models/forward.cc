#include "models/forward.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

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
      layer_ = l;
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
  const Stack& stack(const std::string& name) const { return model_.stack(prefix_ + name); }
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

  // What the columns of a stack's output from `begin` on, up to the next slice, are multiplied by.
  struct Slice {
    int64_t begin;
    double scale;
  };
  // out = x · weightsᵀ, one product for all slices that follow one another with the same scale.
  void project(const Tensor& x, const Stack& stack, const std::vector<Slice>& slices, const Tensor& out) {
    for (auto slice = slices.begin(); slice != slices.end();) {
      const auto [begin, scale] = *slice;
      while (slice != slices.end() && slice->scale == scale) ++slice;
      const int64_t end = slice == slices.end() ? stack.weights[0] : slice->begin;
      if (begin < end) backend_.matmul({x, stack.weights.rows(begin, end), out.columns(begin, end), scale});
    }
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
        if (parts.ffn == Ffn::moe) return moe(x);
        ffn("ffn.", spec_.ffn, x, update_);
      });
  }

  // Of heads x [R, H, D], from `first` on, and those of the other ranks the rows of all, [R, heads · D]. Where several
  // ranks have the same head, one `adds` it.
  const Tensor& gathered(Buffer& all, int64_t heads, const Tensor& x, int64_t first, bool adds = true) {
    if (!all) all = activation(heads * x[2]);
    backend_.fill_zero(all);
    if (adds) backend_.copy(own_heads(all, first, x), x);
    backend_.all_reduce(all);
    return all.tensor();
  }
  // In such rows the place of x.
  Tensor own_heads(const Tensor& all, int64_t first, const Tensor& x) const {
    return per_head(all.columns(first * x[2], (first + x[1]) * x[2]), x[1]);
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

  // Where the output of a feed-forward part's stack goes.
  const Tensor& inner(const Stack& in) {
    Buffer& projected = inner_[in.weights[0]];
    if (!projected) projected = activation(in.weights[0]);
    return projected;
  }

  void ffn(const std::string& part, const FfnSpec& f, const Tensor& x, const Tensor& out) {
    const Stack& in = stack(part + "in");
    const Tensor projected = inner(in), up = in.columns(projected, 0);
    if (f.gated) {
      const auto [gate, end] = in.parts[1];
      project(x, in, {{0, 1}, {gate, f.gate_scale}, {end, 1}}, projected);
      backend_.gate_mul({up, in.columns(projected, 1), f.activation, up});
    } else {
      project(x, in, {{0, 1}}, projected);
      backend_.gate_mul({{}, up, f.activation, up});
    }
    backend_.matmul({up, model_.weight(prefix_ + part + "down"), out, f.down_scale});
  }

  void moe(const Tensor& x) {
    const MoeSpec& m = spec_.moe;
    if (!route_logits_) {
      route_logits_ = state_rows(m.experts);
      route_weights_ = state_rows(m.active);
      route_experts_ = Buffer(backend_, DType::i32, {R_, m.active});
    }
    MoeArgs args{.router = weight("moe.router"),
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
                             .out = update_}};
    if (m.shared_inner > 0) {
      if (!shared_) shared_ = activation(spec_.hidden);
      const Stack& in = stack("moe.shared.in");
      const Tensor& projected = inner(in);
      args.shared = {.x = x,
                     .in = in.weights,
                     .projected = projected,
                     .up = in.columns(projected, 0),
                     .gate = m.gated ? in.columns(projected, 1) : Tensor(),
                     .row_gate = m.shared_gate ? in.columns(projected, m.gated ? 2 : 1) : Tensor(),
                     .activation = m.activation,
                     .down = weight("moe.shared.down"),
                     .part = shared_,
                     .out = update_};
    }
    if (options_.routes) {  // the steps of the composite
      backend_.matmul({.x = x, .w = args.router, .out = route_logits_});
      backend_.route(args.route);
      options_.routes->routed(layer_, route_experts_, route_weights_);
      follow_first_rank(route_experts_);
      follow_first_rank(route_weights_);
      backend_.experts(args.experts);
      if (args.shared.in) backend_.shared_expert(args.shared);
    } else {
      backend_.moe(args);
    }
    tap_all("moe", {{"logits", route_logits_}, {"experts", route_experts_}, {"weights", route_weights_}});
  }

  // What a hook may have changed on the first rank, on all.
  void follow_first_rank(const Tensor& rows) {
    if (spec_.rank > 0) backend_.fill_zero(rows);
    backend_.all_reduce(rows);
  }

  void linear(const Tensor& x, LinearPool& pool, const Tensor& out) {
    const LinearSpec& a = spec_.linear;
    const FamilyTraits& family = traits(a.family);
    const bool convolves = a.family != Family::lightning, by_channel = family.decay == Decay::diagonal;
    const int64_t C = a.conv_channels(), keys = a.key_heads * a.key_dim,
                  values = a.value_heads * a.value_dim, decays = a.value_heads * (by_channel ? a.key_dim : 1);
    const Stack& in = stack("linear.in");
    if (!linear_in_) {
      linear_in_ = activation(in.weights[0]);
      if (convolves) conv_ = activation(C);
      if (a.gate_rank > 0) z_ = activation(values);
      o_ = activation(values);
      if (a.qk_norm != QkNorm::none) {
        q_ = activation(keys);
        k_ = activation(keys);
      }
      if (a.family != Family::lightning) {
        if (a.decay_rank > 0) alpha_ = activation(decays);
        g_ = state_rows(decays);
        beta_ = state_rows(a.value_heads);
      }
    }
    std::vector<Slice> slices = {{0, a.q_scale}, {keys, a.k_scale}, {2 * keys, a.v_scale}};
    const double scales[] = {a.gate_rank > 0 ? 1 : a.z_scale, a.decay_rank > 0 ? 1 : a.dt_scale, 1};
    for (size_t i = 1; i < in.parts.size(); ++i) slices.push_back({in.parts[i].begin, scales[i - 1]});
    project(x, in, slices, linear_in_);
    const Tensor qkv = in.columns(linear_in_, 0);
    Tensor z = in.columns(linear_in_, 1);
    if (a.gate_rank > 0) {  // W (W_down x)
      backend_.matmul({z, weight("linear.z"), z_, a.z_scale});
      z = z_;
    }
    const Tensor raw = convolves ? conv_.tensor() : qkv;
    Tensor q = per_head(raw.columns(0, keys), a.key_heads), k = per_head(raw.columns(keys, 2 * keys), a.key_heads);
    const Tensor v = per_head(raw.columns(2 * keys, C), a.value_heads);
    const Tensor o = per_head(o_, a.value_heads);
    Tensor g, beta;
    if (a.family == Family::lightning) {
      g = weight("linear.log_decay").reshape({1, a.value_heads});  // the same for every row
      g.shape[0] = R_;
      g.stride[0] = 0;
    } else {
      g = by_channel ? per_head(g_, a.value_heads) : g_.tensor();
      beta = beta_;
    }
    const Tensor raw_q = q, raw_k = k;
    if (a.qk_norm != QkNorm::none) {
      q = per_head(q_, a.key_heads);
      k = per_head(k_, a.key_heads);
    }
    const LinearAttentionArgs attention{.decay = family.decay,
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
                                        .skip = a.family == Family::mamba2 ? weight("linear.D") : Tensor()};
    if (convolves && a.qk_norm != QkNorm::heads && a.rotary_dim == 0 && !a.norm_spans_ranks && !options_.tap) {
      backend_.gated_linear_attention({conv_gates(in, pool, g), attention, gated_norm(z)});
    } else {
      if (convolves)
        backend_.conv_gates(conv_gates(in, pool, g));
      else if (a.activation != Activation::identity)
        backend_.gate_mul({{}, qkv, a.activation, qkv});
      if (a.qk_norm == QkNorm::heads) {
        backend_.rms_norm({raw_q, weight("linear.q_norm"), spec_.norm_plus_one, spec_.norm_eps, q});
        backend_.rms_norm({raw_k, weight("linear.k_norm"), spec_.norm_plus_one, spec_.norm_eps, k});
      }
      if (a.rotary_dim > 0) {
        backend_.rope({q, positions_, a.rotary_dim, a.rope_theta, q});
        backend_.rope({k, positions_, a.rotary_dim, a.rope_theta, k});
      }
      backend_.linear_attention(attention);
      tap_all("linear", {{"qkv", qkv}, {"q", q}, {"k", k}, {"v", v}, {"g", g}, {"beta", beta}, {"o", o},
                         {"state", pool.state}});
      if (a.norm_spans_ranks)
        norm_of_ranks(z);
      else
        backend_.gated_norm(gated_norm(z));
    }
    backend_.matmul({o_, weight("linear.out"), out, a.out_scale});
  }

  // o_ ← its norm, gated by z.
  void norm_of_ranks(const Tensor& z) {
    const LinearSpec& a = spec_.linear;
    const Tensor o = per_head(o_, a.value_heads);
    const int64_t first = spec_.rank * a.value_heads;
    if (a.gate_first) backend_.gate_mul({o_, z, a.gate, o_});
    const Tensor all = per_head(gathered(all_o_, spec_.ranks * a.value_heads, o, first), a.norm_groups);
    backend_.rms_norm({all, weight("linear.norm"), false, a.norm_eps, all});
    backend_.copy(o, own_heads(all_o_, first, o));
    if (!a.gate_first) backend_.gate_mul({o_, z, a.gate, o_});
  }
  GatedNormArgs gated_norm(const Tensor& z) const {
    const LinearSpec& a = spec_.linear;
    const int64_t groups = a.norm_groups == 0 ? a.value_heads : std::max(a.norm_groups, 1);
    const Tensor by_group = per_head(o_, groups);
    return {.x = by_group,
            .weight = a.norm_groups < 0 ? Tensor() : weight("linear.norm"),
            .eps = a.norm_eps,
            .gate = per_head(z, groups),
            .activation = a.gate,
            .out = by_group,
            .gate_first = a.gate_first};
  }

  // Convolution, l2 norms and gates of the families that have them.
  ConvGatesArgs conv_gates(const Stack& in, LinearPool& pool, const Tensor& g) {
    const LinearSpec& a = spec_.linear;
    const bool mamba = a.family == Family::mamba2, l2 = a.qk_norm == QkNorm::l2;
    Tensor alpha = in.columns(linear_in_, 2);
    if (a.decay_rank > 0) {
      backend_.matmul({alpha, weight("linear.decay"), alpha_, a.dt_scale});
      alpha = alpha_;
    }
    return {.conv = {.x = in.columns(linear_in_, 0),
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
            .decay = {.x = g.rank == 3 ? per_head(alpha, a.value_heads) : alpha,
                      .A_log = weight("linear.A_log"),
                      .dt_bias = weight("linear.dt_bias"),
                      .out = g,
                      .step = mamba ? beta_.tensor() : Tensor(),
                      .step_min = a.step_min,
                      .step_max = a.step_max},
            .beta = {a.takes_beta() ? in.columns(linear_in_, 3) : Tensor(), beta_, a.beta_scale}};
  }

  void attention(const Tensor& x, AttentionPool& pool, const Tensor& out) {
    if (spec_.attention.latent()) return latent_attention(x, pool, out);
    const AttentionSpec& a = spec_.attention;
    const int64_t D = a.head_dim;
    const Stack& in = stack("attention.in");
    if (!attention_in_) {
      attention_in_ = activation(in.weights[0]);
      q_rows_ = activation(a.q_heads * D);
      attended_ = activation(a.q_heads * D);
    }
    project(x, in, {{0, a.in_scale}, {in.parts[1].begin, a.in_scale * a.key_scale}, {in.parts[2].begin, a.in_scale}},
            attention_in_);
    const Tensor q_and_gate = per_head(in.columns(attention_in_, 0), a.q_heads);  // [q | gate] per head
    const Tensor q = per_head(q_rows_, a.q_heads), k = per_head(in.columns(attention_in_, 1), a.kv_heads);
    const Tensor v = per_head(in.columns(attention_in_, 2), a.kv_heads), o = per_head(attended_, a.q_heads);
    Tensor q_in = q_and_gate.columns(0, D), k_in = k;
    const bool norm_spans_ranks = a.qk_norm == QkNorm::all_heads && spec_.ranks > 1;
    if (norm_spans_ranks) {
      const int64_t kv_heads = spec_.whole->attention.kv_heads, sharing = std::max<int64_t>(spec_.ranks / kv_heads, 1);
      const int64_t first_q = spec_.rank * a.q_heads, first_k = spec_.rank / sharing * a.kv_heads;
      const Tensor all_q = gathered(all_q_, spec_.ranks * a.q_heads, q_in, first_q);
      const Tensor all_k = gathered(all_k_, kv_heads, k, first_k, spec_.rank % sharing == 0);
      backend_.rms_norm({all_q, weight("attention.q_norm"), spec_.norm_plus_one, spec_.norm_eps, all_q});
      backend_.rms_norm({all_k, weight("attention.k_norm"), spec_.norm_plus_one, spec_.norm_eps, all_k});
      q_in = own_heads(all_q, first_q, q_in);
      k_in = own_heads(all_k, first_k, k);
    }
    const bool norms = a.qk_norm != QkNorm::none && !norm_spans_ranks;
    backend_.qk_norm_append({.q = q_in,
                             .k = k_in,
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
    const Stack& in = stack("attention.in");
    if (!attention_in_) {
      attention_in_ = activation(in.weights[0]);
      q_rows_ = activation(a.q_heads * width);
      latents_ = activation(a.q_heads * a.latent_dim);
      attended_ = activation(a.q_heads * a.value_dim);
    }
    project(x, in, {{0, 1}}, attention_in_);
    const Tensor latent = in.columns(attention_in_, 1), c = latent.columns(0, a.latent_dim);
    backend_.rms_norm({c, weight("attention.latent_norm"), false, kLatentEps, c});
    const Tensor q_in = per_head(in.columns(attention_in_, 0), a.q_heads), q = per_head(q_rows_, a.q_heads);
    backend_.head_matmul(
        {q_in.columns(0, a.nope_dim), weight("attention.latent_k"), true, q.columns(0, a.latent_dim)});
    backend_.copy(q.columns(a.latent_dim, width), q_in.columns(a.nope_dim, a.head_dim));
    const Tensor k = per_head(latent, 1), sums = per_head(latents_, a.q_heads), o = per_head(attended_, a.q_heads);
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
  int layer_ = 0;
  std::string prefix_;
  double pending_ = 0;  // update_ waits to be added to the residual, times this
  Buffer residual_, normed_, update_, beside_;
  std::map<int64_t, Buffer> inner_;                                         // by width: a feed-forward part's stack
  Buffer route_logits_, route_weights_, route_experts_, shared_;            // moe
  Buffer linear_in_, conv_, z_, o_, q_, k_, alpha_, g_, beta_;              // linear
  Buffer attention_in_, q_rows_, attended_, latents_;                       // attention
  Buffer all_o_, all_q_, all_k_;                                            // of all ranks' heads
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
