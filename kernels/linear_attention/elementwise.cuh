// Linear attention with a decay for every entry of the state (Mamba): what linear_attention.cuh computes, for the
// shapes that it takes. There is no product in it that tensor cores could make: each entry of each token is an
// exponential, a multiply-add into the state and one into the output, all in float32.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

// Decay elementwise, update add, Readout::plain, Side::key, no RoPE, d_k ≤ 16; bf16 or float32.
bool elementwise_takes(const LinearAttentionArgs& args);

// Neither sms, the multiprocessors of the device, nor the other chains nor how a chain is cut into steps change a bit
// of its state or its outputs.
void elementwise(const LinearAttentionArgs& args, const TableUpload& table, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
