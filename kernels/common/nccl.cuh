// NCCL, loaded when a group is made: a machine without it runs everything on one device. The declarations below
// are those of nccl.h (stable since NCCL 2.10), so that building needs no headers of it either.
#pragma once

#include <cuda_runtime.h>

#include "core/tensor.h"
#include "kernels/cuda_backend.h"

namespace hypic::cuda {

class Communicator {
 public:
  explicit Communicator(const Group& group);  // of the current device; waits for the other ranks
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  void all_reduce(const Tensor& tensor, cudaStream_t stream) const;  // sum, in place

 private:
  void* comm_ = nullptr;
};

}  // namespace hypic::cuda
