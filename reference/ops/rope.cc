#include "reference/ops/rope.h"
#include "reference/ops/threads.h"

#include <algorithm>

namespace hypic::reference {

template <class T>
void rope(const RopeArgs& args) {
  Shapes("rope").bind(args.x, "x", {"R", "H", "D"}).bind(args.out, "out", {"R", "H", "D"})
      .bind(args.positions, "positions", {"R"});
  check_dtype<T>(args.x, args.out);
  HYPIC_CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.x[2]);
  const int32_t* positions = args.positions.as<int32_t>();
  parallel_for(args.x[0], args.x.size(), [&](int64_t r) {
    const Rotation<T> rotation(positions[r], args.rotary_dim, args.theta);
    for (int64_t h = 0; h < args.x[1]; ++h) {
      const T* x = args.x.as<T>() + r * args.x.stride[0] + h * args.x.stride[1];
      T* out = args.out.as<T>() + r * args.out.stride[0] + h * args.out.stride[1];
      rotation.rotate(x, out);
      if (out != x) std::copy(x + args.rotary_dim, x + args.x[2], out + args.rotary_dim);
    }
  });
}

template void rope<float>(const RopeArgs&);
template void rope<double>(const RopeArgs&);

}  // namespace hypic::reference
