// Uploads that wait for nothing: the bytes are copied into pinned memory at once and leave it in stream order.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

class Staging {
 public:
  explicit Staging(cudaStream_t stream) : stream_(stream) { check(cudaMallocHost(&memory_, kBytes), "pinned memory"); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() { cudaFreeHost(memory_); }

  // `from` may go when this returns. It waits only where a whole buffer of uploads is still under way.
  void upload(void* to, const void* from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      if (used_ == kBytes) {
        check(cudaStreamSynchronize(stream_), "upload");
        used_ = 0;
      }
      const size_t part = std::min(bytes - done, kBytes - used_);
      std::memcpy(memory_ + used_, static_cast<const char*>(from) + done, part);
      check(cudaMemcpyAsync(static_cast<char*>(to) + done, memory_ + used_, part, cudaMemcpyHostToDevice, stream_),
            "upload");
      used_ += part;
      done += part;
    }
  }

 private:
  static constexpr size_t kBytes = 32 << 20;
  cudaStream_t stream_;
  char* memory_ = nullptr;
  size_t used_ = 0;  // of the bytes since the stream was last waited for
};

}  // namespace hypic::cuda
