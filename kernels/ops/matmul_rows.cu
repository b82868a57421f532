#include "kernels/ops/matmul_rows.cuh"

#include "kernels/ops/rows_product.cuh"

namespace hypic::cuda {
namespace {

template <int kEights, class Out, class X>
__global__ void __launch_bounds__(kRowsProductThreads, kEights == 1 ? 2 : 1)
    rows_kernel(RowsProduct<Out> a, X x) {
  __shared__ RowsShared<kEights, X> shared;
  rows_product(a, x, static_cast<int>(blockIdx.x), shared);
}

template <class Out, class X>
void launch(const RowsProduct<Out>& product, const X& x, cudaStream_t stream) {
  const auto run = [&](auto kernel) {
    launch_next("product of rows", kernel, dim3(static_cast<unsigned>(product.blocks)), dim3(kRowsProductThreads), 0,
                stream, product, x);
  };
  if (product.R <= 8) return run(rows_kernel<1, Out, X>);
  run(rows_kernel<2, Out, X>);
}

}  // namespace

bool matmul_rows_takes(const MatmulArgs& a) {
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  constexpr int64_t kMaxSize = 1 << 30;
  constexpr int64_t kMaxN = 1 << 16;  // cublasLt reads a whole vocabulary at 97 % of what memory gives, this at 86 %
  return a.x.rank == 2 && a.w.rank == 2 && a.out.rank == 2 && 1 <= a.x[0] && a.x[0] <= kRowsProductRows &&
         a.x.dtype == DType::bf16 && a.w.dtype == DType::bf16 &&
         (a.out.dtype == DType::bf16 || a.out.dtype == DType::f32) && 1 <= a.w[0] && a.w[0] <= kMaxN && 8 <= a.w[1] &&
         a.w[1] < kMaxSize && a.w[1] % 8 == 0 && a.w.contiguous() && aligned(a.w) && aligned(a.x) &&
         a.x.stride[1] == 1 && a.x.stride[0] % 8 == 0 && a.out.stride[1] == 1;
}

void matmul_rows(const MatmulArgs& a, bool constant_weights, int sms, cudaStream_t stream) {
  HYPIC_CHECK(matmul_rows_takes(a));
  visit_device(a.out.dtype, [&](auto zero) {
    launch(rows_product_of<decltype(zero)>(a, constant_weights, sms), GivenRows{view<__nv_bfloat16>(a.x)}, stream);
  });
}

}  // namespace hypic::cuda
