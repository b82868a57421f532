// The GPU backends: `cuda` computes in bfloat16, `cuda32` with float32 operands; states, operators and gates are
// float32 in both. Everything runs on one stream of one device. A backend belongs to the thread that made it.
#pragma once

#include <array>
#include <memory>

#include "core/backend.h"

namespace hypic::cuda {

// plain: one readable kernel an operation, for any shape. fast: where a tuned kernel takes the shape that one,
// else the plain one; Backend::launches tells which ran.
enum class Rung { plain, fast };

// Ranks that sum through NCCL, each with a backend of its own on a device of its own.
using GroupId = std::array<char, 128>;
struct Group {
  int rank = 0;
  int size = 1;
  GroupId id{};  // the same for all ranks, of new_group_id
};
// Error: no NCCL on this machine.
GroupId new_group_id();

struct CudaOptions {
  DType compute = DType::bf16;
  Rung rung = Rung::fast;
  int device = 0;
  Group group;  // of more than one rank: make_cuda_backend waits for the others
};

// Error: built without CUDA, no GPU, or none that this build has code for.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

// The cudaStream_t of a CUDA backend; null for others.
void* stream_of(const Backend& backend);

}  // namespace hypic::cuda
