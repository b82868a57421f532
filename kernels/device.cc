#include "kernels/device.h"

#ifdef HYPIC_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hypic {

std::vector<GpuInfo> gpus(std::string* why_none) {
  std::vector<GpuInfo> found;
#ifdef HYPIC_HAVE_CUDA
  int count = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    *why_none = error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice
                    ? "no GPU, or no driver for one"
                    : cudaGetErrorString(error);
    return found;
  }
  cudaDriverGetVersion(&driver);
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    found.push_back({properties.name, properties.major, properties.minor,
                     properties.multiProcessorCount,
                     static_cast<int64_t>(properties.totalGlobalMem), driver});
  }
  if (found.empty()) *why_none = "no GPU";
#else
  *why_none = "built without CUDA";
#endif
  return found;
}

}  // namespace hypic
