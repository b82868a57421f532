// Weights from a seed, for speed and numerics. They must not forget: a model that loses its state
// within a segment hides every fault of reuse. So memory lengths per head are log-uniform in 64 …
// 65,536 tokens, matrices are fan-in scaled, routers spread, and every norm is perturbed.
// (Lightning attention has no such weights: its decays are the architecture's.) All values are exact in
// bfloat16 (A_log and dt_bias in float32), so that every backend computes with the same weights.
#pragma once

#include <cstdint>
#include <vector>

#include "models/spec.h"

namespace hypic {

// A tensor as Backend::random_normal draws it, or, of the few gates that are not normal, its values.
struct RandomTensor {
  uint64_t stream = 0;
  double mean = 0, deviation = 0;
  std::vector<float> values;
};

// Depends only on the spec, the tensor's name and the seed.
RandomTensor random_tensor(const ModelSpec& spec, const TensorSpec& tensor, uint64_t seed);

}  // namespace hypic
