// Device memory that other devices and, by CUDA IPC, other processes write to.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <span>
#include <string>

#include "core/shared_memory.h"
#include "kernels/common/event.cuh"  // what copies wait for and give

namespace hypic::cuda {

// As of Backend, for the memory of a device. All may be called on any thread, whose device stays what it is.
std::unique_ptr<SharedMemory> share_memory(int device, int64_t bytes);
std::unique_ptr<SharedMemory> open_shared_memory(int device, const std::string& handle);
std::unique_ptr<Copies> make_copies(int device);

// On the stream's device, by one kernel for some hundred pieces.
void copy_bytes(std::span<const BytesCopy> pieces, cudaStream_t stream);

}  // namespace hypic::cuda
