#include "kernels/ops/random.cuh"

#include "core/counter_bits.h"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void normal_kernel(T* out, int64_t size, uint64_t stream, double mean, double deviation) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const double z = sqrt(-2 * log(uniform(stream, 2 * i))) * cospi(2 * uniform(stream, 2 * i + 1));
    store(out + i, __bfloat162float(__float2bfloat16(static_cast<float>(mean + deviation * z))));
  }
}

}  // namespace

void random_normal(const RandomNormalArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(a.out.contiguous());
  if (a.out.size() == 0) return;
  visit_device(a.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(a.out.size(), kThreads), 1 << 16));
    normal_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<T*>(a.out.data), a.out.size(), a.stream, a.mean,
                                                   a.deviation);
    check_launch("random_normal");
  });
}

}  // namespace hypic::cuda
