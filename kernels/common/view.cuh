// What kernels see of tensors: a pointer with strides, elements read and written as float.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/tensor.h"
#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

template <class T>
struct View {  // up to [R, H, D]; a missing middle axis has H = 1
  T* data = nullptr;
  int64_t stride_r = 0, stride_h = 0, stride_d = 1;

  __device__ T* row(int64_t r, int64_t h = 0) const { return data + r * stride_r + h * stride_h; }
  explicit __host__ __device__ operator bool() const { return data != nullptr; }
};

__device__ inline float load(const float* p) { return *p; }
__device__ inline float load(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ inline void store(float* p, float x) { *p = x; }
__device__ inline void store(__nv_bfloat16* p, float x) { *p = __float2bfloat16(x); }

template <class T>
inline constexpr DType kDeviceDType = std::is_same_v<T, float>     ? DType::f32
                                      : std::is_same_v<T, int32_t> ? DType::i32
                                                                   : DType::bf16;

// A view of a tensor that holds T; empty for an empty tensor. The last axis must be contiguous.
template <class T>
View<T> view(const Tensor& t) {
  if (!t) return {};
  HYPIC_CHECK(t.dtype == kDeviceDType<T>, "a kernel for ", name_of(kDeviceDType<T>), " got ", name_of(t.dtype));
  HYPIC_CHECK(t.rank <= 3 && t.rank >= 1, t.shape_string());
  const int64_t last = t.stride[t.rank - 1];
  HYPIC_CHECK(t.rank == 1 || last == 1 || t[t.rank - 1] <= 1, "the last axis must be contiguous");
  if (t.rank == 1) return {static_cast<T*>(t.data), last, 0, 1};
  return {static_cast<T*>(t.data), t.stride[0], t.rank == 3 ? t.stride[1] : 0, 1};
}

// Calls visit(T{}) with float or __nv_bfloat16.
template <class Visitor>
void visit_device(DType dtype, Visitor&& visit) {
  if (dtype == DType::f32) return visit(float{});
  HYPIC_CHECK(dtype == DType::bf16, "no kernel for ", name_of(dtype));
  visit(__nv_bfloat16{});
}

__device__ inline float activate(float x, int activation) {  // core/backend.h Activation
  switch (activation) {
    case 1: return x / (1 + expf(-x));
    case 2: return 1 / (1 + expf(-x));
    case 3: return x > 0 ? x * x : 0.0f;
    default: return x;
  }
}

// The step Δ of core/backend.h DecayGateArgs: softplus(x) within [low, high].
__device__ inline float decay_step(float x, float low, float high) {
  float delta = x + (x > 0 ? log1pf(expf(-x)) : log1pf(expf(x)) - x);
  if (delta < low) delta = low;
  if (delta > high) delta = high;
  return delta;
}

__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

}  // namespace hypic::cuda
