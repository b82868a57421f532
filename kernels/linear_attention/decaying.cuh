// A scalar decay of float32 numbers.
#pragma once

namespace hypic::cuda {

// x ← eᵍ x + change, with the complement expm1 for slow decays (see the reference).
struct Decaying {
  float factor = 0;
  bool complement = true;
  __device__ Decaying() {}
  __device__ explicit Decaying(float g) : complement(g > -0.5f) {
    const float less_one = expm1f(g), whole = expf(g);  // both: no branch
    factor = complement ? less_one : whole;
  }
  __device__ float operator()(float x, float change) const {
    return complement ? x + (factor * x + change) : factor * x + change;
  }
};

}  // namespace hypic::cuda
