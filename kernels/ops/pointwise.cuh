// Operations without sums across elements: embedding, residual add, gates, gathers, copies.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

void embedding(const EmbeddingArgs& args, cudaStream_t stream);
void gather_rows(const GatherRowsArgs& args, cudaStream_t stream);
void add(const AddArgs& args, cudaStream_t stream);
void gate_mul(const GateMulArgs& args, cudaStream_t stream);
void decay_gate(const DecayGateArgs& args, cudaStream_t stream);
void sigmoid(const SigmoidArgs& args, cudaStream_t stream);
void copy(const Tensor& to, const Tensor& from, cudaStream_t stream);

}  // namespace hypic::cuda
