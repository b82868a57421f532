#include "kernels/cuda_backend.h"

#include "kernels/common/cuda.cuh"
#include "kernels/common/device_table.cuh"
#include "kernels/linear_attention/linear_attention.cuh"
#include "kernels/ops/attention.cuh"
#include "kernels/ops/causal_conv.cuh"
#include "kernels/ops/matmul.cuh"
#include "kernels/ops/moe.cuh"
#include "kernels/ops/norm.cuh"
#include "kernels/ops/pointwise.cuh"
#include "kernels/ops/rope.cuh"

namespace hypic::cuda {
namespace {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(DType compute) : compute_(compute) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    require(error == cudaSuccess && count > 0, "backend ", name(), ": no GPU: ",
            error == cudaSuccess ? "none is there" : cudaGetErrorString(error));
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "device properties");
    require(properties.major == 9, "backend ", name(), ": ", properties.name, " is of compute capability ",
            properties.major, ".", properties.minor, "; this build has code for 9.0 (Hopper)");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    check(cublasCreate(&blas_), "handle");
    check(cublasSetStream(blas_, stream_), "stream");
    // A workspace of our own makes products the same bits from run to run.
    check(cudaMalloc(&workspace_, kWorkspace), "cuBLAS workspace");
    check(cublasSetWorkspace(blas_, workspace_, kWorkspace), "workspace");
    cudaMemPool_t pool;
    check(cudaDeviceGetDefaultMemPool(&pool, 0), "memory pool");
    uint64_t keep = UINT64_MAX;  // freed memory stays with the process
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "memory pool");
  }
  ~CudaBackend() override {
    cudaStreamSynchronize(stream_);
    cublasDestroy(blas_);
    cudaFree(workspace_);
    cudaStreamDestroy(stream_);
  }

  std::string_view name() const override { return compute_ == DType::f32 ? "cuda32" : "cuda"; }
  DType compute_dtype() const override { return compute_; }
  DType state_dtype() const override { return DType::f32; }
  bool batch_invariant() const override { return false; }  // cuBLAS chooses kernels by the number of rows

  size_t available_bytes() const override {
    size_t available = 0, total = 0;
    check(cudaMemGetInfo(&available, &total), "memory");
    return available;
  }
  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    check(cudaMallocAsync(&memory, bytes, stream_), "an allocation");
    check(cudaMemsetAsync(memory, 0xff, bytes, stream_), "poison");  // NaN, so that a read before a write shows
    return memory;
  }
  void release(void* memory) noexcept override { cudaFreeAsync(memory, stream_); }
  void upload(const Tensor& to, const void* from) override {
    HYPIC_CHECK(to.contiguous());
    if (to.bytes() > 0) check(cudaMemcpyAsync(to.data, from, to.bytes(), cudaMemcpyHostToDevice, stream_), "upload");
    // `from` may go at once; pageable memory is staged before the call returns, pinned memory is not.
    check(cudaStreamSynchronize(stream_), "upload");
  }
  void download(void* to, const Tensor& from) override {
    HYPIC_CHECK(from.contiguous());
    if (from.bytes() > 0)
      check(cudaMemcpyAsync(to, from.data, from.bytes(), cudaMemcpyDeviceToHost, stream_), "download");
    check(cudaStreamSynchronize(stream_), "download");
  }
  void copy(const Tensor& to, const Tensor& from) override { cuda::copy(to, from, stream_); }
  void fill_zero(const Tensor& tensor) override {
    HYPIC_CHECK(tensor.contiguous());
    if (tensor.bytes() > 0) check(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), stream_), "fill");
  }

  void begin(const ChainTable& table) override { table_.upload(table, stream_); }

  void embedding(const EmbeddingArgs& a) override { cuda::embedding(a, stream_); }
  void matmul(const MatmulArgs& a) override { cuda::matmul(a, blas_); }
  void head_matmul(const HeadMatmulArgs& a) override { cuda::head_matmul(a, blas_); }
  void add(const AddArgs& a) override { cuda::add(a, stream_); }
  void rms_norm(const RmsNormArgs& a) override { cuda::rms_norm(a, stream_); }
  void l2_norm(const L2NormArgs& a) override { cuda::l2_norm(a, stream_); }
  void gate_mul(const GateMulArgs& a) override { cuda::gate_mul(a, stream_); }
  void decay_gate(const DecayGateArgs& a) override { cuda::decay_gate(a, stream_); }
  void sigmoid(const SigmoidArgs& a) override { cuda::sigmoid(a, stream_); }
  void causal_conv(const CausalConvArgs& a) override { cuda::causal_conv(a, table_, stream_); }
  void linear_attention(const LinearAttentionArgs& a) override { cuda::linear_attention(a, table_, stream_); }
  void rope(const RopeArgs& a) override { cuda::rope(a, stream_); }
  void append_kv(const AppendKvArgs& a) override { cuda::append_kv(a, table_, stream_); }
  void attention(const AttentionArgs& a) override { cuda::attention(a, table_, stream_); }
  void route(const RouteArgs& a) override { cuda::route(a, stream_); }
  void experts(const ExpertsArgs& a) override {
    const Buffer inner(*this, DType::f32, {a.x[0] * a.experts[1], a.down[2]});
    cuda::experts(a, inner.tensor().as<float>(), stream_);
  }
  void gather_rows(const GatherRowsArgs& a) override { cuda::gather_rows(a, stream_); }
  void argmax(const ArgmaxArgs& a) override { cuda::argmax(a, stream_); }

 private:
  static constexpr size_t kWorkspace = 32 << 20;
  const DType compute_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  void* workspace_ = nullptr;
  TableUpload table_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(DType compute) { return std::make_unique<CudaBackend>(compute); }

}  // namespace hypic::cuda
