// Device time by operation: an event before and after each.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

class Timings {
 public:
  Timings() = default;
  Timings(const Timings&) = delete;
  Timings& operator=(const Timings&) = delete;
  ~Timings() { clear(); }

  void begin(const char* kernel, cudaStream_t stream) { spans_.push_back({kernel, mark(stream), nullptr}); }
  void end(cudaStream_t stream) { spans_.back().end = mark(stream); }

  void clear() {
    for (const Span& span : spans_)
      for (const cudaEvent_t event : {span.begin, span.end})
        if (event) cudaEventDestroy(event);
    spans_.clear();
  }

  // By operation, the part of a kernel's name before its slash; waits for what has been enqueued.
  std::map<std::string, double> seconds(cudaStream_t stream) const {
    check(cudaStreamSynchronize(stream), "profile");
    std::map<std::string, double> all;
    for (const Span& span : spans_) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, span.begin, span.end), "profile");
      all[span.kernel.substr(0, span.kernel.find('/'))] += milliseconds * 1e-3;
    }
    return all;
  }

 private:
  struct Span {
    std::string kernel;
    cudaEvent_t begin, end;
  };
  static cudaEvent_t mark(cudaStream_t stream) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "event");
    check(cudaEventRecord(event, stream), "event");
    return event;
  }
  std::vector<Span> spans_;
};

}  // namespace hypic::cuda
