#include "kernels/ops/rope.cuh"

#include "kernels/common/rotation.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

// One block a row; each pair's angle once for all heads.
template <class T>
__global__ void rope_kernel(View<T> x, View<T> out, const int32_t* positions, int H, int D, int rotary_dim,
                            double theta) {
  const int64_t r = blockIdx.x;
  const int half = rotary_dim / 2;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    float s, c;
    rotation(positions[r], i, rotary_dim, theta, &s, &c);
    for (int h = 0; h < H; ++h) {
      const float a = load(x.row(r, h) + i), b = load(x.row(r, h) + half + i);
      store(out.row(r, h) + i, c * a - s * b);
      store(out.row(r, h) + half + i, s * a + c * b);
    }
  }
  if (out.data == x.data) return;
  for (int i = threadIdx.x; i < H * (D - rotary_dim); i += blockDim.x) {
    const int h = i / (D - rotary_dim), d = rotary_dim + i % (D - rotary_dim);
    out.row(r, h)[d] = x.row(r, h)[d];
  }
}

}  // namespace

void rope(const RopeArgs& a, cudaStream_t stream) {
  Shapes("rope").bind(a.x, "x", {"R", "H", "D"}).bind(a.out, "out", {"R", "H", "D"}).bind(a.positions, "positions",
                                                                                          {"R"});
  HYPIC_CHECK(a.rotary_dim % 2 == 0 && a.rotary_dim <= a.x[2]);
  if (a.x[0] == 0) return;
  visit_device(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    rope_kernel<T><<<static_cast<unsigned>(a.x[0]), 128, 0, stream>>>(
        view<T>(a.x), view<T>(a.out), a.positions.as<int32_t>(), static_cast<int>(a.x[1]), static_cast<int>(a.x[2]),
        a.rotary_dim, a.theta);
    check_launch("rope");
  });
}

}  // namespace hypic::cuda
