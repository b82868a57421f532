// The convolution of all rows at once: what causal_conv.cuh computes, for the widths that it takes; alone, or with
// what a layer makes of its rows next: l2 norms of the heads of q and k, decay and beta.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

// Widths of 2, 3, 4 and channels in pieces of 16 bytes, whose rows and pools lie at multiples of 16 bytes.
bool causal_conv_rows_takes(const CausalConvArgs& args);
void causal_conv_rows(const CausalConvArgs& args, const TableUpload& table, int sms, cudaStream_t stream);

// Such a convolution, and heads of a power of two of pieces, at most 32. Where q and k are given, their columns of
// conv.out are left as they are; nothing is rounded between convolution and norm.
bool conv_gates_rows_takes(const ConvGatesArgs& args);
void conv_gates_rows(const ConvGatesArgs& args, const TableUpload& table, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
