#include "reference/ops/norm.h"

#include <cmath>

#include "reference/ops/dot.h"
#include "reference/ops/threads.h"

namespace hypic::reference {
namespace {

// Calls body(x, out, D, h) for every vector along the last axis of two tensors [R, D] or [R, H, D].
template <class T, class Body>
void for_each_vector(const Tensor& x, const Tensor& out, Body body) {
  check_dtype<T>(x, out);
  HYPIC_CHECK(x.rank == out.rank && x.shape == out.shape && (x.rank == 2 || x.rank == 3),
              x.shape_string(), " and ", out.shape_string());
  const int64_t H = x.rank == 3 ? x[1] : 1, D = x[x.rank - 1];
  const int64_t xh = x.rank == 3 ? x.stride[1] : 0, oh = out.rank == 3 ? out.stride[1] : 0;
  HYPIC_CHECK(x.stride[x.rank - 1] == 1 && out.stride[out.rank - 1] == 1);
  parallel_for(x[0], 2 * x.size(), [&](int64_t r) {
    for (int64_t h = 0; h < H; ++h)
      body(x.as<T>() + r * x.stride[0] + h * xh, out.as<T>() + r * out.stride[0] + h * oh, D, h);
  });
}

}  // namespace

template <class T>
void rms_norm(const RmsNormArgs& args) {
  const Tensor& w = args.weight;
  const int64_t width = args.x[args.x.rank - 1];
  const bool own = w.rank == 2;  // a weight for each head
  HYPIC_CHECK((w.rank == 1 || (own && args.x.rank == 3 && w[0] == args.x[1])) && w[w.rank - 1] == width &&
                  w.contiguous(),
              w.shape_string(), " for ", args.x.shape_string());
  const T offset = args.plus_one ? 1 : 0;
  for_each_vector<T>(args.x, args.out, [&](const T* x, T* out, int64_t D, int64_t h) {
    const T* weight = w.as<T>() + (own ? h * D : 0);
    const T scale = 1 / std::sqrt(dot(x, x, D) / static_cast<T>(D) + static_cast<T>(args.eps));
    for (int64_t i = 0; i < D; ++i) out[i] = x[i] * scale * (offset + weight[i]);
  });
}

template <class T>
void l2_norm(const L2NormArgs& args) {
  for_each_vector<T>(args.x, args.out, [&](const T* x, T* out, int64_t D, int64_t) {
    const T scale = 1 / std::sqrt(dot(x, x, D) + static_cast<T>(args.eps));
    for (int64_t i = 0; i < D; ++i) out[i] = x[i] * scale;
  });
}

template void rms_norm<float>(const RmsNormArgs&);
template void rms_norm<double>(const RmsNormArgs&);
template void l2_norm<float>(const L2NormArgs&);
template void l2_norm<double>(const L2NormArgs&);

}  // namespace hypic::reference
