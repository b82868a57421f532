// What the kernels of elementwise decay are given, and how an entry decays.
#pragma once

#include "kernels/common/device_table.cuh"
#include "kernels/common/view.cuh"
#include "kernels/linear_attention/elementwise_plan.h"

namespace hypic::cuda {

template <class Element>
struct EntryArgs {
  View<Element> q, k, v, o;
  View<float> g, beta;    // g: the step Δ of a channel; beta or empty
  const float *A, *skip;  // [Hv, dk, dv]; [Hv] or null
  float *state, *T, *U;   // pools: [slots, Hv, dk, dv]
  int Hv, group, dk, dv;
  float scale;
  DeviceTable table;

  // Of entry (0, 0) of a slot's head.
  __device__ int64_t at(int32_t slot, int h) const { return (static_cast<int64_t>(slot) * Hv + h) * dk * dv; }
};

// Decaying by g, in few instructions and without a branch: the complement eᵍ − 1 where eᵍ is near 1, for a rounded
// factor would drift, else eᵍ. The polynomial is off by 3.5e-7 of eᵍ − 1 at the most, where |g| nears its bound; what
// ex2.approx is off by counts for the few tokens that such an entry lasts.
class EntryDecay {
 public:
  __device__ explicit EntryDecay(float g) : slow_(fabsf(g) < 0.125f) {
    float whole;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(whole) : "f"(g * 1.44269504f));
    const float less_one = g * fmaf(g, fmaf(g, fmaf(g, 1 / 24.0f, 0.16677453f), 0.5f), 1.0f);
    factor_ = slow_ ? less_one : whole;
  }
  __device__ float operator()(float x, float change) const {
    const float moved = fmaf(factor_, x, change);
    return slow_ ? x + moved : moved;
  }

 private:
  float factor_;
  bool slow_;
};

}  // namespace hypic::cuda
