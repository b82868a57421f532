// The table of linear-attention families, decay × update × readout, over chains.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

void linear_attention(const LinearAttentionArgs& args, const TableUpload& table, cudaStream_t stream);

// One cell of the table by the plain rung; each is instantiated in a file of its own,
// linear_attention/DECAY_UPDATE.cu.
template <Decay D, Update U>
void plain_cell(const LinearAttentionArgs& args, const TableUpload& table, cudaStream_t stream);

}  // namespace hypic::cuda
