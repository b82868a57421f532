// Products of a few rows in bf16, where to read the weights is what costs.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

// At most 16 rows, at most 65536 columns, bf16, K a multiple of 8, rows of x at multiples of 16 bytes.
bool matmul_rows_takes(const MatmulArgs& args);
// sms: multiprocessors of the device. constant_weights: nothing that is still under way on the stream writes w, so that
// it may be read while the kernels before this one run. A row has the same bits in any batch of at most 16.
void matmul_rows(const MatmulArgs& args, bool constant_weights, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
