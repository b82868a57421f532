// Sums of tensor-parallel ranks through NCCL.
#include "kernels/common/nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/backend.h"
#include "core/check.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/rank_group.cuh"

namespace hypic::cuda {
namespace {

Nccl load() {
  // A rank must never wait for another within a call that enqueues: all connections are made with the group.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  require(library, "no NCCL: ", dlerror(), "; install it, or put its folder into LD_LIBRARY_PATH");
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    require(function, "libnccl.so.2 has no ", name, "; NCCL 2.14 and later do");
  };
  Nccl loaded;
  find(loaded.CommInitAll, "ncclCommInitAll");
  find(loaded.AllReduce, "ncclAllReduce");
  find(loaded.CommDestroy, "ncclCommDestroy");
  find(loaded.CommAbort, "ncclCommAbort");
  find(loaded.GetErrorString, "ncclGetErrorString");
  find(loaded.GetUniqueId, "ncclGetUniqueId");
  find(loaded.CommInitRankConfig, "ncclCommInitRankConfig");
  find(loaded.CommGetAsyncError, "ncclCommGetAsyncError");
  find(loaded.GetLastError, "ncclGetLastError");
  find(loaded.Send, "ncclSend");
  find(loaded.Recv, "ncclRecv");
  return loaded;
}

void check_nccl(int result, const char* what) {
  if (result != 0) throw InternalError(str("NCCL: ", what, ": ", nccl().GetErrorString(result)));
}

int type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return Nccl::kFloat32;
    case DType::bf16:
      return Nccl::kBfloat16;
    case DType::i32:
      return Nccl::kInt32;
    default:
      HYPIC_CHECK(false, "all_reduce of ", name_of(dtype));
  }
}

// A sum that one rank has enqueued runs until all others have: who leaves with fewer than another has has all
// communicators aborted, which ends what runs. A rank that enqueues looks once more afterwards, so that of two that leave
// and enqueue at once one sees the other.
class NcclGroup final : public RankGroup {
 public:
  explicit NcclGroup(std::span<const int> devices) : devices_(devices.begin(), devices.end()), ranks_(devices.size()) {
    connect();
  }
  ~NcclGroup() override {
    for (std::thread& thread : aborting_) thread.detach();  // it may wait for graphs that outlive the group
    if (aborting_.empty())
      for (const Rank& rank : ranks_) nccl().CommDestroy(rank.comm);
  }

  const char* kernel() const override { return "all_reduce/nccl"; }
  bool records() const override { return true; }

  void all_reduce(int rank, const Tensor& tensor, cudaStream_t stream) override {
    HYPIC_CHECK(tensor.contiguous(), "all_reduce of strided rows");
    if (tensor.size() == 0) return;
    void* comm = nullptr;
    {
      const std::lock_guard lock(mutex_);
      comm = ranks_[rank].comm;
    }
    check_nccl(nccl().AllReduce(tensor.data, tensor.data, static_cast<size_t>(tensor.size()), type_of(tensor.dtype),
                                Nccl::kSum,
                                comm, stream),
               "all_reduce");
  }
  void will_enqueue(int rank) override {
    const std::lock_guard lock(mutex_);
    const auto lost = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.left; });
    if (broken_ || lost != ranks_.end())
      throw RankLost(str("rank ", rank, broken_ ? " has lost its group" : " sums with a rank that has failed"));
    ranks_[rank].enqueuing = true;
  }
  void has_enqueued(int rank, int64_t sums) override {
    const std::lock_guard lock(mutex_);
    ranks_[rank].enqueuing = false;
    ranks_[rank].sums = sums;
    abort_if_uneven();
  }

  void leave(int rank, bool failed) noexcept override {
    const std::lock_guard lock(mutex_);
    ranks_[rank].left = true;
    ranks_[rank].enqueuing = false;
    failed_ = failed_ || failed;
    abort_if_uneven();
  }
  bool aborted() override {
    const std::lock_guard lock(mutex_);
    return !aborting_.empty();
  }
  void rejoin(int rank) override {
    {
      const std::lock_guard lock(mutex_);
      ranks_[rank].left = false;
      ranks_[rank].sums = 0;
      if (rank + 1 < static_cast<int>(ranks_.size()) || aborting_.empty()) return;
      broken_ = true;  // unless the rest goes well
      if (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.left; })) return;
    }
    for (std::thread& thread : aborting_) thread.join();
    aborting_.clear();
    failed_ = false;
    connect();
    broken_ = false;
  }

 private:
  struct Rank {
    void* comm = nullptr;
    int64_t sums = 0;  // enqueued since the group was made, or made anew
    bool enqueuing = false, left = false;
  };

  void connect() {
    std::vector<void*> comms(ranks_.size());
    check_nccl(nccl().CommInitAll(comms.data(), static_cast<int>(comms.size()), devices_.data()), "making a group");
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].comm = comms[rank];
  }

  // Not while some rank enqueues, whose communicator is in use; it will look itself.
  void abort_if_uneven() {
    const auto any = [&](auto holds) { return std::any_of(ranks_.begin(), ranks_.end(), holds); };
    if (!aborting_.empty() || any([](const Rank& r) { return r.enqueuing; })) return;
    const bool uneven = any([&](const Rank& r) { return r.sums != ranks_[0].sums; });
    if (!failed_ && !(uneven && any([](const Rank& r) { return r.left; }))) return;
    // An abort returns when the graphs that hold the communicator are gone: before the ranks rejoin.
    for (const Rank& rank : ranks_) aborting_.emplace_back([comm = rank.comm] { nccl().CommAbort(comm); });
  }

  const std::vector<int> devices_;
  std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::vector<std::thread> aborting_;
  bool failed_ = false, broken_ = false;
};

}  // namespace

const Nccl& nccl() {
  static const Nccl loaded = load();  // never unloaded: its threads outlive our last communicator
  return loaded;
}

std::shared_ptr<RankGroup> make_nccl_group(std::span<const int> devices) { return std::make_shared<NcclGroup>(devices); }

}  // namespace hypic::cuda
