// Rotary position embedding (RoFormer, arXiv 2104.09864), NeoX pairing.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/backend.h"

namespace hypic::reference {

// The rotation by an integer distance: angles in float64, sine and cosine rounded once to T. In float32
// the angle itself would be off by 2e-3 rad at 32k positions.
template <class T>
class Rotation {
 public:
  Rotation(int64_t distance, int rotary_dim, double theta) : half_(rotary_dim / 2), values_(rotary_dim) {
    for (int i = 0; i < half_; ++i) {
      const double angle = static_cast<double>(distance) * std::pow(theta, -2.0 * i / rotary_dim);
      values_[i] = static_cast<T>(std::cos(angle));
      values_[half_ + i] = static_cast<T>(std::sin(angle));
    }
  }
  T cos(int i) const { return values_[i]; }
  T sin(int i) const { return values_[half_ + i]; }

  // out may be x; the dims past rotary_dim are the caller's.
  void rotate(const T* x, T* out) const {
    for (int i = 0; i < half_; ++i) {
      const T a = x[i], b = x[half_ + i];
      out[i] = cos(i) * a - sin(i) * b;
      out[half_ + i] = sin(i) * a + cos(i) * b;
    }
  }

 private:
  int half_;
  std::vector<T> values_;
};

template <class T>
void rope(const RopeArgs& args);

}  // namespace hypic::reference
