// Mixture of experts: the router's choice and the chosen experts' sum.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

void route(const RouteArgs& args, cudaStream_t stream);
void experts(const ExpertsArgs& args, cudaStream_t stream);

}  // namespace hypic::cuda
