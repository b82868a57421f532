// What comes before and after the products of `experts` on the tensor cores.
#pragma once

#include "core/backend.h"
#include "kernels/common/launch_next.cuh"
#include "kernels/common/piece.cuh"
#include "kernels/common/view.cuh"
#include "kernels/ops/experts_plan.h"

namespace hypic::cuda {

// Added to what experts give, which is rounded before: sigmoid(gate) · part; empty: nothing, no gate: 1.
struct ExpertsMore {
  View<__nv_bfloat16> part;  // [R, N]
  View<__nv_bfloat16> gate;  // [R, 1]
  ExpertsMore from(int64_t row) const {
    const auto rest = [&](View<__nv_bfloat16> t) {
      if (t) t.data += row * t.stride_r;
      return t;
    };
    return {rest(part), rest(gate)};
  }
};

struct ExpertsSizes {
  int64_t R;
  int k, E, N, I;
};
// Checks that the tensors fit together.
ExpertsSizes experts_sizes(const ExpertsArgs& args);

// Where the scratch of a plan lies.
struct ExpertsScratch {
  int32_t* counts;
  int4* tiles;  // expert, first place, places, none
  int32_t* tile_count;
  int32_t* pairs;
  __nv_bfloat16* inner;
  __nv_bfloat16* outputs;
};
ExpertsScratch experts_scratch(const ExpertsPlan& plan, void* scratch);

// The pairs of experts [R, k] in order of experts, of one expert in their own order, and the tiles of each expert.
void experts_sort(const Tensor& experts, int E, const ExpertsPlan& plan, const ExpertsScratch& scratch,
                  cudaStream_t stream);

// out[r] = Σ_j weights[r, j] · outputs[r · k + j], in the order of j; then with `more`.
void experts_combine(const __nv_bfloat16* outputs, const Tensor& weights, const Tensor& out, const ExpertsMore& more,
                     cudaStream_t stream);

// Eight sums of a row's experts as they leave, at columns from `column` on: rounded, then what is added to them.
__device__ inline void store_experts(const Piece<__nv_bfloat16>& sums, const ExpertsMore& more, int64_t r, int column,
                                     __nv_bfloat16* to) {
  using Eight = Piece<__nv_bfloat16>;
  if (!more.part) return sums.store(to);
  Eight whole(sums.rounded());
  const Eight part = Eight::load(more.part.row(r) + column);
  const float gate = more.gate ? activate(load(more.gate.row(r)), static_cast<int>(Activation::sigmoid)) : 1.0f;
#pragma unroll
  for (int i = 0; i < Eight::kSize; ++i) whole.at[i] += gate * part.at[i];
  whole.store(to);
}

// In hardware's approximations of exp and division: what is rounded to bf16 next does not need more.
__device__ inline float activate_fast(float x, int activation) {
  switch (static_cast<Activation>(activation)) {
    case Activation::silu: return __fdividef(x, 1 + __expf(-x));
    case Activation::sigmoid: return __fdividef(1, 1 + __expf(-x));
    case Activation::relu2: return x > 0 ? x * x : 0.0f;
    default: return x;
  }
}

}  // namespace hypic::cuda
