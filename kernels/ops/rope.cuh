// Rotary position embedding: angles in float64, sine and cosine rounded once.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

void rope(const RopeArgs& args, cudaStream_t stream);

}  // namespace hypic::cuda
