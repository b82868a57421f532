#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <deque>

#include "kernels/common/cuda.cuh"
#include "kernels/common/nccl.h"
#include "kernels/common/on_device.cuh"
#include "kernels/nccl_links.h"

namespace hypic::cuda {
namespace {

enum Rank { kReceives, kSends };

// Calls into NCCL return at once, as of a communicator whose configuration says blocking = 0; the next one waits until
// the one before is settled. So each piece is launched alone, when it is its turn, and its event is recorded once it
// is.
class NcclLink final : public PairLink {
 public:
  NcclLink(int device, const Nccl::UniqueId& id, Rank rank) : device_(device), peer_(1 - rank) {
    const OnDevice scope(device_);
    try {
      cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
      cuda::check(cudaMalloc(&greeting_, kGreeting), "a link");
      cuda::check(cudaMemset(greeting_, 0, kGreeting), "a link");
      cuda::check(cudaStreamSynchronize(cudaStreamLegacy), "a link");
      Nccl::Config config{.blocking = 0};
      check(nccl().CommInitRankConfig(&comm_, 2, id, rank, &config), "making a link");
    } catch (...) {
      release();
      throw;
    }
    // Ways are opened by the first bytes: so these belong to the connection.
    pieces_.push_back(rank == kSends ? Piece{.from = greeting_, .bytes = kGreeting}
                                     : Piece{.to = greeting_, .bytes = kGreeting});
  }
  ~NcclLink() override {
    const OnDevice scope(device_);
    release();
  }

  void send(const void* from, int64_t bytes) override { pieces_.push_back({.from = from, .bytes = bytes}); }
  void receive(void* to, int64_t bytes) override { pieces_.push_back({.to = to, .bytes = bytes}); }
  int64_t done() override {
    const OnDevice scope(device_);
    for (;;) {
      while (!running_.empty() && over(running_.front())) {
        cudaEventDestroy(running_.front());
        running_.pop_front();
        ++done_;
      }
      int result = Nccl::kSuccess;
      check(nccl().CommGetAsyncError(comm_, &result), "a link");
      if (result == Nccl::kInProgress) return done_;
      check(result, "a link");
      if (launched_) {
        cudaEvent_t event = nullptr;
        cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
        running_.push_back(event);
        cuda::check(cudaEventRecord(event, stream_), "an event");
        launched_ = false;
      }
      if (pieces_.empty()) return done_;
      const Piece piece = pieces_.front();
      pieces_.pop_front();
      const auto size = static_cast<size_t>(piece.bytes);
      launched_ = true;
      check(piece.from ? nccl().Send(piece.from, size, Nccl::kInt8, peer_, comm_, stream_)
                       : nccl().Recv(piece.to, size, Nccl::kInt8, peer_, comm_, stream_),
            "a link");
    }
  }

 private:
  struct Piece {
    const void* from = nullptr;
    void* to = nullptr;
    int64_t bytes = 0;
  };
  static constexpr int64_t kGreeting = 8;

  void check(int result, const char* what) const {
    if (result == Nccl::kSuccess || result == Nccl::kInProgress) return;
    const char* const last = nccl().GetLastError(comm_);
    fail("NCCL: ", what, ": ", nccl().GetErrorString(result), last && *last ? ": " : "", last ? last : "");
  }
  static bool over(cudaEvent_t event) {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) cuda::check(error, "an event");
    return error == cudaSuccess;
  }
  // Kernels of an aborted communicator end.
  void release() {
    if (comm_) nccl().CommAbort(comm_);
    if (stream_) cudaStreamSynchronize(stream_);
    for (const cudaEvent_t event : running_) cudaEventDestroy(event);
    if (stream_) cudaStreamDestroy(stream_);
    cudaFree(greeting_);
    cudaGetLastError();  // a device that failed says so to its engine
  }

  const int device_, peer_;
  cudaStream_t stream_ = nullptr;
  void* greeting_ = nullptr;
  Nccl::Comm comm_ = nullptr;
  std::deque<Piece> pieces_;  // not launched yet
  bool launched_ = false;     // the last one, whose event is not recorded yet
  std::deque<cudaEvent_t> running_;
  int64_t done_ = 0;
};

class NcclLinks final : public Links {
 public:
  explicit NcclLinks(int device) : device_(device) {
    nccl();
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, device), "device");
    const char* const machine = std::getenv("NCCL_HOSTID");  // by which NCCL itself tells machines apart
    std::ostringstream name;
    name << (machine ? machine : "") << (machine ? "/" : "") << "GPU-" << std::hex;
    for (const char byte : properties.uuid.bytes) name << (byte >> 4 & 15) << (byte & 15);
    name_ = name.str();
  }
  std::string device() const override { return name_; }
  Offer offer() override {
    Nccl::UniqueId id{};
    const int result = nccl().GetUniqueId(&id);
    require(result == Nccl::kSuccess, "NCCL: making a link: ", nccl().GetErrorString(result));
    return {{id.internal, sizeof(id.internal)}, std::make_unique<NcclLink>(device_, id, kReceives)};
  }
  std::unique_ptr<PairLink> join(const std::string& text) override {
    Nccl::UniqueId id{};
    require(text.size() == sizeof(id.internal), "a link: no id of NCCL");
    std::memcpy(id.internal, text.data(), text.size());
    return std::make_unique<NcclLink>(device_, id, kSends);
  }

 private:
  const int device_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Links> make_nccl_links(int device) { return std::make_unique<NcclLinks>(device); }

}  // namespace hypic::cuda
