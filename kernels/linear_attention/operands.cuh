// What the entry points of linear attention ask of their tensors.
#pragma once

#include "core/check.h"
#include "kernels/common/piece.cuh"

namespace hypic::cuda {

inline bool aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; }

// [R, H, d] to be read by pieces.
inline bool rows_in_pieces(const Tensor& t, DType dtype) { return t.dtype == dtype && t.rank == 3 && in_pieces(t); }

// A pool's first element, or null: float32 without gaps. Error: anything else.
inline float* pool(const Tensor& t) {
  HYPIC_CHECK(!t || (t.dtype == DType::f32 && t.contiguous()), t.shape_string());
  return static_cast<float*>(t.data);
}

}  // namespace hypic::cuda
