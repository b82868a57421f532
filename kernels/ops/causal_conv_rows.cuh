// The convolution of all rows at once: what causal_conv.cuh computes, for the widths that it takes.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

// Widths of 2, 3, 4 and an even number of channels, whose rows and pools allow two at a time.
bool causal_conv_rows_takes(const CausalConvArgs& args);
void causal_conv_rows(const CausalConvArgs& args, const TableUpload& table, cudaStream_t stream);

}  // namespace hypic::cuda
