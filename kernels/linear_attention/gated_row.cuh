// A gated delta layer between its projections in and out, for chains of one row each: one launch in place of four.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

// In bf16, heads of 128 dims, a convolution of four rows with l2 norms, at most 8 value heads a key head; all chains
// single rows, and few: with many, the separate kernels spread a head's state over more blocks.
bool gated_row_takes(const GatedLinearAttentionArgs& args, const TableUpload& table, int sms);

// The bits of the composite's steps by conv_gates_rows, chunked and gated_norm_pieces.
void gated_row(const GatedLinearAttentionArgs& args, const TableUpload& table, cudaStream_t stream);

}  // namespace hypic::cuda
