#include <algorithm>
#include <vector>

#include "core/meeting.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/rank_group.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kMostRanks = 64, kThreads = 256;

template <class T>
struct Parts {
  T* data[kMostRanks];
  int count;
};

__device__ int32_t sum_of(const Parts<int32_t>& parts, int64_t i) {
  int32_t sum = 0;
  for (int rank = 0; rank < parts.count; ++rank) sum += parts.data[rank][i];
  return sum;
}
template <class T>
__device__ float sum_of(const Parts<T>& parts, int64_t i) {
  float sum = load(parts.data[0] + i);
  for (int rank = 1; rank < parts.count; ++rank) sum += load(parts.data[rank] + i);
  return sum;
}

template <class T>
__global__ void sum_kernel(const Parts<T> parts, int64_t size) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const auto sum = sum_of(parts, i);
    for (int rank = 0; rank < parts.count; ++rank)
      if constexpr (std::is_same_v<T, int32_t>)
        parts.data[rank][i] = sum;
      else
        store(parts.data[rank] + i, sum);
  }
}

class SharedDevice final : public RankGroup {
 public:
  explicit SharedDevice(int ranks) : meeting_(ranks), parts_(ranks) {
    HYPIC_CHECK(ranks <= kMostRanks);
    check(cudaEventCreateWithFlags(&summed_, cudaEventDisableTiming), "an event");
    for (Part& part : parts_) check(cudaEventCreateWithFlags(&part.ready, cudaEventDisableTiming), "an event");
  }
  ~SharedDevice() override {
    cudaEventDestroy(summed_);
    for (const Part& part : parts_) cudaEventDestroy(part.ready);
  }

  const char* kernel() const override { return "all_reduce/shared"; }
  bool records() const override { return false; }  // ranks meet on the host

  void all_reduce(int rank, const Tensor& tensor, cudaStream_t stream) override {
    HYPIC_CHECK(tensor.contiguous(), "all_reduce of strided rows");
    Part& own = parts_[rank];
    own.tensor = tensor;
    own.stream = stream;
    check(cudaEventRecord(own.ready, stream), "an event");
    meeting_.meet(rank, [&] { sum(stream); });  // no rank uses its stream meanwhile
  }
  void leave(int rank, bool) noexcept override { meeting_.leave(rank); }
  void rejoin(int rank) override { meeting_.rejoin(rank); }

 private:
  struct Part {
    Tensor tensor;
    cudaStream_t stream = nullptr;
    cudaEvent_t ready = nullptr;
  };

  void sum(cudaStream_t stream) const {
    for (const Part& part : parts_) check(cudaStreamWaitEvent(stream, part.ready), "an event");
    switch (parts_[0].tensor.dtype) {
      case DType::f32:
        launch<float>(stream);
        break;
      case DType::bf16:
        launch<__nv_bfloat16>(stream);
        break;
      case DType::i32:
        launch<int32_t>(stream);
        break;
      default:
        HYPIC_CHECK(false, "all_reduce of ", name_of(parts_[0].tensor.dtype));
    }
    check(cudaEventRecord(summed_, stream), "an event");
    for (const Part& part : parts_)
      if (part.stream != stream) check(cudaStreamWaitEvent(part.stream, summed_), "an event");
  }

  template <class T>
  void launch(cudaStream_t stream) const {
    const Tensor& first = parts_[0].tensor;
    Parts<T> parts{{}, static_cast<int>(parts_.size())};
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      const Tensor& part = parts_[rank].tensor;
      HYPIC_CHECK(part.dtype == first.dtype && part.size() == first.size(), "ranks sum ", first.shape_string(), " and ",
                  part.shape_string());
      parts.data[rank] = static_cast<T*>(part.data);
    }
    if (first.size() == 0) return;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(first.size(), kThreads), 1 << 12));
    sum_kernel<<<blocks, kThreads, 0, stream>>>(parts, first.size());
    check_launch("all_reduce");
  }

  Meeting meeting_;
  std::vector<Part> parts_;
  cudaEvent_t summed_ = nullptr;
};

}  // namespace

std::shared_ptr<RankGroup> make_shared_device_group(int ranks) { return std::make_shared<SharedDevice>(ranks); }

}  // namespace hypic::cuda
