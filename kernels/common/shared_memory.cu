#include <algorithm>
#include <cstring>
#include <set>

#include "core/backend.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/on_device.cuh"
#include "kernels/common/shared_memory.cuh"

namespace hypic::cuda {
namespace {

constexpr std::string_view kPrefix = "cuda:";
// A smaller allocation shares its block, which is what another process opens.
constexpr int64_t kBlock = 2 << 20;
constexpr int kThreads = 256;
constexpr int kMostPieces = 128;  // of one kernel: they are its parameters
constexpr int kMostBlocks = 64;   // of a piece

struct Pieces {
  BytesCopy piece[kMostPieces];
};

// By 16, 4 or 1 bytes, whatever all addresses and the size are multiples of.
template <class Word>
__device__ void copy_words(const BytesCopy& piece) {
  const auto* from = static_cast<const Word*>(piece.from);
  auto* to = static_cast<Word*>(piece.to);
  const int64_t words = piece.bytes / static_cast<int64_t>(sizeof(Word));
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < words;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    to[i] = from[i];
}

__global__ void copy_kernel(const __grid_constant__ Pieces pieces) {
  const BytesCopy& piece = pieces.piece[blockIdx.y];
  const uint64_t together = reinterpret_cast<uint64_t>(piece.from) | reinterpret_cast<uint64_t>(piece.to) |
                            static_cast<uint64_t>(piece.bytes);
  if (together % 16 == 0)
    copy_words<uint4>(piece);
  else if (together % 4 == 0)
    copy_words<uint32_t>(piece);
  else
    copy_words<uint8_t>(piece);
}

// sums[piece] += its checksum.
__global__ void checksum_kernel(const __grid_constant__ Pieces pieces, unsigned long long* sums) {
  const BytesCopy& piece = pieces.piece[blockIdx.y];
  const auto* from = static_cast<const uint8_t*>(piece.from);
  const bool aligned = reinterpret_cast<uint64_t>(from) % 8 == 0;
  const int64_t words = ceil_div(piece.bytes, 8);
  uint64_t sum = 0;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < words;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    uint64_t word = 0;
    if (aligned && 8 * (i + 1) <= piece.bytes) {
      word = reinterpret_cast<const uint64_t*>(from)[i];
    } else {
      const int bytes = static_cast<int>(min(piece.bytes - 8 * i, int64_t{8}));
      for (int b = 0; b < bytes; ++b) word |= static_cast<uint64_t>(from[8 * i + b]) << 8 * b;
    }
    sum += checksum_term(word, static_cast<uint64_t>(i));
  }
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(0xffffffff, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(sums + blockIdx.y, static_cast<unsigned long long>(sum));
}

// Calls launch(grid, pieces) for at most kMostPieces at once, with blocks for the longest of them.
template <class Launch>
void for_pieces(std::span<const BytesCopy> all, Launch&& launch) {
  constexpr int64_t kBytesOfBlock = int64_t{kThreads} * 16 * 4;
  for (size_t first = 0; first < all.size(); first += kMostPieces) {
    const std::span part = all.subspan(first, std::min<size_t>(kMostPieces, all.size() - first));
    Pieces pieces{};
    std::copy(part.begin(), part.end(), pieces.piece);
    int64_t longest = 1;
    for (const BytesCopy& piece : part) longest = std::max(longest, piece.bytes);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(longest, kBytesOfBlock), kMostBlocks));
    launch(dim3(blocks, static_cast<unsigned>(part.size())), pieces);
  }
}

class DeviceMemory final : public SharedMemory {
 public:
  using Release = cudaError_t (*)(void* data);
  DeviceMemory(int device, uint8_t* data, int64_t size, std::string handle, Release release)
      : SharedMemory(data, size, std::move(handle)), device_(device), release_(release) {}
  ~DeviceMemory() override {
    const OnDevice scope(device_);
    release_(data());
  }

 private:
  const int device_;
  const Release release_;
};

class StreamCopies final : public Copies {
 public:
  explicit StreamCopies(int device) : device_(device) {
    const OnDevice scope(device_);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    check(cudaMalloc(&sums_, kMostPieces * sizeof(*sums_)), "checksums");
    check(cudaMallocHost(&host_sums_, kMostPieces * sizeof(*host_sums_)), "checksums");
  }
  ~StreamCopies() override {
    const OnDevice scope(device_);
    cudaStreamSynchronize(stream_);
    cudaFree(sums_);
    cudaFreeHost(host_sums_);
    cudaStreamDestroy(stream_);
  }

  void wait_for(Event& event) override {
    const OnDevice scope(device_);
    cuda::wait_for(event, stream_);
  }
  void copy(const BytesCopy& piece) override {
    const OnDevice scope(device_);
    reach(piece.to);
    check(cudaMemcpyAsync(piece.to, piece.from, static_cast<size_t>(piece.bytes), cudaMemcpyDefault, stream_),
          "a copy to another device");
  }
  std::vector<uint64_t> checksums(std::span<const BytesCopy> pieces) override {
    const OnDevice scope(device_);
    std::vector<uint64_t> all;
    for_pieces(pieces, [&](dim3 grid, const Pieces& part) {
      const size_t bytes = grid.y * sizeof(*sums_);
      check(cudaMemsetAsync(sums_, 0, bytes, stream_), "checksums");
      checksum_kernel<<<grid, kThreads, 0, stream_>>>(part, sums_);
      check_launch("checksum");
      check(cudaMemcpyAsync(host_sums_, sums_, bytes, cudaMemcpyDeviceToHost, stream_), "checksums");
      CudaEvent(stream_).wait();
      all.insert(all.end(), host_sums_, host_sums_ + grid.y);
    });
    return all;
  }
  std::unique_ptr<Event> record() override {
    const OnDevice scope(device_);
    return std::make_unique<CudaEvent>(stream_);
  }

 private:
  // Without this the driver takes the way through the host; so it does where this cannot be.
  void reach(const void* memory) {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, memory), "another device's memory");
    if (attributes.device == device_ || !reached_.insert(attributes.device).second) return;
    if (cudaDeviceEnablePeerAccess(attributes.device, 0) != cudaSuccess)
      cudaGetLastError();  // or the next launch would be blamed for it
  }

  const int device_;
  cudaStream_t stream_ = nullptr;
  unsigned long long* sums_ = nullptr;
  unsigned long long* host_sums_ = nullptr;
  std::set<int> reached_;
};

}  // namespace

std::unique_ptr<SharedMemory> share_memory(int device, int64_t bytes) {
  const OnDevice scope(device);
  const int64_t size = ceil_div(bytes, kBlock) * kBlock;
  void* data = nullptr;
  check(cudaMalloc(&data, static_cast<size_t>(size)), "memory to share");  // IPC knows none of a pool
  // NaN, so that a read before a write shows; before any write of another stream.
  check(cudaMemset(data, 0xff, static_cast<size_t>(size)), "poison");
  check(cudaStreamSynchronize(cudaStreamLegacy), "poison");
  std::string handle;
  cudaIpcMemHandle_t ipc;
  if (cudaIpcGetMemHandle(&ipc, data) == cudaSuccess) {
    handle = kPrefix;
    handle.append(reinterpret_cast<const char*>(&size), sizeof(size));
    handle.append(reinterpret_cast<const char*>(&ipc), sizeof(ipc));
  } else {
    cudaGetLastError();  // this machine has no IPC: for this process alone
  }
  return std::make_unique<DeviceMemory>(device, static_cast<uint8_t*>(data), size, std::move(handle), cudaFree);
}

std::unique_ptr<SharedMemory> open_shared_memory(int device, const std::string& handle) {
  int64_t size = 0;
  cudaIpcMemHandle_t ipc;
  require(handle.size() == kPrefix.size() + sizeof(size) + sizeof(ipc) && handle.starts_with(kPrefix),
          "shared memory: no handle of a CUDA backend");
  std::memcpy(&size, handle.data() + kPrefix.size(), sizeof(size));
  std::memcpy(&ipc, handle.data() + kPrefix.size() + sizeof(size), sizeof(ipc));
  const OnDevice scope(device);
  void* data = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&data, ipc, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) cudaGetLastError();
  require(error == cudaSuccess && size > 0, "shared memory of another process: ", cudaGetErrorString(error));
  return std::make_unique<DeviceMemory>(device, static_cast<uint8_t*>(data), size, handle, cudaIpcCloseMemHandle);
}

std::unique_ptr<Copies> make_copies(int device) { return std::make_unique<StreamCopies>(device); }

void copy_bytes(std::span<const BytesCopy> pieces, cudaStream_t stream) {
  for_pieces(pieces, [&](dim3 grid, const Pieces& part) {
    copy_kernel<<<grid, kThreads, 0, stream>>>(part);
    check_launch("copy_bytes");
  });
}

}  // namespace hypic::cuda
