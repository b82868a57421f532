#include "kernels/replay.h"

#include <memory>
#include <utility>

#include "kernels/common/capture.cuh"
#include "kernels/common/cuda.cuh"

namespace hypic::cuda {
namespace {

constexpr size_t kFlushBytes = 256 << 20;  // five times the L2 of an H200
constexpr uint64_t kHeadStart = 50'000;    // nanoseconds

// Keeps the stream busy while the host enqueues the next replay, so that its events do not time the
// host.
__global__ void wait_kernel(uint64_t nanoseconds) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "event"); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Flush {
  void* memory = nullptr;
  ~Flush() { cudaFree(memory); }
};

class Recording {
 public:
  Recording(cudaStream_t stream, const std::function<void()>& enqueue, const ReplayOptions& options)
      : stream_(stream), enqueue_(enqueue) {
    if (options.cold_l2) check(cudaMalloc(&flush_.memory, kFlushBytes), "L2 flush");
    if (options.graph) replay_ = capture(stream, enqueue);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    cudaStreamSynchronize(stream_);
    if (replay_) cudaGraphExecDestroy(replay_);
    int device = 0;
    if (cudaGetDevice(&device) == cudaSuccess) cudaDeviceGraphMemTrim(device);
  }

  std::vector<double> run(int runs) {
    std::vector<std::pair<Event, Event>> events(runs);
    for (auto& [begin, end] : events) {
      if (flush_.memory) check(cudaMemsetAsync(flush_.memory, 0, kFlushBytes, stream_), "L2 flush");
      wait_kernel<<<1, 1, 0, stream_>>>(kHeadStart);
      check_launch("wait");
      check(cudaEventRecord(begin, stream_), "event");
      if (replay_)
        check(cudaGraphLaunch(replay_, stream_), "graph launch");
      else
        enqueue_();
      check(cudaEventRecord(end, stream_), "event");
    }
    check(cudaStreamSynchronize(stream_), "replay");
    std::vector<double> seconds;
    for (const auto& [begin, end] : events) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin, end), "event");
      seconds.push_back(milliseconds * 1e-3);
    }
    return seconds;
  }

 private:
  const cudaStream_t stream_;
  const std::function<void()> enqueue_;
  Flush flush_;
  cudaGraphExec_t replay_ = nullptr;
};

}  // namespace

std::function<std::vector<double>(int)> record(void* stream, const std::function<void()>& enqueue,
                                               const ReplayOptions& options) {
  const auto recording =
      std::make_shared<Recording>(static_cast<cudaStream_t>(stream), enqueue, options);
  return [recording](int runs) { return recording->run(runs); };
}

}  // namespace hypic::cuda
