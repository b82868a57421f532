// Normalisations over the last axis: RMS norm and L2 norm, sums in float32.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

void rms_norm(const RmsNormArgs& args, cudaStream_t stream);
void l2_norm(const L2NormArgs& args, cudaStream_t stream);

}  // namespace hypic::cuda
