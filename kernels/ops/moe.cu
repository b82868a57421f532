#include "kernels/ops/moe.cuh"

#include <algorithm>

#include "kernels/common/block.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// One block a row.
__global__ void route_kernel(View<float> logits, const float* bias, int E, int k, bool sigmoid, int groups,
                             int kept_groups, bool renormalise, float scale, View<int32_t> experts,
                             View<float> weights) {
  extern __shared__ float shared[];  // [E] scores · [E] choice · [groups] totals
  float* scores = shared;
  float* choice = scores + E;
  float* totals = choice + E;
  __shared__ float best[kThreads];
  __shared__ int32_t at[kThreads];
  // NaN marks what has been taken; NaN logits choose the first.
  const auto argmax = [&](const float* values, int n) {
    return block_argmax<kThreads>(n, [=](int i) { return values[i]; }, best, at);
  };
  const int64_t r = blockIdx.x;
  for (int e = threadIdx.x; e < E; e += kThreads) scores[e] = logits.row(r)[e];
  __syncthreads();
  if (sigmoid) {
    for (int e = threadIdx.x; e < E; e += kThreads) scores[e] = activate(scores[e], 2);
  } else {
    const float top = scores[argmax(scores, E)];
    __syncthreads();
    float sum = 0;
    for (int e = threadIdx.x; e < E; e += kThreads) sum += scores[e] = expf(scores[e] - top);
    best[threadIdx.x] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) best[threadIdx.x] += best[threadIdx.x + half];
    }
    __syncthreads();
    sum = best[0];
    for (int e = threadIdx.x; e < E; e += kThreads) scores[e] /= sum;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < E; e += kThreads) choice[e] = scores[e] + (bias ? bias[e] : 0.0f);
  __syncthreads();
  if (kept_groups < groups) {
    const int width = E / groups;
    for (int g = threadIdx.x; g < groups; g += kThreads) {  // the two best of each group
      float first = -INFINITY, second = -INFINITY;
      for (int i = 0; i < width; ++i) {
        const float x = choice[g * width + i];
        if (x > first) {
          second = first;
          first = x;
        } else if (x > second) {
          second = x;
        }
      }
      totals[g] = width > 1 ? first + second : first;
    }
    __syncthreads();
    for (int n = 0; n < kept_groups; ++n) {
      const int g = argmax(totals, groups);
      if (threadIdx.x == 0) totals[g] = nanf("");  // kept
      __syncthreads();
    }
    for (int e = threadIdx.x; e < E; e += kThreads)
      if (!isnan(totals[e / width])) choice[e] = -INFINITY;
    __syncthreads();
  }
  float sum = 0;
  for (int j = 0; j < k; ++j) {
    const int e = argmax(choice, E);
    sum += scores[e];
    if (threadIdx.x == 0) {
      experts.row(r)[j] = e;
      weights.row(r)[j] = scores[e];
      choice[e] = nanf("");
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const float factor = renormalise ? scale / (sum + static_cast<float>(kRouteEps)) : scale;
    for (int j = 0; j < k; ++j) weights.row(r)[j] *= factor;
  }
}

// inner[r, j, i] = activation(gate) ⊙ up; one block a row and choice, one warp an element.
template <class T>
__global__ void inner_kernel(View<T> x, View<int32_t> experts, const T* up, int N, int I, int U, bool gated,
                             int activation, int k, float* inner) {
  const int64_t r = blockIdx.x;
  const int j = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const T* matrix = up + static_cast<int64_t>(experts.row(r)[j]) * U * N;
  const auto dot = [&](const T* w) {
    float sum = 0;
    for (int n = lane; n < N; n += 32) sum += load(x.row(r) + n) * load(w + n);
    return warp_sum(sum);
  };
  for (int i = warp; i < I; i += kWarps) {
    const float first = activate(dot(matrix + static_cast<int64_t>(i) * N), activation);
    const float value = gated ? first * dot(matrix + static_cast<int64_t>(I + i) * N) : first;
    if (lane == 0) inner[(r * k + j) * I + i] = value;
  }
}

template <class T>
__global__ void down_kernel(const float* inner, View<int32_t> experts, View<float> weights, const T* down, int N,
                            int I, int k, View<T> out) {
  const int64_t r = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int n = static_cast<int>(blockIdx.y) * kWarps + warp; n < N; n += static_cast<int>(gridDim.y) * kWarps) {
    float total = 0;
    for (int j = 0; j < k; ++j) {
      const T* w = down + (static_cast<int64_t>(experts.row(r)[j]) * N + n) * I;
      float sum = 0;
      for (int i = lane; i < I; i += 32) sum += inner[(r * k + j) * I + i] * load(w + i);
      total += weights.row(r)[j] * warp_sum(sum);
    }
    if (lane == 0) store(out.row(r) + n, total);
  }
}

View<int32_t> indices(const Tensor& t) { return {t.as<int32_t>(), t.stride[0], 0, 1}; }

}  // namespace

void route(const RouteArgs& a, cudaStream_t stream) {
  Shapes shapes("route");
  shapes.bind(a.logits, "logits", {"R", "E"}).bind(a.experts, "experts", {"R", "k"}).bind(a.weights, "weights",
                                                                                          {"R", "k"});
  if (a.bias) shapes.bind(a.bias, "bias", {"E"});
  const auto E = static_cast<int>(shapes["E"]), k = static_cast<int>(shapes["k"]);
  HYPIC_CHECK(a.groups >= 1 && E % a.groups == 0 && 1 <= a.kept_groups && a.kept_groups <= a.groups && 1 <= k &&
                  k <= E / a.groups * a.kept_groups,
              "route: ", k, " of ", E, " experts in ", a.kept_groups, " of ", a.groups, " groups");
  if (shapes["R"] == 0) return;
  route_kernel<<<static_cast<unsigned>(shapes["R"]), kThreads, (2 * E + a.groups) * sizeof(float), stream>>>(
      view<float>(a.logits), a.bias ? a.bias.as<float>() : nullptr, E, k, a.score == RouteArgs::Score::sigmoid,
      a.groups, a.kept_groups, a.renormalise, static_cast<float>(a.scale), indices(a.experts),
      view<float>(a.weights));
  check_launch("route");
}

void experts(const ExpertsArgs& a, cudaStream_t stream) {
  Shapes shapes("experts");
  shapes.bind(a.x, "x", {"R", "N"}).bind(a.experts, "experts", {"R", "k"}).bind(a.weights, "weights", {"R", "k"})
      .bind(a.up, "up", {"E", "U", "N"}).bind(a.down, "down", {"E", "N", "I"}).bind(a.out, "out", {"R", "N"});
  const auto N = static_cast<int>(shapes["N"]), I = static_cast<int>(shapes["I"]), U = static_cast<int>(shapes["U"]),
             k = static_cast<int>(shapes["k"]);
  HYPIC_CHECK(U == (a.gated ? 2 * I : I) && a.up.contiguous() && a.down.contiguous() && a.x.data != a.out.data);
  const auto R = static_cast<unsigned>(shapes["R"]);
  if (R == 0) return;
  const Scratch memory(sizeof(float) * R * k * I, stream);
  auto* const inner = memory.as<float>();
  visit_device(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    HYPIC_CHECK(a.up.dtype == kDeviceDType<T> && a.down.dtype == kDeviceDType<T>);
    inner_kernel<T><<<dim3(R, static_cast<unsigned>(k)), kThreads, 0, stream>>>(
        view<T>(a.x), indices(a.experts), static_cast<const T*>(a.up.data), N, I, U, a.gated,
        static_cast<int>(a.activation), k, inner);
    check_launch("experts, inner");
    const auto columns = static_cast<unsigned>(std::min<int64_t>(ceil_div(N, kWarps * 8), 64));
    down_kernel<T><<<dim3(R, columns), kThreads, 0, stream>>>(inner, indices(a.experts), view<float>(a.weights),
                                                              static_cast<const T*>(a.down.data), N, I, k,
                                                              view<T>(a.out));
    check_launch("experts, down");
  });
}

}  // namespace hypic::cuda
