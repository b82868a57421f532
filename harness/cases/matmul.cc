// out = x · wᵀ: three loops in float64.
#include <cmath>

#include "core/check.h"
#include "harness/cases/op_cases.h"

namespace hypic::conformance {
namespace {

Array product(const Array& x, const Array& w) {
  Array out({x[0], w[0]});
  for (int64_t r = 0; r < x[0]; ++r)
    for (int64_t n = 0; n < w[0]; ++n)
      for (int64_t k = 0; k < x[1]; ++k) out(r, n) += x(r, k) * w(n, k);
  return out;
}

double norm(const double* x, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  return std::sqrt(squares);
}

// Of each row: the size that products of such factors have. A row that happens to cancel is not
// computed to its own size.
std::vector<double> product_norms(const Array& x, const Array& w) {
  const int64_t K = x[1];
  std::vector<double> norms;
  for (int64_t r = 0; r < x[0]; ++r)
    norms.push_back(norm(&x.data[r * K], K) * norm(w.data.data(), w[0] * K) / std::sqrt(K));
  return norms;
}

void run(Context& c, int64_t R, int64_t N, int64_t K, int64_t gap) {
  Trial t(c, 51 + R);
  const Array x = t.normals({R, K}), w = t.normals({N, K});
  const Tensor out = t.output("out", {R, N}, gap);
  t.call(
      [&](Backend& b) { b.matmul({.x = t.input("x", x, gap), .w = t.input("w", w), .out = out}); });
  t.compare(str(R, " × ", N, " × ", K, gap ? ", rows apart" : ""), out, product(x, w),
            product_norms(x, w));
}

void sizes(Context& c) {
  for (const int64_t R : {0, 1, 2, 31, 64, 65})
    for (const int64_t N : {1, 3, 64, 130})
      for (const int64_t K : {1, 7, 64, 200}) run(c, R, N, K, 0);
  run(c, 2, 5, 4096, 0);
}

void strided(Context& c) {
  for (const int64_t gap : {1, 8, 200}) run(c, 33, 20, 48, gap);
}

// Logits of a router: scaled, and in the state dtype.
void scaled(Context& c) {
  Trial t(c, 58);
  const Array x = t.normals({9, 40}), w = t.normals({7, 40});
  Array want = product(x, w);
  for (double& e : want.data) e *= 0.25;
  const Tensor out = t.gate_output("out", {9, 7});
  t.call([&](Backend& b) {
    b.matmul({.x = t.input("x", x), .w = t.input("w", w), .out = out, .scale = 0.25});
  });
  t.compare("a quarter, in the state dtype", out, want);
}

// Each head its own matrix, or its transpose.
void heads(Context& c) {
  for (const bool transposed : {false, true})
    for (const int64_t R : {0, 1, 33}) {
      const int64_t H = 3, N = 20, K = 24;
      Trial t(c, 59);
      const Array x = t.normals({R, H, K}),
                  w = t.normals({H, transposed ? K : N, transposed ? N : K});
      Array want({R, H, N});
      for (int64_t r = 0; r < R; ++r)
        for (int64_t h = 0; h < H; ++h)
          for (int64_t n = 0; n < N; ++n)
            for (int64_t k = 0; k < K; ++k)
              want(r, h, n) += x(r, h, k) * (transposed ? w(h, k, n) : w(h, n, k));
      const Tensor out = t.output("out", {R, H, N}, 6);
      t.call([&](Backend& b) {
        b.head_matmul(
            {.x = t.input("x", x, 5), .w = t.input("w", w), .transposed = transposed, .out = out});
      });
      t.compare(str(R, " rows", transposed ? ", transposed" : ""), out, want);
    }
}

// A row alone, and the same row within a batch; beside a row of NaN.
void batch(Context& c) {
  Trial t(c, 57);
  const Array x = t.normals({65, 96}), w = t.normals({70, 96});
  const Tensor all = t.output("out", {65, 70});
  const Tensor wt = t.input("w", w);
  t.call([&](Backend& b) { b.matmul({.x = t.input("x", x), .w = wt, .out = all}); });
  const Array whole = t.read(all);
  for (const int64_t r : {0, 31, 64}) {
    Array row({1, 96}), want({1, 70});
    row.set_row(x.row(r), 0);
    want.set_row(whole.row(r), 0);
    const Tensor out = t.output("out", {1, 70});
    t.call([&](Backend& b) { b.matmul({.x = t.input("x", row), .w = wt, .out = out}); });
    c.same(str("row ", r, " alone and in a batch"), t.read(out), want, 0);
  }
  Array spoilt = x, want = whole;
  for (int64_t k = 0; k < 96; ++k) spoilt(40, k) = std::nan("");
  for (int64_t n = 0; n < 70; ++n) want(40, n) = std::nan("");
  const Tensor out = t.output("out", {65, 70});
  t.call([&](Backend& b) { b.matmul({.x = t.input("x", spoilt), .w = wt, .out = out}); });
  c.same("beside a row of NaN", t.read(out), want, 0);
}

}  // namespace

std::vector<Case> matmul_cases() {
  return {{"matmul/sizes", "matmul", "", sizes},
          {"matmul/strided", "matmul", "", strided},
          {"matmul/scaled", "matmul", "", scaled},
          {"matmul/batch", "matmul", "", batch},
          {"head_matmul/heads", "head_matmul", "", heads}};
}

}  // namespace hypic::conformance
