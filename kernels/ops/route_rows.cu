#include "kernels/ops/route_rows.cuh"

#include "kernels/common/launch_next.cuh"
#include "kernels/ops/route_row.cuh"

namespace hypic::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, one row each

template <int kEach>
__global__ void __launch_bounds__(32 * kWarps) route_kernel(RouteRows a) {
  const int r = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  follow();
  if (r < a.R) route_row<kEach>(a, r);
}

}  // namespace

bool route_rows_takes(const RouteArgs& a) {
  if (a.logits.rank != 2 || a.experts.rank != 2 || a.groups < 1) return false;
  const int64_t E = a.logits[1], each = route_each_of(E), width = E / a.groups;
  return 1 <= E && E <= 32 * kMaxRouteEach && a.experts[1] <= 32 && a.logits[0] < (1 << 30) &&
         (a.kept_groups == a.groups || (width % each == 0 && is_lane_count(width / each)));
}

RouteRows route_rows_of(const RouteArgs& a) {
  Shapes shapes("route");
  shapes.bind(a.logits, "logits", {"R", "E"}).bind(a.experts, "experts", {"R", "k"}).bind(a.weights, "weights",
                                                                                          {"R", "k"});
  if (a.bias) shapes.bind(a.bias, "bias", {"E"});
  const auto E = static_cast<int>(shapes["E"]), k = static_cast<int>(shapes["k"]);
  HYPIC_CHECK(route_rows_takes(a) && E % a.groups == 0 && 1 <= a.kept_groups && a.kept_groups <= a.groups && 1 <= k &&
                  k <= E / a.groups * a.kept_groups,
              "route: ", k, " of ", E, " experts in ", a.kept_groups, " of ", a.groups, " groups");
  return {.logits = view<float>(a.logits),
          .bias = a.bias ? a.bias.as<float>() : nullptr,
          .R = static_cast<int>(shapes["R"]),
          .E = E,
          .k = k,
          .sigmoid = a.score == RouteArgs::Score::sigmoid,
          .group_lanes = a.kept_groups < a.groups ? E / a.groups / route_each_of(E) : 0,
          .kept_groups = a.kept_groups,
          .renormalise = a.renormalise,
          .scale = static_cast<float>(a.scale),
          .experts = {a.experts.as<int32_t>(), a.experts.stride[0], 0, 1},
          .weights = view<float>(a.weights)};
}

void route_rows(const RouteArgs& a, cudaStream_t stream) {
  const RouteRows args = route_rows_of(a);
  if (args.R == 0) return;
  const auto launch = [&](auto kernel) {
    launch_next("route", kernel, dim3(static_cast<unsigned>(ceil_div(args.R, kWarps))), dim3(32 * kWarps), 0,
                stream, args);
  };
  switch (route_each_of(args.E)) {
    case 1: return launch(route_kernel<1>);
    case 2: return launch(route_kernel<2>);
    case 4: return launch(route_kernel<4>);
    case 8: return launch(route_kernel<8>);
    default: return launch(route_kernel<16>);
  }
}

}  // namespace hypic::cuda
