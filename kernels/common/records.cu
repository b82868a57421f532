#include "kernels/common/records.cuh"

#include "kernels/common/capture.cuh"
#include "kernels/common/cuda.cuh"

namespace hypic::cuda {
namespace {

constexpr size_t kMaxRecords = 64;

// Also while this thread captures a stream, which the memory has nothing to do with.
void* obtain(size_t bytes) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "capture");
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  check(cudaThreadExchangeStreamCaptureMode(&mode), "capture");
  check(error, "a recording");
  return memory;
}

struct Recording {
  explicit Recording(Arena& arena) { recording_arena = &arena; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() { recording_arena = nullptr; }
};

}  // namespace

Records::Records() : arena_(obtain, [](void* memory) { cudaFree(memory); }) {}

Records::~Records() { forget(); }

void Records::forget() {
  for (const auto& [key, record] : records_)
    if (record.graph) cudaGraphExecDestroy(record.graph);
  records_.clear();
}

void Records::replay(const std::string& key, const std::function<void()>& enqueue, cudaStream_t stream,
                     Launches& launches) {
  const auto found = records_.find(key);
  if (found == records_.end()) {
    if (records_.size() >= kMaxRecords) {
      check(cudaStreamSynchronize(stream), "stream");  // a record may be running
      forget();
    }
    records_[key];
    return enqueue();
  }
  Record& record = found->second;
  if (!record.graph) {
    const Launches before = launches;
    const Recording recording(arena_);
    record.graph = capture(stream, enqueue);
    for (auto& [kernel, count] : launches) {
      const auto old = before.find(kernel);
      const int64_t more = count - (old == before.end() ? 0 : old->second);
      if (more > 0) record.launches[kernel] = more;
    }
    launches = before;  // recorded, not run
  }
  check(cudaGraphLaunch(record.graph, stream), "graph launch");
  for (const auto& [kernel, count] : record.launches) launches[kernel] += count;
}

}  // namespace hypic::cuda
