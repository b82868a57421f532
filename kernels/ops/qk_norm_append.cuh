// Norms of queries and keys, the rotation of keys, and keys and values into pages, at once.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

// bf16 heads of 64, 128 or 256 at multiples of 16 bytes, K and V alike, each head with a norm of its own or with none,
// rotations of a multiple of 16 dims. Nothing is rounded between norm and rotation.
bool qk_norm_append_heads_takes(const QkNormAppendArgs& args, const TableUpload& table);
void qk_norm_append_heads(const QkNormAppendArgs& args, const TableUpload& table, cudaStream_t stream);

}  // namespace hypic::cuda
