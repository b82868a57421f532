#include "reference/ops/matmul.h"

#include <algorithm>

#include "reference/ops/dot.h"
#include "reference/ops/threads.h"

namespace hypic::reference {

template <class T>
void matmul(const MatmulArgs& args) {
  Shapes shapes("matmul");
  shapes.bind(args.x, "x", {"R", "K"}).bind(args.w, "w", {"N", "K"}).bind(args.out, "out", {"R", "N"});
  check_dtype<T>(args.x, args.w, args.out);
  HYPIC_CHECK(args.x.stride[1] == 1 && args.w.contiguous() && args.out.stride[1] == 1);
  const int64_t R = shapes["R"], K = shapes["K"], N = shapes["N"];
  const T* w = args.w.as<T>();
  const T scale = static_cast<T>(args.scale);
  // A block of weight rows stays in cache while all rows pass.
  constexpr int64_t kBlock = 4;
  parallel_for((N + kBlock - 1) / kBlock, R * N * K, [&](int64_t block) {
    const int64_t n = block * kBlock;
    for (int64_t r = 0; r < R; ++r) {
      const T* x = args.x.as<T>() + r * args.x.stride[0];
      T* out = args.out.as<T>() + r * args.out.stride[0] + n;
      if (n + kBlock <= N) {
        dot<kBlock>(x, w + n * K, K, K, out);
      } else {
        for (int64_t j = 0; n + j < N; ++j) out[j] = dot(x, w + (n + j) * K, K);
      }
      if (scale != 1)
        for (int64_t j = 0; j < kBlock && n + j < N; ++j) out[j] *= scale;
    }
  });
}

template <class T>
void head_matmul(const HeadMatmulArgs& args) {
  Shapes shapes("head_matmul");
  shapes.bind(args.x, "x", {"R", "H", "K"}).bind(args.out, "out", {"R", "H", "N"});
  if (args.transposed)
    shapes.bind(args.w, "w", {"H", "K", "N"});
  else
    shapes.bind(args.w, "w", {"H", "N", "K"});
  check_dtype<T>(args.x, args.w, args.out);
  HYPIC_CHECK(args.x.stride[2] == 1 && args.w.contiguous() && args.out.stride[2] == 1);
  const int64_t R = shapes["R"], H = shapes["H"], K = shapes["K"], N = shapes["N"];
  parallel_for(R, R * H * N * K, [&](int64_t r) {
    for (int64_t h = 0; h < H; ++h) {
      const T* x = args.x.as<T>() + r * args.x.stride[0] + h * args.x.stride[1];
      const T* w = args.w.as<T>() + h * K * N;
      T* out = args.out.as<T>() + r * args.out.stride[0] + h * args.out.stride[1];
      if (!args.transposed) {
        for (int64_t n = 0; n < N; ++n) out[n] = dot(x, w + n * K, K);
        continue;
      }
      std::fill(out, out + N, T{0});
      for (int64_t k = 0; k < K; ++k)
        for (int64_t n = 0; n < N; ++n) out[n] += x[k] * w[k * N + n];
    }
  });
}

template void matmul<float>(const MatmulArgs&);
template void matmul<double>(const MatmulArgs&);
template void head_matmul<float>(const HeadMatmulArgs&);
template void head_matmul<double>(const HeadMatmulArgs&);

}  // namespace hypic::reference
