// A mixture of experts with an expert that every row goes to, of few rows: what costs is launches.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

// At most 16 rows of what matmul_rows, route_rows and experts_mma take, with a shared expert.
bool moe_rows_takes(const MoeArgs& args, int sms);

// The bits of the composite's steps. projected holds what `in` makes, as it is; part the shared expert's output.
// constant_weights: as in matmul_rows.
void moe_rows(const MoeArgs& args, bool constant_weights, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
