#include "kernels/ops/random.cuh"

#include "core/counter_bits.h"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void normal_kernel(T* out, int64_t size, int64_t columns, int64_t stride, uint64_t stream, double mean,
                              double deviation) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int64_t n = columns == stride ? i : i / columns * stride + i % columns;
    const double z = sqrt(-2 * log(uniform(stream, 2 * n))) * cospi(2 * uniform(stream, 2 * n + 1));
    store(out + i, __bfloat162float(__float2bfloat16(static_cast<float>(mean + deviation * z))));
  }
}

}  // namespace

void random_normal(const RandomNormalArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(a.out.contiguous() && 0 < a.columns && a.columns <= a.stride);
  if (a.out.size() == 0) return;
  visit_device(a.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(a.out.size(), kThreads), 1 << 16));
    normal_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<T*>(a.out.data), a.out.size(), a.columns, a.stride,
                                                   a.stream, a.mean, a.deviation);
    check_launch("random_normal");
  });
}

}  // namespace hypic::cuda
