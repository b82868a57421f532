#include "reference/ops/matmul.h"

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
    }
  });
}

template void matmul<float>(const MatmulArgs&);
template void matmul<double>(const MatmulArgs&);

}  // namespace hypic::reference
