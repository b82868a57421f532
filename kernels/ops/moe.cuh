// Mixture of experts: the router's choice and the chosen experts' sum.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

void route(const RouteArgs& args, cudaStream_t stream);
// `inner` is scratch of R · k · I float32.
void experts(const ExpertsArgs& args, float* inner, cudaStream_t stream);

}  // namespace hypic::cuda
