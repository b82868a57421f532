// Softmax attention over a chain's own tokens and the residues that a row sees, and the paged K, V store.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

void append_kv(const AppendKvArgs& args, const TableUpload& table, cudaStream_t stream);
void attention(const AttentionArgs& args, const TableUpload& table, cudaStream_t stream);

}  // namespace hypic::cuda
