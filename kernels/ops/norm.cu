#include "kernels/ops/norm.cuh"

#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kWarps = 8;

// One warp a vector. weight: [D], or [H, D] with weight_h = D; null: L2 norm, whose eps is added to the sum.
template <class T>
__global__ void norm_kernel(View<T> x, View<T> out, int64_t vectors, int64_t H, int64_t D, const T* weight,
                            int64_t weight_h, float offset, float eps) {
  const int lane = threadIdx.x % 32;
  const int64_t v = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (v >= vectors) return;
  const int64_t r = v / H, h = v % H;
  const T* in = x.row(r, h);
  float sum = 0;
  for (int64_t i = lane; i < D; i += 32) sum += load(in + i) * load(in + i);
  sum = warp_sum(sum);
  const float scale = weight ? rsqrtf(sum / static_cast<float>(D) + eps) : rsqrtf(sum + eps);
  T* to = out.row(r, h);
  for (int64_t i = lane; i < D; i += 32) {
    const float y = load(in + i) * scale;
    store(to + i, weight ? y * (offset + load(weight + h * weight_h + i)) : y);
  }
}

template <class T>
void launch(const Tensor& x, const Tensor& out, const Tensor& weight, float offset, double eps, cudaStream_t stream) {
  HYPIC_CHECK(x.shape == out.shape && (x.rank == 2 || x.rank == 3), x.shape_string(), " and ", out.shape_string());
  const int64_t H = x.rank == 3 ? x[1] : 1, D = x[x.rank - 1], vectors = x[0] * H;
  if (vectors == 0) return;
  norm_kernel<T><<<static_cast<unsigned>(ceil_div(vectors, kWarps)), 32 * kWarps, 0, stream>>>(
      view<T>(x), view<T>(out), vectors, H, D, weight ? static_cast<const T*>(weight.data) : nullptr,
      weight.rank == 2 ? D : 0, offset, static_cast<float>(eps));
  check_launch("norm");
}

}  // namespace

void rms_norm(const RmsNormArgs& a, cudaStream_t stream) {
  const Tensor& w = a.weight;
  HYPIC_CHECK((w.rank == 1 || (w.rank == 2 && a.x.rank == 3 && w[0] == a.x[1])) &&
                  w[w.rank - 1] == a.x[a.x.rank - 1] && w.contiguous() && w.dtype == a.x.dtype,
              w.shape_string(), " for ", a.x.shape_string());
  visit_device(a.x.dtype, [&](auto zero) {
    launch<decltype(zero)>(a.x, a.out, w, a.plus_one ? 1.0f : 0.0f, a.eps, stream);
  });
}

void l2_norm(const L2NormArgs& a, cudaStream_t stream) {
  visit_device(a.x.dtype, [&](auto zero) { launch<decltype(zero)>(a.x, a.out, {}, 0, a.eps, stream); });
}

}  // namespace hypic::cuda
