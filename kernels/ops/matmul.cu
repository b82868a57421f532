#include "kernels/ops/matmul.cuh"

namespace hypic::cuda {
namespace {

cudaDataType_t type_of(DType dtype) {
  HYPIC_CHECK(dtype == DType::f32 || dtype == DType::bf16, "no product in ", name_of(dtype));
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

}  // namespace

// cuBLAS is column-major: outᵀ = w · xᵀ, w read as [K, N] transposed.
void matmul(const MatmulArgs& a, cublasHandle_t blas) {
  Shapes shapes("matmul");
  shapes.bind(a.x, "x", {"R", "K"}).bind(a.w, "w", {"N", "K"}).bind(a.out, "out", {"R", "N"});
  HYPIC_CHECK(a.x.dtype == a.w.dtype && a.x.stride[1] == 1 && a.w.contiguous() && a.out.stride[1] == 1);
  const auto R = static_cast<int>(shapes["R"]), K = static_cast<int>(shapes["K"]), N = static_cast<int>(shapes["N"]);
  if (R == 0 || N == 0) return;
  const auto alpha = static_cast<float>(a.scale);
  const float beta = 0;
  check(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, N, R, K, &alpha, a.w.data, type_of(a.w.dtype), K, a.x.data,
                     type_of(a.x.dtype), static_cast<int>(a.x.stride[0]), &beta, a.out.data, type_of(a.out.dtype),
                     static_cast<int>(a.out.stride[0]), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "matmul");
}

void head_matmul(const HeadMatmulArgs& a, cublasHandle_t blas) {
  Shapes shapes("head_matmul");
  shapes.bind(a.x, "x", {"R", "H", "K"}).bind(a.out, "out", {"R", "H", "N"});
  if (a.transposed)
    shapes.bind(a.w, "w", {"H", "K", "N"});
  else
    shapes.bind(a.w, "w", {"H", "N", "K"});
  HYPIC_CHECK(a.x.dtype == a.w.dtype && a.x.stride[2] == 1 && a.w.contiguous() && a.out.stride[2] == 1);
  const auto R = static_cast<int>(shapes["R"]), K = static_cast<int>(shapes["K"]), N = static_cast<int>(shapes["N"]);
  if (R == 0 || a.x[1] == 0) return;
  const float alpha = 1, beta = 0;
  check(cublasGemmStridedBatchedEx(blas, a.transposed ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N, N, R, K, &alpha,
                                   a.w.data, type_of(a.w.dtype), a.transposed ? N : K, int64_t{N} * K, a.x.data,
                                   type_of(a.x.dtype), static_cast<int>(a.x.stride[0]), a.x.stride[1], &beta,
                                   a.out.data, type_of(a.out.dtype), static_cast<int>(a.out.stride[0]),
                                   a.out.stride[1], static_cast<int>(a.x[1]), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "head_matmul");
}

}  // namespace hypic::cuda
