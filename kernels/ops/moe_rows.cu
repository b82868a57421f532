// Router and shared expert have the same rows in, so their products are one launch; routing and the shared expert's
// second product both follow it, so they are the next one. Then the experts, whose sum takes the shared one's in.
#include "kernels/ops/moe_rows.cuh"

#include "kernels/ops/experts_mma.cuh"
#include "kernels/ops/experts_wgmma.cuh"
#include "kernels/ops/matmul_rows.cuh"
#include "kernels/ops/route_row.cuh"
#include "kernels/ops/route_rows.cuh"
#include "kernels/ops/rows_product.cuh"

namespace hypic::cuda {
namespace {

using bf16 = __nv_bfloat16;

template <int kEights>
__global__ void __launch_bounds__(kRowsProductThreads, kEights == 1 ? 2 : 1)
    products_kernel(RowsProduct<float> router, RowsProduct<bf16> in, GivenRows x) {
  __shared__ RowsShared<kEights, GivenRows> shared;
  const int block = static_cast<int>(blockIdx.x);
  if (block < router.blocks)
    rows_product(router, x, block, shared);
  else
    rows_product(in, x, block - router.blocks, shared);
}

// The first blocks route, a warp a row.
template <int kEights, int kEach>
__global__ void __launch_bounds__(kRowsProductThreads, kEights == 1 ? 2 : 1)
    route_down_kernel(RouteRows route, RowsProduct<bf16> down, GatedRows x) {
  __shared__ RowsShared<kEights, GatedRows> shared;
  const int block = static_cast<int>(blockIdx.x), route_blocks = static_cast<int>(gridDim.x) - down.blocks;
  if (block >= route_blocks) return rows_product(down, x, block - route_blocks, shared);
  const int r = block * kRowsProductWarps + static_cast<int>(threadIdx.x) / 32;
  follow();
  if (r < route.R) route_row<kEach>(route, r);
}

MatmulArgs router_of(const MoeArgs& a) { return {.x = a.experts.x, .w = a.router, .out = a.route.logits}; }
MatmulArgs in_of(const MoeArgs& a) { return {.x = a.shared.x, .w = a.shared.in, .out = a.shared.projected}; }
GateMulArgs gate_of(const MoeArgs& a) {
  const SharedExpertArgs& s = a.shared;
  return {s.gate ? s.up : Tensor(), s.gate ? s.gate : s.up, s.activation, s.up};
}
MatmulArgs down_of(const MoeArgs& a) { return {.x = a.shared.up, .w = a.shared.down, .out = a.shared.part}; }

template <int kEights>
void launch_route_down(const RouteRows& route, const RowsProduct<bf16>& down, const GatedRows& x,
                       cudaStream_t stream) {
  const auto launch = [&](auto kernel) {
    const int64_t blocks = ceil_div(route.R, kRowsProductWarps) + down.blocks;
    launch_next("moe, routing", kernel, dim3(static_cast<unsigned>(blocks)), dim3(kRowsProductThreads), 0, stream,
                route, down, x);
  };
  switch (route_each_of(route.E)) {
    case 1: return launch(route_down_kernel<kEights, 1>);
    case 2: return launch(route_down_kernel<kEights, 2>);
    case 4: return launch(route_down_kernel<kEights, 4>);
    case 8: return launch(route_down_kernel<kEights, 8>);
    default: return launch(route_down_kernel<kEights, 16>);
  }
}

}  // namespace

bool moe_rows_takes(const MoeArgs& a, int sms) {
  const SharedExpertArgs& s = a.shared;
  return s.in && a.route.logits.dtype == DType::f32 && s.projected.dtype == DType::bf16 &&
         gated_rows_takes(gate_of(a), s.up) && s.part.rank == 2 && s.part.dtype == DType::bf16 && in_pieces(s.part) &&
         (!s.row_gate || (s.row_gate.rank == 2 && s.row_gate[1] == 1 && s.row_gate.dtype == DType::bf16)) &&
         s.out.data == a.experts.out.data && matmul_rows_takes(router_of(a)) && matmul_rows_takes(in_of(a)) && matmul_rows_takes(down_of(a)) && route_rows_takes(a.route) && experts_mma_takes(a.experts) &&
         !experts_wgmma_takes(a.experts, sms);
}

void moe_rows(const MoeArgs& a, bool constant_weights, int sms, cudaStream_t stream) {
  HYPIC_CHECK(moe_rows_takes(a, sms));
  const SharedExpertArgs& s = a.shared;
  const auto router = rows_product_of<float>(router_of(a), constant_weights, sms);
  const auto in = rows_product_of<bf16>(in_of(a), constant_weights, sms);
  const auto down = rows_product_of<bf16>(down_of(a), constant_weights, sms);
  const RouteRows route = route_rows_of(a.route);
  HYPIC_CHECK(router.R == in.R && in.R == down.R && down.R == route.R && router.K == in.K && router.K == down.N);
  const GatedRows inner = gated_rows_of(gate_of(a));
  const bool few = route.R <= 8;
  launch_next("moe, products", few ? products_kernel<1> : products_kernel<2>,
              dim3(static_cast<unsigned>(router.blocks + in.blocks)), dim3(kRowsProductThreads), 0, stream, router, in,
              GivenRows{view<bf16>(s.x)});
  few ? launch_route_down<1>(route, down, inner, stream) : launch_route_down<2>(route, down, inner, stream);
  experts_mma(a.experts, {view<bf16>(s.part), view<bf16>(s.row_gate)}, sms, stream);
}

}  // namespace hypic::cuda
