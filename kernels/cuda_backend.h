// The GPU backends: `cuda` computes in bfloat16, `cuda32` with float32 operands; states, operators and gates are
// float32 in both. Everything runs on one stream of one device.
#pragma once

#include <memory>

#include "core/backend.h"

namespace hypic::cuda {

// Error: built without CUDA, no GPU, or none that this build has code for.
std::unique_ptr<Backend> make_cuda_backend(DType compute);

}  // namespace hypic::cuda
