// The angle of a rotary pair, in float64: in float32 it is off by 2e-3 rad at 32k positions.
#pragma once

#include <cstdint>

namespace hypic::cuda {

// Sine and cosine of distance · theta^(−2i / rotary_dim).
__device__ inline void rotation(int64_t distance, int i, int rotary_dim, double theta, float* sine, float* cosine) {
  double s, c;
  sincos(static_cast<double>(distance) * pow(theta, -2.0 * i / rotary_dim), &s, &c);
  *sine = static_cast<float>(s);
  *cosine = static_cast<float>(c);
}

}  // namespace hypic::cuda
