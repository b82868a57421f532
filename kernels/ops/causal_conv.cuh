// Causal depthwise convolution over chains.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

void causal_conv(const CausalConvArgs& args, const TableUpload& table, cudaStream_t stream);

}  // namespace hypic::cuda
