// Composites: whatever a backend fuses gives what its own primitives give one after another, and
// those have an oracle of their own. Here the oracle is written out again in float64.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "harness/cases/op_cases.h"
#include "harness/cases/oracle.h"

namespace hypic::conformance {
namespace {

// Every third row so small that eps counts; every one has a size of its own in the comparison.
Array with_small_rows(Array x) {
  for (int64_t r = 0; r < x[0]; r += 3)
    for (int64_t i = 0; i < x.product(1); ++i) x.data[r * x.product(1) + i] *= 0x1p-10;
  return x;
}

void add_rms_norm_of(Context& c, int64_t R, int64_t N, bool with_update, bool plus_one) {
  Trial t(c, 91);
  const Array x = with_small_rows(t.normals({R, N})), update = with_small_rows(t.normals({R, N})), w = t.normals({N});
  Array sum = x;
  if (with_update)
    for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += 0.5 * update.data[i];
  const Tensor residual = t.inout("residual", x), out = t.output("out", {R, N});
  t.call([&](Backend& b) {
    b.add_rms_norm({.residual = residual,
                    .update = with_update ? t.input("update", update) : Tensor(),
                    .weight = t.input("weight", w),
                    .plus_one = plus_one,
                    .eps = 1e-6,
                    .out = out,
                    .scale = 0.5});
  });
  const std::string what = str(R, " × ", N, with_update ? ", with an update" : "", plus_one ? ", 1 + weight" : "");
  t.compare(what + ", residual", residual, sum);
  t.compare(what + ", out", out, oracle::rms_norm(sum, w, plus_one, 1e-6));
}

void add_rms_norm(Context& c) {
  for (const int64_t N : {70, 72, 2304})  // the latter two in whole pieces of 16 bytes
    for (const bool with_update : {false, true})
      for (const bool plus_one : {false, true}) add_rms_norm_of(c, 33, N, with_update, plus_one);
  for (const int64_t R : {0, 1}) add_rms_norm_of(c, R, 72, true, false);
}

void add_gated_of(Context& c, int64_t R, int64_t N, int64_t gap, Activation activation) {
  Trial t(c, 95);
  const Array x = t.normals({R, N}), y = t.normals({R, N}), gate = t.normals({R, 1});
  Array want = x;
  for (int64_t r = 0; r < R; ++r)
    for (int64_t i = 0; i < N; ++i) want(r, i) += oracle::activate(gate(r, 0), activation) * y(r, i);
  const Tensor sum = t.inout("x", x, gap), part = t.inout("y", y, gap);
  t.call([&](Backend& b) {
    b.add_gated({.x = sum, .y = part, .gate = t.input("gate", gate, gap), .activation = activation});
  });
  t.compare(str(R, " × ", N, ", rows ", N + gap, " apart, activation ", static_cast<int>(activation)), sum, want);
}

void add_gated(Context& c) {
  for (const int64_t N : {70, 72, 2304})  // the latter two in whole pieces of 16 bytes
    for (const int64_t gap : {0, 8})
      for (const Activation activation : {Activation::sigmoid, Activation::silu})
        add_gated_of(c, 33, N, gap, activation);
  for (const int64_t R : {0, 1}) add_gated_of(c, R, 72, 8, Activation::sigmoid);
}

void gated_norm_of(Context& c, int64_t R, int64_t D, int64_t gap) {
  for (const bool gate_first : {false, true})
    for (const Activation activation : {Activation::silu, Activation::sigmoid})
      for (const int64_t heads : {-1, 0, 3}) {  // no norm, weight [D], [H, D]
        Trial t(c, 92);
        const Array x = with_small_rows(t.normals({R, 3, D})), gate = t.normals({R, 3, D});
        const Array w = heads > 0 ? t.normals({heads, D}) : t.normals({D});
        const auto norm = [&](const Array& y) {
          return heads < 0 ? y : oracle::rms_norm(y, w, false, 1e-5);
        };
        const auto gated = [&](Array y) {
          for (size_t i = 0; i < y.data.size(); ++i)
            y.data[i] *= oracle::activate(gate.data[i], activation);
          return y;
        };
        const Array want = gate_first ? norm(gated(x)) : gated(norm(x));
        const Tensor out = t.output("out", {R, 3, D});
        t.call([&](Backend& b) {
          b.gated_norm({.x = t.input("x", x),
                        .weight = heads < 0 ? Tensor() : t.input("weight", w),
                        .eps = 1e-5,
                        .gate = t.input("gate", gate, gap),
                        .activation = activation,
                        .out = out,
                        .gate_first = gate_first});
        });
        t.compare(str(gate_first ? "gate, then norm" : "norm, then gate", ", activation ",
                      static_cast<int>(activation),
                      heads < 0   ? ", no norm"
                      : heads > 0 ? ", weight of each head"
                                  : "",
                      ", ", R, " rows, ", D, " wide"),
                  out, want);
      }
}

void gated_norm(Context& c) {
  gated_norm_of(c, 17, 24, 4);
  for (const int64_t D : {64, 128, 256}) gated_norm_of(c, 17, D, 8);  // in whole pieces of 16 bytes
  for (const int64_t R : {0, 1}) gated_norm_of(c, R, 64, 8);
}

// One fresh chain over all rows, K and V into its pages.
ChainTable one_chain(int32_t rows) {
  ChainTable table;
  Chain chain;
  chain.state = 0;
  chain.item_end = 1;
  chain.row_end = rows;
  table.chains = {chain};
  ChainItem item;
  item.end = rows;
  table.items = {item};
  for (int32_t r = 0; r < rows; ++r) {
    table.tokens.push_back(0);
    table.positions.push_back(r);
    table.chain_of.push_back(0);
    if (r % table.page_size == 0) table.pages.push_back(r / table.page_size);
  }
  return table;
}

// `norms`: of q and k; otherwise, as Mamba-2 calls it, no beta but the step of the decay.
void conv_gates_of(Context& c, int64_t R, int64_t dk, int64_t dv, bool norms, int64_t gap) {
  const int64_t Hk = 2, Hv = 4, C = 2 * Hk * dk + Hv * dv;
  Trial t(c, 93);
  const std::string what = str(R, " rows, ", C, " channels", norms ? ", norms" : "", ", ");
  const Array x = t.normals({R, C}), w = t.normals({C, 4}), alpha = t.normals({R, Hv}),
              logit = t.normals({R, Hv}), A_log = rounded(t.draw().normals({Hv}), c.state()),
              dt_bias = rounded(t.draw().normals({Hv}), c.state());
  Array conv({R, C}), q({R, Hk, dk}), k({R, Hk, dk}), v({R, Hv * dv}), g({R, Hv}), step({R, Hv}), beta({R, Hv});
  for (int64_t r = 0; r < R; ++r) {
    for (int64_t i = 0; i < C; ++i) {
      double sum = 0;
      for (int64_t j = std::max<int64_t>(0, 3 - r); j < 4; ++j) sum += w(i, j) * x(r - 3 + j, i);
      conv(r, i) = oracle::activate(sum, Activation::silu);
    }
    for (int64_t i = 0; i < Hk * dk; ++i) {
      q.data[r * Hk * dk + i] = conv(r, i);
      k.data[r * Hk * dk + i] = conv(r, Hk * dk + i);
    }
    for (int64_t i = 0; i < Hv * dv; ++i) v(r, i) = conv(r, 2 * Hk * dk + i);
    for (int64_t h = 0; h < Hv; ++h) {
      step(r, h) = std::clamp(oracle::softplus(alpha(r, h) + dt_bias(h)), 0.1, 2.0);
      g(r, h) = -std::exp(A_log(h)) * step(r, h);
      beta(r, h) = oracle::activate(logit(r, h), Activation::sigmoid);
    }
  }
  const Tensor conv_out = t.output("conv.out", {R, C}, gap), q_out = t.output("q", {R, Hk, dk}),
               k_out = t.output("k", {R, Hk, dk}), g_out = t.gate_output("g", {R, Hv}),
               step_out = t.gate_output("step", {R, Hv}), beta_out = t.gate_output("beta", {R, Hv}),
               window = t.output("window", {1, 3, C}), tail = t.output("tail", {1, 3, C});
  const ChainTable table = one_chain(static_cast<int32_t>(R));
  t.call([&](Backend& b) {
    b.begin(table);
    b.conv_gates({.conv = {.x = t.input("x", x, gap),
                           .w = t.input("w", w),
                           .activation = Activation::silu,
                           .window = window,
                           .tail = tail,
                           .out = conv_out},
                  .key_heads = static_cast<int>(Hk),
                  .key_dim = static_cast<int>(dk),
                  .l2_eps = 1e-6,
                  .q = norms ? q_out : Tensor(),
                  .k = norms ? k_out : Tensor(),
                  .decay = {.x = t.input("alpha", alpha, gap),
                            .A_log = t.gate_input("A_log", A_log),
                            .dt_bias = t.gate_input("dt_bias", dt_bias),
                            .out = g_out,
                            .step = norms ? Tensor() : step_out,
                            .step_min = 0.1,
                            .step_max = 2},
                  .beta = {.x = norms ? t.input("logit", logit, gap) : Tensor(), .out = beta_out}});
  });
  if (norms) {
    const Array got = t.read(conv_out);
    Array got_v({R, Hv * dv});
    for (int64_t r = 0; r < R; ++r)
      for (int64_t i = 0; i < Hv * dv; ++i) got_v(r, i) = got(r, 2 * Hk * dk + i);
    c.compare(what + "v", got_v, v, 0);
    t.compare(what + "q", q_out, oracle::l2_norm(q, 1e-6));
    t.compare(what + "k", k_out, oracle::l2_norm(k, 1e-6));
    t.compare(what + "beta", beta_out, beta);
  } else {
    t.compare(what + "conv.out", conv_out, conv);
    t.compare(what + "step", step_out, step);
  }
  t.compare(what + "g", g_out, g);
}

void conv_gates(Context& c) {
  for (const bool norms : {true, false}) {
    conv_gates_of(c, 33, 8, 12, norms, 0);
    conv_gates_of(c, 33, 6, 7, norms, 3);
    conv_gates_of(c, 150, 64, 32, norms, 16);  // several tiles of rows, heads of several pieces of 16 bytes
    conv_gates_of(c, 5, 128, 40, norms, 0);
  }
}

// A chain of `rows` tokens in a row, one after another; every other one is fresh.
ChainTable chains_of(const std::vector<int32_t>& rows) {
  ChainTable table;
  for (int32_t i = 0; i < static_cast<int32_t>(rows.size()); ++i) {
    Chain chain;
    chain.item_begin = i;
    chain.item_end = i + 1;
    chain.row_begin = table.row_count();
    chain.row_end = chain.row_begin + rows[i];
    chain.state = i;
    chain.fresh = i % 2 == 1;
    chain.kv_begin = chain.fresh ? 0 : 7;
    ChainItem item;
    item.begin = chain.row_begin;
    item.end = chain.row_end;
    table.chains.push_back(chain);
    table.items.push_back(item);
    for (int32_t r = 0; r < rows[i]; ++r) {
      table.tokens.push_back(0);
      table.positions.push_back(chain.kv_begin + r);
      table.chain_of.push_back(i);
    }
  }
  return table;
}

// Heads of D dims by the gated delta rule, after states and windows that the chains have.
void gated_linear_attention_of(Context& c, const std::vector<int32_t>& rows, int64_t Hk, int64_t Hv, int64_t D) {
  const ChainTable table = chains_of(rows);
  const int64_t R = table.row_count(), S = static_cast<int64_t>(rows.size()), C = (2 * Hk + Hv) * D;
  Trial t(c, 96);
  const Array x = t.normals({R, C}), w = t.normals({C, 4}, 0.5), z = t.normals({R, Hv, D}), alpha = t.normals({R, Hv}),
              logit = t.normals({R, Hv}), weight = t.normals({D}),
              A_log = rounded(t.draw().normals({Hv}), c.state()),
              dt_bias = rounded(t.draw().normals({Hv}), c.state()), old_window = t.normals({S, 3, C});
  Array old_state = t.draw().normals({S, Hv, D, D});
  for (double& value : old_state.data) value *= 0.3;
  old_state = rounded(old_state, c.state());
  Array state = old_state, window = old_window, read({R, Hv, D});
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  for (const Chain& chain : table.chains) {
    const int64_t s = chain.state;
    if (chain.fresh) {
      std::fill_n(window.data.begin() + s * 3 * C, 3 * C, 0.0);
      std::fill_n(state.data.begin() + s * Hv * D * D, Hv * D * D, 0.0);
    }
    for (int64_t r = chain.row_begin; r < chain.row_end; ++r) {
      Array qkv({1, 2 * Hk + Hv, D});
      for (int64_t i = 0; i < C; ++i) {
        double sum = w(i, 3) * x(r, i);
        for (int64_t j = 0; j < 3; ++j) sum += w(i, j) * window(s, j, i);
        qkv.data[i] = oracle::activate(sum, Activation::silu);
        for (int64_t j = 0; j < 2; ++j) window(s, j, i) = window(s, j + 1, i);
        window(s, 2, i) = x(r, i);
      }
      const Array normed = oracle::l2_norm(qkv, 1e-6);
      for (int64_t h = 0; h < Hv; ++h) {
        const int64_t kh = h / (Hv / Hk);
        const double decay = std::exp(-std::exp(A_log(h)) * oracle::softplus(alpha(r, h) + dt_bias(h))),
                     beta = oracle::activate(logit(r, h), Activation::sigmoid);
        for (int64_t j = 0; j < D; ++j) {
          double old = 0;
          for (int64_t i = 0; i < D; ++i) old += decay * state(s, h, i, j) * normed(0, Hk + kh, i);
          const double d = beta * (qkv(0, 2 * Hk + h, j) - old);
          for (int64_t i = 0; i < D; ++i) {
            double& at = state(s, h, i, j);
            at = decay * at + normed(0, Hk + kh, i) * d;
            read(r, h, j) += scale * normed(0, kh, i) * at;
          }
        }
      }
    }
  }
  Array want = oracle::rms_norm(read, weight, false, 1e-6);
  for (size_t i = 0; i < want.data.size(); ++i) want.data[i] *= oracle::activate(z.data[i], Activation::silu);

  const Tensor conv = t.output("conv.out", {R, C}), q = t.output("q", {R, Hk, D}), k = t.output("k", {R, Hk, D}),
               g = t.gate_output("g", {R, Hv}), beta = t.gate_output("beta", {R, Hv}), o = t.output("o", {R, Hv, D}),
               states = t.gate_inout("state", old_state), windows = t.inout("window", old_window),
               tail = t.output("tail", {1, 3, C}), T = t.gate_output("T", {1, Hv, D * D}),
               U = t.gate_output("U", {1, Hv, D * D});
  t.call([&](Backend& b) {
    b.begin(table);
    b.gated_linear_attention(
        {.inputs = {.conv = {.x = t.input("x", x, 8),
                             .w = t.input("w", w),
                             .activation = Activation::silu,
                             .window = windows,
                             .tail = tail,
                             .out = conv},
                    .key_heads = static_cast<int>(Hk),
                    .key_dim = static_cast<int>(D),
                    .l2_eps = 1e-6,
                    .q = q,
                    .k = k,
                    .decay = {.x = t.input("alpha", alpha, 8),
                              .A_log = t.gate_input("A_log", A_log),
                              .dt_bias = t.gate_input("dt_bias", dt_bias),
                              .out = g},
                    .beta = {.x = t.input("logit", logit, 8), .out = beta}},
         .attention = {.decay = Decay::scalar,
                       .update = Update::delta,
                       .readout = Readout::plain,
                       .scale = scale,
                       .q = q,
                       .k = k,
                       .v = conv.columns(2 * Hk * D, C).reshape({R, Hv, D}),
                       .g = g,
                       .beta = beta,
                       .state = states,
                       .operators = {.kind = OperatorKind::dense,
                                     .T = T.reshape({1, Hv, D, D}),
                                     .U = U.reshape({1, Hv, D, D})},
                       .o = o},
         .norm = {.x = o,
                  .weight = t.input("weight", weight),
                  .eps = 1e-6,
                  .gate = t.input("z", z, 8),
                  .activation = Activation::silu,
                  .out = o}});
  });
  const std::string what = str(S, " chains of ", R, " rows, ", Hk, " and ", Hv, " heads of ", D, ", ");
  t.compare(what + "o", o, want);
  t.compare(what + "state", states, state);
  t.compare(what + "window", windows, window);
}

void gated_linear_attention(Context& c) {
  gated_linear_attention_of(c, {1, 1, 1}, 1, 2, 8);
  for (const std::vector<int32_t>& rows : {std::vector<int32_t>{1}, {1, 1, 1}, {3, 1}}) {
    gated_linear_attention_of(c, rows, 2, 4, 128);
    gated_linear_attention_of(c, rows, 1, 1, 128);
  }
}

enum class Weights { each_head, all_heads, none };

// x [R, H, D] normalised by head, or all heads of a row as one vector.
Array normalised(const Array& x, const Array& weight, Weights weights) {
  if (weights == Weights::none) return x;
  Array rows = x;
  if (weights == Weights::all_heads) rows.shape = {x[0], x.product(1)};
  Array out = oracle::rms_norm(rows, weight, true, 1e-6);
  out.shape = x.shape;
  return out;
}

void qk_norm_append_one(Context& c, const std::string& what, Weights weights, int64_t D, int rotary_dim) {
  const int64_t R = 20, Hq = 4, Hk = 2;
  Trial t(c, 94);
  const bool all = weights == Weights::all_heads;
  const Array q = t.normals({R, Hq, D}), k = t.normals({R, Hk, D}), v = t.normals({R, Hk, D}),
              qw = t.normals({all ? Hq * D : D}), kw = t.normals({all ? Hk * D : D});
  const auto weight = [&](const char* name, const Array& w) {
    return weights == Weights::none ? Tensor() : t.input(name, w);
  };
  const ChainTable table = one_chain(R);
  const Array want_k = oracle::rope(normalised(k, kw, weights), table.positions, rotary_dim, 1e4);
  Array k_pages({2, 16, Hk, D}, std::nan("")), v_pages = k_pages;
  std::copy(want_k.data.begin(), want_k.data.end(), k_pages.data.begin());
  std::copy(v.data.begin(), v.data.end(), v_pages.data.begin());
  const Tensor kp = t.output("k_pages", {2, 16, Hk, D}), vp = t.output("v_pages", {2, 16, Hk, D}),
               q_out = t.output("q_out", {R, Hq, D}), k_out = t.output("k_out", {R, Hk, D});
  t.call([&](Backend& b) {
    b.begin(table);
    b.qk_norm_append({.q = t.input("q", q, D == 24 ? 9 : 8),
                      .k = t.input("k", k),
                      .v = t.input("v", v),
                      .q_weight = weight("q_weight", qw),
                      .k_weight = weight("k_weight", kw),
                      .plus_one = true,
                      .eps = 1e-6,
                      .positions = t.index("positions", table.positions),
                      .rotary_dim = rotary_dim,
                      .theta = 1e4,
                      .k_pages = kp,
                      .v_pages = vp,
                      .q_out = q_out,
                      .k_out = k_out});
  });
  t.compare(what + ", q", q_out, normalised(q, qw, weights));
  t.compare(what + ", k", k_out, want_k);
  t.compare(what + ", K in the pages", kp, k_pages);
  t.compare(what + ", V in the pages", vp, v_pages);
}

void qk_norm_append(Context& c) {
  for (const auto& [D, rotary_dim] : {std::pair{24, 8}, {64, 64}, {128, 32}, {256, 64}, {256, 0}}) {
    const std::string what = str(D, " wide, ", rotary_dim, " rotated, ");
    qk_norm_append_one(c, what + "heads alone", Weights::each_head, D, rotary_dim);
    qk_norm_append_one(c, what + "heads together", Weights::all_heads, D, rotary_dim);
    qk_norm_append_one(c, what + "no norm", Weights::none, D, rotary_dim);
  }
}

}  // namespace

std::vector<Case> composite_cases() {
  return {{"add_rms_norm/rows", "add_rms_norm", "", add_rms_norm},
          {"add_gated/rows", "add_gated", "", add_gated},
          {"gated_norm/orders", "gated_norm", "", gated_norm},
          {"conv_gates/inputs", "conv_gates", "", conv_gates},
          {"gated_linear_attention/rows", "gated_linear_attention", "", gated_linear_attention},
          {"qk_norm_append/rows", "qk_norm_append", "", qk_norm_append}};
}

}  // namespace hypic::conformance
