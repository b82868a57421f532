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

// clusters: blocks of one, along x.
template <class... Params, class... Args>
void launch_next_clusters(const char* name, void (*kernel)(Params...), dim3 blocks, dim3 threads, int shared_bytes,
                          int clusters, cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(clusters), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = clusters > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

template <class... Params, class... Args>
void launch_next(const char* name, void (*kernel)(Params...), dim3 blocks, dim3 threads, int shared_bytes,
                 cudaStream_t stream, Args&&... args) {
  launch_next_clusters(name, kernel, blocks, threads, shared_bytes, 1, stream, std::forward<Args>(args)...);
}

}  // namespace hypic::cuda
