// Rotations by any distance from two tables: one of distances below 1024, one of multiples of 1024. Their product
// in float32 is as exact as float32 is, which a float32 angle is not, and a kernel's loop has no float64.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace hypic::cuda {

inline constexpr int kRotationLow = 1024;       // distances of the low table
inline constexpr int kRotationHigh = 16384 + 1;  // entries of the high table
inline constexpr int kMaxRotation = kRotationLow * (kRotationHigh - 1);  // 2^24

struct RotationTable {         // device memory; entries are cosine and sine of a pair's angle
  const float2* low = nullptr;   // [kRotationLow][pairs]
  const float2* high = nullptr;  // [kRotationHigh][pairs]
  int pairs = 0;                 // rotary_dim / 2

  // Cosine and sine of distance · theta^(−pair / pairs), |distance| ≤ kMaxRotation.
  __device__ float2 at(int32_t distance, int pair) const {
    const int32_t size = distance < 0 ? -distance : distance;
    const float2 a = __ldg(low + (size % kRotationLow) * pairs + pair);
    const float2 b = __ldg(high + (size / kRotationLow) * pairs + pair);
    const float sine = a.y * b.x + a.x * b.y;
    return {a.x * b.x - a.y * b.y, distance < 0 ? -sine : sine};
  }
};

// The table of the current device; built at the first call, which waits for it but disturbs no capture, and kept.
// rotary_dim 0: an empty table.
RotationTable rotation_table(int rotary_dim, double theta);

}  // namespace hypic::cuda
