// The GPUs of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hypic {

struct GpuInfo {
  std::string name;  // "NVIDIA H200"
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int driver_version = 0;  // CUDA version that the driver supports: 1000 · major + 10 · minor
};

// All GPUs that CUDA sees. `why_none` says why the list is empty, where it is.
std::vector<GpuInfo> gpus(std::string* why_none);

}  // namespace hypic
