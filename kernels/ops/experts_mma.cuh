// Mixture of experts on the tensor cores: bf16 operands, sums in float32.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"
#include "kernels/ops/experts_sort.cuh"

namespace hypic::cuda {

// Whether experts_mma runs these; the plain kernel runs all.
bool experts_mma_takes(const ExpertsArgs& args);

// Rounded to bf16 on the way: activation(gate) ⊙ up, and each weighted output of an expert before the sum over
// the choices. A row gets the same bits in any batch, on any number of SMs. `more` is added.
void experts_mma(const ExpertsArgs& args, const ExpertsMore& more, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
