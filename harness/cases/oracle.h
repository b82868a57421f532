// What several operations are made of, in float64 and to be checked by eye.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/backend.h"
#include "reference/families/array.h"

namespace hypic::conformance::oracle {

using reference::Array;

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

inline double activate(double x, Activation activation) {
  switch (activation) {
    case Activation::identity:
      return x;
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::sigmoid:
      return sigmoid(x);
    case Activation::relu2:
      return x > 0 ? x * x : 0;
  }
  return x;
}

// Vectors over the last axis, each divided by root(its sum of squares).
template <class Root>
Array divided(Array x, Root root) {
  const int64_t D = x.last();
  for (size_t at = 0; at < x.data.size(); at += D) {
    double squares = 0;
    for (int64_t i = 0; i < D; ++i) squares += x.data[at + i] * x.data[at + i];
    for (int64_t i = 0; i < D; ++i) x.data[at + i] /= root(squares);
  }
  return x;
}

inline Array l2_norm(const Array& x, double eps) {
  return divided(x, [&](double squares) { return std::sqrt(squares + eps); });
}

// weight [D], or [H, D] over x [R, H, D].
inline Array rms_norm(const Array& x, const Array& weight, bool plus_one, double eps) {
  const double D = static_cast<double>(x.last());
  Array out = divided(x, [&](double squares) { return std::sqrt(squares / D + eps); });
  for (size_t i = 0; i < out.data.size(); ++i)
    out.data[i] *= (plus_one ? 1 : 0) + weight.data[i % weight.data.size()];
  return out;
}

// x [R, H, D], NeoX pairs.
inline Array rope(const Array& x, const std::vector<int32_t>& positions, int rotary_dim,
                  double theta) {
  Array out = x;
  for (int64_t r = 0; r < x[0]; ++r)
    for (int64_t h = 0; h < x[1]; ++h)
      for (int i = 0; i < rotary_dim / 2; ++i) {
        const double angle = positions[r] * std::pow(theta, -2.0 * i / rotary_dim);
        const double a = x(r, h, i), b = x(r, h, i + rotary_dim / 2);
        out(r, h, i) = std::cos(angle) * a - std::sin(angle) * b;
        out(r, h, i + rotary_dim / 2) = std::sin(angle) * a + std::cos(angle) * b;
      }
  return out;
}

}  // namespace hypic::conformance::oracle
