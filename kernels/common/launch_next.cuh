// Launches that overlap: a kernel takes its place on the GPU while the one before it ends, for the time of a launch
// counts where rows are few.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

// Every thread of a kernel that launch_next starts calls this before it reads or writes what another kernel may touch:
// it waits until those before are done and their memory can be seen, and lets the next kernel take its place. In this
// order, so that one kernel waits on the GPU, not a row of them, whose blocks are then badly spread: .85 of the time.
__device__ inline void follow() {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
}

template <class... Params, class... Args>
void launch_next(const char* name, void (*kernel)(Params...), dim3 blocks, dim3 threads, int shared_bytes,
                 cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

}  // namespace hypic::cuda
