// The experts of one row: their second product and the sum over the choices in one launch.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"
#include "kernels/ops/experts_sort.cuh"

namespace hypic::cuda {

// One row of experts_mma; inner sizes a multiple of 64, all choices' shares of 16 columns in shared memory.
bool experts_row_takes(const ExpertsArgs& args);

// inner: [k, I], of each choice activation(gate) ⊙ up, by the kernel launched last; args.experts and args.down are
// older. out = Σ_j weights[j] · down_e inner_j, then with `more`: the bits that experts_mma gives a row of many.
void experts_down_row(const __nv_bfloat16* inner, const ExpertsArgs& args, const ExpertsMore& more,
                      cudaStream_t stream);

}  // namespace hypic::cuda
