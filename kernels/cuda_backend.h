// The GPU backends: `cuda` computes in bfloat16, `cuda32` with float32 operands; states, operators and gates are
// float32 in both. Everything runs on one stream of one device. A backend belongs to the thread that made it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/backend.h"

namespace hypic::cuda {

// plain: one readable kernel an operation, for any shape. fast: where a tuned kernel takes the shape that one,
// else the plain one; Backend::launches tells which ran.
enum class Rung { plain, fast };

struct CudaOptions {
  DType compute = DType::bf16;
  Rung rung = Rung::fast;
  int device = 0;
  int sms = 0;  // multiprocessors that launches are planned for, at most the device's; 0: all
};

// Error: built without CUDA, no GPU, or none that this build has code for.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

// The ranks of a tensor-parallel group in this process, each to be driven by a thread of its own. On devices that are all
// different they sum through NCCL; on one and the same, for tests, by copies within it, and nothing that they do is
// recorded. Error: as of make_cuda_backend; no NCCL on this machine; devices that are neither.
std::vector<std::unique_ptr<Backend>> make_cuda_ranks(const CudaOptions& options, std::span<const int> devices);

// The cudaStream_t of a CUDA backend; null for others.
void* stream_of(const Backend& backend);

}  // namespace hypic::cuda
