// Operations along rows by 16-byte pieces, eight bf16 at a time, for shapes that allow it: the sum and the norm that
// follows it, a norm and its gate, sums and gates alone.
#pragma once

#include <cuda_runtime.h>

#include "core/backend.h"

namespace hypic::cuda {

// bf16, the last axis a multiple of 8 (of a norm at most 8192, of a gated norm 64, 128 or 256), rows and heads at
// multiples of 16 bytes.
bool add_pieces_takes(const AddArgs& args);
bool gate_mul_pieces_takes(const GateMulArgs& args);
bool add_gated_pieces_takes(const AddGatedArgs& args);
bool add_rms_norm_pieces_takes(const AddRmsNormArgs& args);
bool gated_norm_pieces_takes(const GatedNormArgs& args);

void add_pieces(const AddArgs& args, cudaStream_t stream);
void gate_mul_pieces(const GateMulArgs& args, cudaStream_t stream);
// Nothing is rounded between the gate and the sum.
void add_gated_pieces(const AddGatedArgs& args, cudaStream_t stream);
// The sum is rounded before the norm, as it is when the two run one after the other.
void add_rms_norm_pieces(const AddRmsNormArgs& args, cudaStream_t stream);
// Nothing is rounded between the norm and the gate.
void gated_norm_pieces(const GatedNormArgs& args, cudaStream_t stream);

}  // namespace hypic::cuda
