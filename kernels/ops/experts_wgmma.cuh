// Mixture of experts on the tensor cores by wgmma, for many rows an expert: bf16 operands, sums in float32.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

// Whether experts_wgmma runs these on so many SMs: what experts_mma takes, where experts have many rows.
bool experts_wgmma_takes(const ExpertsArgs& args, int sms);

// Rounded to bf16 on the way: activation(gate) ⊙ up, and each output of an expert before the sum over the choices.
// A row gets the same bits in any batch that comes here, on any number of SMs.
void experts_wgmma(const ExpertsArgs& args, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
