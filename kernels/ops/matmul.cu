#include "kernels/ops/matmul.cuh"

namespace hypic::cuda {
namespace {

constexpr size_t kWorkspace = 32 << 20;
constexpr size_t kMaxPlans = 4096;  // every number of rows has its own
// Fewer rows run what cuBLASLt chooses for so many, where it can: for one row it may choose a kernel that takes twice as
// long (N = 1032, K = 2048 on an H200), and a row has the same bits in all of these batches.
constexpr int64_t kFewRows = 16;

cudaDataType_t type_of(DType dtype) {
  HYPIC_CHECK(dtype == DType::f32 || dtype == DType::bf16, "no product in ", name_of(dtype));
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

int alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return address % 16 == 0 ? 16 : static_cast<int>(address & -address);
}

cublasLtMatrixLayout_t layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride, int64_t batch,
                              int64_t batch_stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, rows, columns, stride), "layout");
  const auto count = static_cast<int32_t>(batch);
  check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count), "layout");
  check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                         sizeof batch_stride),
        "layout");
  return layout;
}

}  // namespace

// What cuBLASLt chose for a shape: asked once, so that a shape always runs the same kernel.
struct Products::Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm;
  ~Plan() {
    for (const cublasLtMatrixLayout_t l : {w, x, out}) cublasLtMatrixLayoutDestroy(l);
    cublasLtMatmulDescDestroy(product);
  }
};

Products::Products() {
  check(cublasLtCreate(&handle_), "handle");
  check(cudaMalloc(&workspace_, kWorkspace), "cuBLAS workspace");
}

Products::~Products() {
  plans_.clear();
  cudaFree(workspace_);
  cublasLtDestroy(handle_);
}

const Products::Plan& Products::plan_of(const Shape& s) {
  if (const auto found = plans_.find(s); found != plans_.end()) return *found->second;
  auto plan = std::make_unique<Plan>();
  check(cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
  const cublasOperation_t turn = s.w_transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, &turn, sizeof turn), "product");
  plan->w = s.w_transposed ? layout(s.type, s.N, s.K, s.N, s.batch, s.w_batch)
                           : layout(s.type, s.K, s.N, s.K, s.batch, s.w_batch);
  plan->x = layout(s.type, s.K, s.R, s.x_row, s.batch, s.x_batch);
  plan->out = layout(s.out_type, s.N, s.R, s.out_row, s.batch, s.out_batch);
  const auto set_rows = [&](int64_t rows) {
    const auto columns = static_cast<uint64_t>(rows);
    for (const cublasLtMatrixLayout_t l : {plan->x, plan->out})
      check(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns), "layout");
  };
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(s.w_align));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(s.x_align));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(s.out_align));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(s.out_align));
  const auto choose = [&] {
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, plan->product, plan->w, plan->x, plan->out,
                                                                 plan->out, preference, 1, &best, &found);
    plan->algorithm = best.algo;
    return status == CUBLAS_STATUS_SUCCESS && found == 1;
  };
  const auto fits = [&] {
    cublasLtMatmulHeuristicResult_t needs{};
    return cublasLtMatmulAlgoCheck(handle_, plan->product, plan->w, plan->x, plan->out, plan->out, &plan->algorithm,
                                   &needs) == CUBLAS_STATUS_SUCCESS &&
           needs.workspaceSize <= kWorkspace;
  };
  bool chosen = false;
  if (s.R < kFewRows) {
    set_rows(kFewRows);
    chosen = choose();
    set_rows(s.R);
    chosen = chosen && fits();
  }
  if (!chosen) chosen = choose();
  cublasLtMatmulPreferenceDestroy(preference);
  HYPIC_CHECK(chosen, "cuBLASLt has no product of ", s.N, " × ", s.K, " by ", s.K, " × ", s.R);
  if (plans_.size() >= kMaxPlans) plans_.clear();
  return *(plans_[s] = std::move(plan));
}

void Products::run(Shape shape, double scale, const void* w, const void* x, void* out, cudaStream_t stream) {
  shape.w_align = alignment(w);
  shape.x_align = alignment(x);
  shape.out_align = alignment(out);
  const Plan& plan = plan_of(shape);
  const auto alpha = static_cast<float>(scale);
  const float beta = 0;
  check(cublasLtMatmul(handle_, plan.product, &alpha, w, plan.w, x, plan.x, &beta, out, plan.out, out, plan.out,
                       &plan.algorithm, workspace_, kWorkspace, stream),
        "product");
}

void Products::matmul(const MatmulArgs& a, cudaStream_t stream) {
  Shapes shapes("matmul");
  shapes.bind(a.x, "x", {"R", "K"}).bind(a.w, "w", {"N", "K"}).bind(a.out, "out", {"R", "N"});
  HYPIC_CHECK(a.x.dtype == a.w.dtype && a.x.stride[1] == 1 && a.w.contiguous() && a.out.stride[1] == 1);
  if (shapes["R"] == 0 || shapes["N"] == 0) return;
  run({.N = shapes["N"], .R = shapes["R"], .K = shapes["K"], .batch = 1, .x_row = a.x.stride[0],
       .out_row = a.out.stride[0], .type = type_of(a.w.dtype), .out_type = type_of(a.out.dtype)},
      a.scale, a.w.data, a.x.data, a.out.data, stream);
}

void Products::head_matmul(const HeadMatmulArgs& a, cudaStream_t stream) {
  Shapes shapes("head_matmul");
  shapes.bind(a.x, "x", {"R", "H", "K"}).bind(a.out, "out", {"R", "H", "N"});
  if (a.transposed)
    shapes.bind(a.w, "w", {"H", "K", "N"});
  else
    shapes.bind(a.w, "w", {"H", "N", "K"});
  HYPIC_CHECK(a.x.dtype == a.w.dtype && a.x.stride[2] == 1 && a.w.contiguous() && a.out.stride[2] == 1);
  if (shapes["R"] == 0 || shapes["H"] == 0) return;
  run({.N = shapes["N"], .R = shapes["R"], .K = shapes["K"], .batch = shapes["H"],
       .w_batch = shapes["N"] * shapes["K"], .x_row = a.x.stride[0], .x_batch = a.x.stride[1],
       .out_row = a.out.stride[0], .out_batch = a.out.stride[1], .type = type_of(a.w.dtype),
       .out_type = type_of(a.out.dtype), .w_transposed = a.transposed},
      1, a.w.data, a.x.data, a.out.data, stream);
}

}  // namespace hypic::cuda
