// Matrix products by cuBLAS, sums in float32.
#pragma once

#include "core/backend.h"
#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

void matmul(const MatmulArgs& args, cublasHandle_t blas);
void head_matmul(const HeadMatmulArgs& args, cublasHandle_t blas);

}  // namespace hypic::cuda
