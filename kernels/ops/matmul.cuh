// Matrix products by cuBLASLt, sums in float32 (no TF32).
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>
#include <memory>

#include "core/backend.h"
#include "kernels/common/cuda.cuh"

namespace hypic::cuda {

class Products {
 public:
  Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  ~Products();

  void matmul(const MatmulArgs& args, cudaStream_t stream);
  void head_matmul(const HeadMatmulArgs& args, cudaStream_t stream);

 private:
  // out[b] = w[b] · x[b] column-major: w [N, K] (transposed: as stored), x [K, R].
  struct Shape {
    int64_t N, R, K, batch, w_batch, x_row, x_batch, out_row, out_batch;
    cudaDataType_t type, out_type;
    bool w_transposed;
    int w_align, x_align, out_align;  // of the addresses, at most 16 bytes
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan;
  const Plan& plan_of(const Shape& shape);
  void run(Shape shape, double scale, const void* w, const void* x, void* out, cudaStream_t stream);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;  // of our own: products have the same bits from run to run
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace hypic::cuda
