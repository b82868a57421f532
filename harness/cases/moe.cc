// Routing and experts: a sort over the scores, and for each row and chosen expert three plain
// products.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "harness/cases/op_cases.h"
#include "harness/cases/oracle.h"

namespace hypic::conformance {
namespace {

struct Routing {
  int64_t E = 16, k = 4;
  RouteArgs::Score score = RouteArgs::Score::softmax;
  int groups = 1, kept_groups = 1;
  bool renormalise = true, bias = false;
  double scale = 1;
};

struct Routed {
  Array experts, weights;  // [R, k]
};

// By falling choice, the lowest index first among equals.
std::vector<int64_t> order_of(const std::vector<double>& choice) {
  std::vector<int64_t> order;
  for (size_t e = 0; e < choice.size(); ++e) order.push_back(static_cast<int64_t>(e));
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return choice[a] > choice[b]; });
  return order;
}

Routed routed(const Array& logits, const Array& bias, const Routing& r) {
  const int64_t R = logits[0], E = r.E, width = E / r.groups;
  Routed out{Array({R, r.k}), Array({R, r.k})};
  for (int64_t row = 0; row < R; ++row) {
    std::vector<double> score(E), choice(E);
    double sum = 0, chosen_sum = 0;
    for (int64_t e = 0; e < E; ++e)
      sum += score[e] = r.score == RouteArgs::Score::softmax ? std::exp(logits(row, e))
                                                             : oracle::sigmoid(logits(row, e));
    for (int64_t e = 0; e < E; ++e) {
      if (r.score == RouteArgs::Score::softmax) score[e] /= sum;
      choice[e] = score[e] + (r.bias ? bias(e) : 0);
    }
    std::vector<double> totals;  // of each group, its two best
    for (int g = 0; g < r.groups; ++g) {
      std::vector<double> group(choice.begin() + g * width, choice.begin() + (g + 1) * width);
      std::sort(group.begin(), group.end(), std::greater<>());
      totals.push_back(group[0] + (width > 1 ? group[1] : 0));
    }
    const std::vector<int64_t> groups = order_of(totals);
    for (int g = r.kept_groups; g < r.groups; ++g)
      for (int64_t e = 0; e < width; ++e) choice[groups[g] * width + e] = -INFINITY;
    const std::vector<int64_t> order = order_of(choice);
    for (int64_t j = 0; j < r.k; ++j) chosen_sum += score[order[j]];
    for (int64_t j = 0; j < r.k; ++j) {
      out.experts(row, j) = static_cast<double>(order[j]);
      out.weights(row, j) = r.scale * score[order[j]] / (r.renormalise ? chosen_sum : 1);
    }
  }
  return out;
}

void route_one(Context& c, const std::string& what, const Routing& r, const Array& logits,
               const Array& bias) {
  Trial t(c, 101);
  const int64_t R = logits[0];
  const Routed want = routed(logits, bias, r);
  const Tensor experts = t.index_output("experts", {R, r.k}),
               weights = t.gate_output("weights", {R, r.k});
  t.call([&](Backend& b) {
    b.route({.logits = t.gate_input("logits", logits),
             .bias = r.bias ? t.gate_input("bias", bias) : Tensor(),
             .score = r.score,
             .groups = r.groups,
             .kept_groups = r.kept_groups,
             .renormalise = r.renormalise,
             .scale = r.scale,
             .experts = experts,
             .weights = weights});
  });
  c.identical(what + ", experts", t.read(experts), want.experts);
  t.compare(what + ", weights", weights, want.weights);
}

void route(Context& c) {
  Draw draw(102);
  const Routing kinds[] = {{},
                           {.k = 1, .renormalise = false},
                           {.E = 256, .k = 8},
                           {.score = RouteArgs::Score::sigmoid, .bias = true, .scale = 2.5},
                           {.E = 64,
                            .k = 6,
                            .score = RouteArgs::Score::sigmoid,
                            .groups = 8,
                            .kept_groups = 3,
                            .bias = true},
                           {.E = 256,
                            .k = 8,
                            .score = RouteArgs::Score::sigmoid,
                            .groups = 8,
                            .kept_groups = 4,
                            .bias = true},
                           {.E = 40, .k = 3},
                           {.E = 600, .k = 5},
                           {.k = 16}};
  for (const Routing& r : kinds)
    for (const int64_t R : {0, 1, 33})
      route_one(c, str(r.k, " of ", r.E, ", ", R, " rows, groups ", r.groups), r,
                rounded(draw.normals({R, r.E}, 2), c.state()),
                rounded(draw.normals({r.E}, 0.1), c.state()));
}

void route_ties(Context& c) {
  Array logits({3, 16});  // all equal · two winners and a tie for the rest · a tie at the cut
  logits(1, 9) = logits(1, 3) = 2;
  for (const int64_t e : {2, 5, 11, 12, 15}) logits(2, e) = 1;
  route_one(c, "ties", {}, logits, {});
}

struct Mlp {
  int64_t R, k, E, N, I;
  bool gated = true;
  Activation activation = Activation::silu;
};

// For each row and chosen expert: down · (activation(gate x) ⊙ up x).
Array mixed(const Mlp& m, const Array& x, const Array& experts, const Array& weights,
            const Array& up, const Array& down) {
  Array out({m.R, m.N});
  for (int64_t r = 0; r < m.R; ++r)
    for (int64_t j = 0; j < m.k; ++j) {
      const auto e = static_cast<int64_t>(experts(r, j));
      for (int64_t i = 0; i < m.I; ++i) {
        double first = 0, second = 0;
        for (int64_t n = 0; n < m.N; ++n) {
          first += up(e, i, n) * x(r, n);
          if (m.gated) second += up(e, m.I + i, n) * x(r, n);
        }
        const double inner = oracle::activate(first, m.activation) * (m.gated ? second : 1);
        for (int64_t n = 0; n < m.N; ++n) out(r, n) += weights(r, j) * down(e, n, i) * inner;
      }
    }
  return out;
}

void experts_of(Context& c, const std::vector<Mlp>& sizes, int64_t gap) {
  for (const Mlp& m : sizes) {
    Trial t(c, 103);
    const Array x = t.normals({m.R, m.N});
    Array up = t.normals({m.E, (m.gated ? 2 : 1) * m.I, m.N}, 0.2), down = t.normals({m.E, m.N, m.I}, 0.2);
    if (m.k < m.E)  // without a row, below: nobody may read it
      for (Array* w : {&up, &down}) std::fill(w->data.end() - w->product(1), w->data.end(), std::nan(""));
    Array weights = rounded(t.draw().normals({m.R, m.k}), c.state());
    std::vector<int32_t> index(m.R * m.k);  // no expert twice; one may stay without a row
    Array chosen({m.R, m.k});
    for (int64_t r = 0; r < m.R; ++r)
      for (int64_t j = 0; j < m.k; ++j)
        chosen(r, j) = index[r * m.k + j] = static_cast<int32_t>((r * r + j) % (m.k < m.E ? m.E - 1 : m.E));
    const Tensor out = t.output("out", {m.R, m.N});
    t.call([&](Backend& b) {
      b.experts({.x = t.input("x", x, gap),
                 .experts = t.index("experts", index).reshape({m.R, m.k}),
                 .weights = t.gate_input("weights", weights),
                 .up = t.input("up", up),
                 .down = t.input("down", down),
                 .gated = m.gated,
                 .activation = m.activation,
                 .out = out});
    });
    t.compare(str(m.R, " rows to ", m.k, " of ", m.E, m.gated ? "" : ", ungated"), out,
              mixed(m, x, chosen, weights, up, down));
  }
}

void experts(Context& c) {
  experts_of(c, {{33, 2, 5, 24, 20}, {1, 5, 5, 16, 12}, {0, 2, 5, 16, 12},
                 {65, 1, 3, 40, 8, false, Activation::relu2}}, 3);
}

// Sizes in whole pieces of 16 bytes, which kernels for tensor cores ask for: few rows an expert, and many, and that of
// as many experts as occupy a GPU. Of thousands of rows each is wide, for chance makes the worst of many short rows
// twice as far off as all together (rounded as kernels do, 40 wide: 5.8e-3, all 2.9e-3).
void experts_aligned(Context& c) {
  experts_of(c, {{1, 8, 32, 72, 40}, {37, 4, 16, 64, 24}, {130, 2, 3, 136, 72}, {300, 1, 2, 64, 40},
                 {129, 2, 4, 72, 136, false, Activation::relu2}, {3000, 2, 67, 136, 40},
                 {6000, 1, 67, 136, 72, false, Activation::relu2}}, 8);
}

// With a shared expert of `shared` inner activations, where that is more than 0, and `row_gate` of it.
void moe_of(Context& c, const Mlp& m, int64_t shared, bool row_gate) {
  const Routing r{.E = m.E, .k = m.k};
  Trial t(c, 104);
  const int64_t parts = m.gated ? 2 : 1, M = parts * shared + 8;
  const Array x = t.normals({m.R, m.N}), router = t.normals({m.E, m.N}),
              up = t.normals({m.E, parts * m.I, m.N}, 0.2), down = t.normals({m.E, m.N, m.I}, 0.2),
              in = t.normals({M, m.N}, 0.2), shared_down = t.normals({m.N, shared}, 0.2);
  Array logits({m.R, m.E});
  for (int64_t row = 0; row < m.R; ++row)
    for (int64_t e = 0; e < m.E; ++e)
      for (int64_t n = 0; n < m.N; ++n) logits(row, e) += router(e, n) * x(row, n);
  const Routed way = routed(logits, {}, r);
  Array want = mixed(m, x, way.experts, way.weights, up, down);
  for (int64_t row = 0; row < m.R && shared > 0; ++row) {
    const auto projected = [&](int64_t i) {
      double sum = 0;
      for (int64_t n = 0; n < m.N; ++n) sum += in(i, n) * x(row, n);
      return sum;
    };
    const double gate = row_gate ? oracle::activate(projected(parts * shared), Activation::sigmoid) : 1;
    for (int64_t i = 0; i < shared; ++i) {
      const double inner = oracle::activate(projected(m.gated ? shared + i : i), m.activation) *
                           (m.gated ? projected(i) : 1);
      for (int64_t n = 0; n < m.N; ++n) want(row, n) += gate * shared_down(n, i) * inner;
    }
  }
  const Tensor xt = t.input("x", x), logits_t = t.gate_output("logits", {m.R, m.E}),
               chosen = t.index_output("experts", {m.R, m.k}),
               weights = t.gate_output("weights", {m.R, m.k}), out = t.output("out", {m.R, m.N});
  MoeArgs args{.router = t.input("router", router),
               .route = {.logits = logits_t,
                         .score = r.score,
                         .renormalise = true,
                         .experts = chosen,
                         .weights = weights},
               .experts = {.x = xt,
                           .experts = chosen,
                           .weights = weights,
                           .up = t.input("up", up),
                           .down = t.input("down", down),
                           .gated = m.gated,
                           .activation = m.activation,
                           .out = out}};
  if (shared > 0) {
    const Tensor projected = t.output("projected", {m.R, M});
    args.shared = {.x = xt,
                   .in = t.input("in", in),
                   .projected = projected,
                   .up = projected.columns(0, shared),
                   .gate = m.gated ? projected.columns(shared, 2 * shared) : Tensor(),
                   .row_gate = row_gate ? projected.columns(parts * shared, parts * shared + 1) : Tensor(),
                   .activation = m.activation,
                   .down = t.input("shared_down", shared_down),
                   .part = t.output("part", {m.R, m.N}),
                   .out = out};
  }
  t.call([&](Backend& b) { b.moe(args); });
  const std::string what = str(m.R, " rows to ", m.k, " of ", m.E, m.gated ? "" : ", ungated",
                               shared > 0 ? ", and a shared one" : "", shared > 0 && row_gate ? " with a gate" : "");
  c.identical(what + ", experts", t.read(chosen), way.experts);
  t.compare(what + ", out", out, want);
}

void moe(Context& c) { moe_of(c, {17, 3, 8, 24, 20}, 0, false); }

// Few rows in whole pieces of 16 bytes go through fewer kernels than many, or others.
void moe_shared(Context& c) {
  for (const int64_t R : {1, 5, 16, 17})
    for (const bool row_gate : {false, true}) {
      moe_of(c, {R, 3, 8, 24, 20}, 12, row_gate);
      moe_of(c, {R, 4, 40, 80, 64}, 72, row_gate);
    }
  for (const int64_t R : {1, 9}) moe_of(c, {R, 4, 40, 72, 40, false, Activation::relu2}, 64, false);
}

}  // namespace

std::vector<Case> moe_cases() {
  return {{"route/kinds", "route", "", route},
          {"route/ties", "route", "", route_ties},
          {"experts/kinds", "experts", "", experts},
          {"experts/aligned", "experts", "", experts_aligned},
          {"moe/rows", "moe", "", moe},
          {"moe/shared", "moe", "", moe_shared}};
}

}  // namespace hypic::conformance
