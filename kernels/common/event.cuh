// A point in the order of a stream.
#pragma once

#include "core/backend.h"
#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaStream_t stream) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync), "an event");
    const cudaError_t error = cudaEventRecord(event_, stream);
    if (error != cudaSuccess) cudaEventDestroy(event_);
    check(error, "an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  bool done() override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error != cudaErrorNotReady) check(error, "an event");
    return error == cudaSuccess;
  }
  void wait() override { check(cudaEventSynchronize(event_), "an event"); }
  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// What is enqueued on the stream from now on waits for it; events of other backends on the host.
inline void wait_for(Event& event, cudaStream_t stream) {
  if (const auto* own = dynamic_cast<CudaEvent*>(&event))
    check(cudaStreamWaitEvent(stream, own->event(), 0), "waiting for an event");
  else
    event.wait();
}

}  // namespace hypic::cuda
