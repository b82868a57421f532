// What comes before and after the products of `experts` on the tensor cores, and how such kernels follow one another.
#pragma once

#include <type_traits>

#include "core/backend.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/view.cuh"
#include "kernels/ops/experts_plan.h"

namespace hypic::cuda {

// A kernel that launch_next started: lets the next one of the chain take its place already, and waits until those
// before it are done and their memory can be seen.
__device__ inline void follow() {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
}

// Launches a kernel that calls follow(), for the time of a launch counts where rows are few.
template <class... Args>
void launch_next(void (*kernel)(Args...), dim3 blocks, int threads, int shared_bytes, cudaStream_t stream,
                 const std::type_identity_t<Args>&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args...), "experts, launch");
}

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

// out[r] = Σ_j weights[r, j] · outputs[r · k + j], in the order of j.
void experts_combine(const __nv_bfloat16* outputs, const Tensor& weights, const Tensor& out, cudaStream_t stream);

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
