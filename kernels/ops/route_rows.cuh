// Routing by one warp a row: what route in moe.cuh computes, for the sizes that it takes.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

// At most 512 experts and 32 of a row; groups, where some are left out, of a whole number of lanes, a power of two.
bool route_rows_takes(const RouteArgs& args);
void route_rows(const RouteArgs& args, cudaStream_t stream);

}  // namespace hypic::cuda
