// A scalar decay of float32 numbers.
#pragma once

namespace hypic::cuda {

// x ← eᵍ x + change, with the complement expm1 for slow decays (see the reference).
struct Decaying {
  float factor = 0;
  bool complement = true;
  __device__ Decaying() {}
  __device__ explicit Decaying(float g) : factor(g > -0.5f ? expm1f(g) : expf(g)), complement(g > -0.5f) {}
  __device__ float operator()(float x, float change) const {
    return complement ? x + (factor * x + change) : factor * x + change;
  }
};

}  // namespace hypic::cuda
