// Random numbers from a counter.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

void random_normal(const RandomNormalArgs& args, cudaStream_t stream);

}  // namespace hypic::cuda
