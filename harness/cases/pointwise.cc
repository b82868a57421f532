// Operations without sums across elements, and gathers: one expression an element.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "harness/cases/op_cases.h"
#include "harness/cases/oracle.h"

namespace hypic::conformance {
namespace {

void add(Context& c) {
  for (const auto& [N, gap] : {std::pair<int64_t, int64_t>{37, 0}, {37, 3}, {48, 8}})
    for (const int64_t R : {0, 1, 65})
      for (const auto& factors : {std::pair{1.0, 1.0}, {0.5, -2.0}}) {
        const double alpha = factors.first, beta = factors.second;
        Trial t(c, 61);
        const Array x = t.normals({R, N}), y = t.normals({R, N});
        Array want = x;
        for (size_t i = 0; i < want.data.size(); ++i)
          want.data[i] = alpha * x.data[i] + beta * y.data[i];
        const Tensor sum = t.inout("x", x, gap);
        t.call([&](Backend& b) {
          b.add({.x = sum, .y = t.input("y", y, gap), .alpha = alpha, .beta = beta});
        });
        t.compare(str(R, " rows", gap ? ", apart, " : ", ", alpha, " x + ", beta, " y"), sum, want);
      }
}

void gate_mul(Context& c) {
  for (const Activation activation :
       {Activation::identity, Activation::silu, Activation::sigmoid, Activation::relu2})
    for (const auto& [D, gap] : {std::pair<int64_t, int64_t>{20, 0}, {20, 5}, {24, 8}}) {
      Trial t(c, 62);
      Array x = t.normals({33, 2, D}), gate = t.normals({33, 2, D}, 3);
      gate(0, 0, 0) = 60, gate(0, 0, 1) = -60;  // where exp alone would overflow in half
      Array want = x;
      for (size_t i = 0; i < want.data.size(); ++i)
        want.data[i] *= oracle::activate(gate.data[i], activation);
      const Tensor out = t.output("out", {33, 2, D}, gap);
      t.call([&](Backend& b) {
        b.gate_mul({.x = t.input("x", x, gap),
                    .gate = t.input("gate", gate, gap),
                    .activation = activation,
                    .out = out});
      });
      t.compare(str("activation ", static_cast<int>(activation), gap ? ", rows apart" : ""), out,
                want);
    }
  for (const int64_t D : {20, 24}) {
    Trial t(c, 68);
    const Array x = t.normals({33, D}), gate = t.normals({33, D}), by_row = t.normals({33, 1});
    Array alone = gate, rows = x;
    for (double& e : alone.data) e = oracle::activate(e, Activation::silu);
    for (int64_t r = 0; r < 33; ++r)
      for (int64_t d = 0; d < D; ++d) rows(r, d) *= oracle::activate(by_row(r, 0), Activation::sigmoid);
    const Tensor without_x = t.output("without x", {33, D}), in_place = t.inout("x", x);
    t.call([&](Backend& b) {
      b.gate_mul({.gate = t.input("gate", gate), .activation = Activation::silu, .out = without_x});
      b.gate_mul({.x = in_place,
                  .gate = t.input("a gate a row", by_row),
                  .activation = Activation::sigmoid,
                  .out = in_place});
    });
    t.compare(str("without x, ", D, " wide"), without_x, alone);
    t.compare(str("a gate a row, in place, ", D, " wide"), in_place, rows);
  }
}

void decay_gate(Context& c) {
  Trial t(c, 63);
  Array x = t.normals({35, 6}, 2);
  const double extremes[] = {-100, -30, 0, 30, 100, 500};
  for (int64_t h = 0; h < 6; ++h) x(0, h) = extremes[h];
  const Array A_log = rounded(t.draw().normals({6}), c.state()),
              dt_bias = rounded(t.draw().normals({6}), c.state());
  Array want = x;
  for (int64_t r = 0; r < 35; ++r)
    for (int64_t h = 0; h < 6; ++h)
      want(r, h) = -std::exp(A_log(h)) * oracle::softplus(x(r, h) + dt_bias(h));
  const Tensor out = t.gate_output("out", {35, 6});
  t.call([&](Backend& b) {
    b.decay_gate({.x = t.input("x", x),
                  .A_log = t.gate_input("A_log", A_log),
                  .dt_bias = t.gate_input("dt_bias", dt_bias),
                  .out = out});
  });
  const Tensor apart = t.gate_output("rows apart", {35, 6}, 2);
  t.call([&](Backend& b) {
    b.decay_gate({.x = t.input("x", x, 3),
                  .A_log = t.gate_input("A_log", A_log),
                  .dt_bias = t.gate_input("dt_bias", dt_bias),
                  .out = apart});
  });
  t.compare("softplus from −100 to 500", out, want);
  t.compare("rows apart", apart, want);
}

// A gate of each channel; the step as an output of its own, within limits.
void decay_steps(Context& c) {
  Trial t(c, 69);
  const Array x = t.normals({9, 3, 5}, 3), A_log = rounded(t.draw().normals({3}), c.state()),
              dt_bias = rounded(t.draw().normals({3, 5}), c.state());
  Array step = x, out = x;
  for (int64_t r = 0; r < 9; ++r)
    for (int64_t h = 0; h < 3; ++h)
      for (int64_t i = 0; i < 5; ++i) {
        step(r, h, i) = std::clamp(oracle::softplus(x(r, h, i) + dt_bias(h, i)), 0.05, 2.0);
        out(r, h, i) = -std::exp(A_log(h)) * step(r, h, i);
      }
  const Tensor got = t.gate_output("out", {9, 3, 5}), got_step = t.gate_output("step", {9, 3, 5});
  t.call([&](Backend& b) {
    b.decay_gate({.x = t.input("x", x),
                  .A_log = t.gate_input("A_log", A_log),
                  .dt_bias = t.gate_input("dt_bias", dt_bias),
                  .out = got,
                  .step = got_step,
                  .step_min = rounded(Array({1}, 0.05), c.state())(0),
                  .step_max = 2});
  });
  t.compare("log decay", got, out);
  t.compare("step", got_step, step);
}

void sigmoid(Context& c) {
  for (const double scale : {1.0, 2.0}) {
    Trial t(c, 64);
    Array x = t.normals({17, 9}, 4);
    x(0, 0) = 80, x(0, 1) = -80, x(1, 0) = 0;
    Array want = x;
    for (double& e : want.data) e = scale * oracle::sigmoid(e);
    const Tensor out = t.gate_output("out", {17, 9}, 2);
    t.call([&](Backend& b) { b.sigmoid({.x = t.input("x", x, 4), .out = out, .scale = scale}); });
    t.compare(str("−80 to 80, times ", scale), out, want);
  }
}

Array rows_of(const Array& table, const std::vector<int32_t>& index) {
  Array out({static_cast<int64_t>(index.size()), table[1]});
  for (size_t r = 0; r < index.size(); ++r) out.set_row(table.row(index[r]), r);
  return out;
}

const std::vector<std::vector<int32_t>> kIndices = {{}, {10}, {0, 10, 3, 3, 0, 7}};

void embedding(Context& c) {
  for (const std::vector<int32_t>& tokens : kIndices) {
    Trial t(c, 65);
    const Array table = t.normals({11, 19});
    Array want = rows_of(table, tokens);
    for (double& e : want.data) e *= 12;
    const Tensor out = t.output("out", {static_cast<int64_t>(tokens.size()), 19});
    t.call([&](Backend& b) {
      b.embedding({.tokens = t.index("tokens", tokens),
                   .table = t.input("table", table),
                   .out = out,
                   .scale = 12});
    });
    t.compare(str(tokens.size(), " tokens"), out, want);
  }
}

void gather_rows(Context& c) {
  for (const std::vector<int32_t>& rows : kIndices) {
    Trial t(c, 66);
    const Array x = t.normals({11, 19});
    const Tensor out = t.output("out", {static_cast<int64_t>(rows.size()), 19});
    t.call([&](Backend& b) {
      b.gather_rows({.x = t.input("x", x, 3), .rows = t.index("rows", rows), .out = out});
    });
    t.compare(str(rows.size(), " rows"), out, rows_of(x, rows));
  }
}

}  // namespace

std::vector<Case> pointwise_cases() {
  return {{"add/rows", "add", "", add},
          {"gate_mul/activations", "gate_mul", "", gate_mul},
          {"decay_gate/range", "decay_gate", "", decay_gate},
          {"decay_gate/steps", "decay_gate", "", decay_steps},
          {"sigmoid/range", "sigmoid", "", sigmoid},
          {"embedding/rows", "embedding", "", embedding},
          {"gather_rows/rows", "gather_rows", "", gather_rows}};
}

}  // namespace hypic::conformance
