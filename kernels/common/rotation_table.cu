#include "kernels/common/rotation_table.cuh"

#include <map>
#include <mutex>
#include <tuple>

#include "kernels/common/cuda.cuh"
#include "kernels/common/rotation.cuh"

namespace hypic::cuda {
namespace {

__global__ void fill_kernel(float2* table, int entries, int64_t step, int pairs, double theta) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= entries * pairs) return;
  rotation(i / pairs * step, i % pairs, 2 * pairs, theta, &table[i].y, &table[i].x);
}

RotationTable build(int pairs, double theta) {
  // Another stream of this thread may be capturing a graph; these calls are no part of it.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "capture mode");
  float2* memory = nullptr;
  cudaStream_t stream = nullptr;
  check(cudaMalloc(&memory, sizeof(float2) * pairs * (kRotationLow + kRotationHigh)), "rotation table");
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  float2* const high = memory + int64_t{kRotationLow} * pairs;
  const auto blocks = [&](int entries) { return static_cast<unsigned>(ceil_div(int64_t{entries} * pairs, 256)); };
  fill_kernel<<<blocks(kRotationLow), 256, 0, stream>>>(memory, kRotationLow, 1, pairs, theta);
  fill_kernel<<<blocks(kRotationHigh), 256, 0, stream>>>(high, kRotationHigh, kRotationLow, pairs, theta);
  check_launch("rotation_table");
  check(cudaStreamSynchronize(stream), "rotation table");
  check(cudaStreamDestroy(stream), "stream");
  check(cudaThreadExchangeStreamCaptureMode(&mode), "capture mode");
  return {memory, high, pairs};
}

}  // namespace

RotationTable rotation_table(int rotary_dim, double theta) {
  if (rotary_dim == 0) return {};
  static std::mutex mutex;
  static std::map<std::tuple<int, int, double>, RotationTable> tables;  // by device, pairs, theta
  int device = 0;
  check(cudaGetDevice(&device), "device");
  const std::lock_guard lock(mutex);
  const std::tuple key(device, rotary_dim / 2, theta);
  auto at = tables.find(key);
  if (at == tables.end()) at = tables.emplace(key, build(rotary_dim / 2, theta)).first;
  return at->second;
}

}  // namespace hypic::cuda
