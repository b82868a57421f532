// The ranks of a tensor-parallel group on GPUs of one process.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <span>

#include "core/tensor.h"

namespace hypic::cuda {

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual const char* kernel() const = 0;  // of Backend::launches
  // Whether a CUDA graph may hold its sums.
  virtual bool records() const = 0;

  // Sums in place, on the current device, whose stream it is.
  virtual void all_reduce(int rank, const Tensor& tensor, cudaStream_t stream) = 0;
  // Before and after a rank enqueues a sum or launches a graph of sums, `sums` in all since the group was made or
  // rejoined. RankLost.
  virtual void will_enqueue(int) {}
  virtual void has_enqueued(int, int64_t) {}

  // Of Backend; `failed`: its device has, so that what it enqueued will not run.
  virtual void leave(int rank, bool failed) noexcept = 0;
  virtual bool aborted() { return false; }  // then graphs with sums must be gone before rejoin
  virtual void rejoin(int rank) = 0;        // of every rank, one after another
};

// Each rank on a device of its own, through NCCL. Error: no NCCL on this machine.
std::shared_ptr<RankGroup> make_nccl_group(std::span<const int> devices);

// All ranks on one device: where all have enqueued their part, one stream sums for all, in the order of ranks.
std::shared_ptr<RankGroup> make_shared_device_group(int ranks);

}  // namespace hypic::cuda
