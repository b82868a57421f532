// The next token of each row of logits.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

void sample(const SampleArgs& args, cudaStream_t stream);

}  // namespace hypic::cuda
