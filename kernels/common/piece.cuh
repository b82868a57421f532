// Sixteen bytes of a row at a time: eight bf16 or four floats.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/backend.h"
#include "kernels/common/view.cuh"

namespace hypic::cuda {

template <class T>
struct Piece {
  static constexpr int kSize = 16 / sizeof(T);
  float at[kSize];

  static __device__ uint4 bits(const T* from) { return *reinterpret_cast<const uint4*>(from); }
  static __device__ Piece load(const T* from) { return Piece(bits(from)); }

  Piece() = default;
  explicit __device__ Piece(uint4 bits) {
    const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        at[i] = __uint_as_float(words[i]);
      } else {  // a bf16 is the upper half of a float
        at[2 * i] = __uint_as_float(words[i] << 16);
        at[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      }
    }
  }
  __device__ uint4 rounded() const {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        words[i] = __float_as_uint(at[i]);
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(at[2 * i], at[2 * i + 1]);
        words[i] = *reinterpret_cast<const uint32_t*>(&pair);
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
  __device__ void store(T* to) const { *reinterpret_cast<uint4*>(to) = rounded(); }
  __device__ float squares() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum += at[i] * at[i];
    return sum;
  }
};

// 1 / (1 + exp(−x)) within a few units in the last place of a float; 0 below −88.
__device__ inline float quick_sigmoid(float x) {
  float power, quotient;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(1 + power));
  return quotient;
}

// `activate` of all: quickly where bf16 keeps less than it loses.
template <class T>
__device__ void activate_all(Piece<T>& p, int activation) {
  if constexpr (sizeof(T) == 2) {
    if (activation == static_cast<int>(Activation::silu)) {
#pragma unroll
      for (float& x : p.at) x *= quick_sigmoid(x);
      return;
    }
    if (activation == static_cast<int>(Activation::sigmoid)) {
#pragma unroll
      for (float& x : p.at) x = quick_sigmoid(x);
      return;
    }
  }
#pragma unroll
  for (float& x : p.at) x = activate(x, activation);
}

// Whether the tensor can be read by pieces: the last axis a multiple of one, heads and rows at multiples of 16 bytes.
inline bool in_pieces(const Tensor& t) {
  const int64_t size = 16 / size_of(t.dtype);
  if (t.rank < 1 || t[t.rank - 1] % size != 0 || reinterpret_cast<uintptr_t>(t.data) % 16 != 0 ||
      (t[t.rank - 1] > 1 && t.stride[t.rank - 1] != 1))
    return false;
  for (int axis = 0; axis + 1 < t.rank; ++axis)
    if (t[axis] > 1 && t.stride[axis] % size != 0) return false;
  return true;
}

// A power of two that a warp's lanes can be parted into.
inline bool is_lane_count(int64_t n) { return 1 <= n && n <= 32 && (n & (n - 1)) == 0; }

// The sum over groups of `lanes` lanes, which start at multiples of it; a power of two.
__device__ inline float lanes_sum(float x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

}  // namespace hypic::cuda
