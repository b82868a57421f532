// Errors of CUDA and cuBLASLt as exceptions, and what every kernel file includes.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "core/check.h"

namespace hypic::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaErrorMemoryAllocation) throw OutOfMemory(str("out of GPU memory in ", what));
  if (error != cudaSuccess) throw InternalError(str("CUDA: ", what, ": ", cudaGetErrorString(error)));
}
inline void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw InternalError(str("cuBLAS: ", what, ": ", cublasLtGetStatusString(status)));
}

// After a kernel launch.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace hypic::cuda
