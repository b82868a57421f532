// Device memory for the length of one operation, in stream order; a CUDA graph may capture its use.
#pragma once

#include "kernels/common/arena.h"
#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

class Scratch {
 public:
  Scratch(size_t bytes, cudaStream_t stream) : arena_(recording_arena), stream_(stream) {
    if (bytes == 0) return;
    if (arena_)
      memory_ = arena_->take(bytes);
    else
      check(cudaMallocAsync(&memory_, bytes, stream), "scratch");
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (!memory_) return;
    if (arena_)
      arena_->give_back(memory_);
    else
      cudaFreeAsync(memory_, stream_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  Arena* const arena_;
  cudaStream_t stream_;
  void* memory_ = nullptr;
};

}  // namespace hypic::cuda
