// The current device of the thread, for a scope.
#pragma once

#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "device");
    if (before_ != device) check(cudaSetDevice(device), "device");
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

}  // namespace hypic::cuda
