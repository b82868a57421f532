#include "kernels/cuda_backend.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kernels/common/arena.h"
#include "kernels/common/cuda.cuh"
#include "kernels/common/device_table.cuh"
#include "kernels/common/rank_group.cuh"
#include "kernels/common/records.cuh"
#include "kernels/common/shared_memory.cuh"
#include "kernels/common/staging.cuh"
#include "kernels/common/timings.cuh"
#include "kernels/linear_attention/chunked.cuh"
#include "kernels/linear_attention/elementwise.cuh"
#include "kernels/linear_attention/gated_row.cuh"
#include "kernels/linear_attention/linear_attention.cuh"
#include "kernels/linear_attention/low_rank.cuh"
#include "kernels/ops/attention.cuh"
#include "kernels/ops/attention_mma.cuh"
#include "kernels/ops/attention_wgmma.cuh"
#include "kernels/ops/causal_conv.cuh"
#include "kernels/ops/causal_conv_rows.cuh"
#include "kernels/ops/experts_mma.cuh"
#include "kernels/ops/experts_wgmma.cuh"
#include "kernels/ops/matmul.cuh"
#include "kernels/ops/matmul_rows.cuh"
#include "kernels/ops/moe.cuh"
#include "kernels/ops/moe_rows.cuh"
#include "kernels/ops/norm.cuh"
#include "kernels/ops/pieces.cuh"
#include "kernels/ops/pointwise.cuh"
#include "kernels/ops/qk_norm_append.cuh"
#include "kernels/ops/random.cuh"
#include "kernels/ops/rope.cuh"
#include "kernels/ops/route_rows.cuh"
#include "kernels/ops/sample.cuh"

namespace hypic::cuda {
namespace {

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : options_(options), name_(str(options.compute == DType::f32 ? "cuda32" : "cuda",
                                     options.rung == Rung::plain ? ":plain" : "",
                                     options.sms ? str(":", options.sms) : "")) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    const bool absent = error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice || count == 0;
    require(error == cudaSuccess && count > 0, "backend ", name(), ": ",
            absent ? "this machine has no GPU, or no driver for one" : cudaGetErrorString(error));
    require(options.device < count, "backend ", name(), ": device ", options.device, " of ", count);
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, options.device), "device properties");
    require(properties.major == 9, "backend ", name(), ": ", properties.name, " is of compute capability ",
            properties.major, ".", properties.minor, "; this build has code for 9.0 (Hopper)");
    require(options.sms <= properties.multiProcessorCount, "backend ", name(), ": ", properties.name, " has ",
            properties.multiProcessorCount, " multiprocessors");
    sms_ = options.sms ? options.sms : properties.multiProcessorCount;
    check(cudaSetDevice(options.device), "device");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    check(cudaDeviceGetDefaultMemPool(&pool_, options.device), "memory pool");
    uint64_t keep = UINT64_MAX;  // freed memory stays with the process
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep), "memory pool");
    staging_.emplace(stream_);
    products_.emplace();
  }
  ~CudaBackend() override {
    cudaStreamSynchronize(stream_);
    records_.forget();  // a communicator waits for the graphs that hold it
    group_.reset();
    cudaStreamDestroy(stream_);
  }

  std::string_view name() const override { return name_; }
  DType compute_dtype() const override { return options_.compute; }
  DType state_dtype() const override { return DType::f32; }
  bool batch_invariant() const override { return false; }  // cuBLASLt chooses kernels by the number of rows
  std::map<std::string, int64_t> launches() const override { return {launches_.begin(), launches_.end()}; }
  cudaStream_t stream() const { return stream_; }
  void join(std::shared_ptr<RankGroup> group, int rank) {
    group_ = std::move(group);
    rank_ = rank;
  }

  void enter_thread() const override { check(cudaSetDevice(options_.device), "device"); }

  size_t available_bytes() const override {
    size_t available = 0, total = 0;
    check(cudaMemGetInfo(&available, &total), "memory");
    return available + pool_bytes(cudaMemPoolAttrReservedMemCurrent) - pool_bytes(cudaMemPoolAttrUsedMemCurrent);
  }
  MemoryUse memory_use() const override {
    const size_t now = pool_bytes(cudaMemPoolAttrUsedMemCurrent);
    return {now, std::max(now, pool_bytes(cudaMemPoolAttrUsedMemHigh))};
  }
  void forget_peak() override {
    uint64_t zero = 0;  // the only value that it takes
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &zero), "memory pool");
  }
  void* allocate(size_t bytes) override {
    if (recording_arena) return recording_arena->take(bytes);  // the first run, unrecorded, had it poisoned
    void* memory = nullptr;
    check(cudaMallocAsync(&memory, bytes, stream_), "an allocation");
    check(cudaMemsetAsync(memory, 0xff, bytes, stream_), "poison");  // NaN, so that a read before a write shows
    return memory;
  }
  void release(void* memory) noexcept override {
    if (!records_.give_back(memory)) cudaFreeAsync(memory, stream_);
  }
  void upload(const Tensor& to, const void* from) override {
    HYPIC_CHECK(to.contiguous());
    staging_->upload(to.data, from, static_cast<size_t>(to.bytes()));
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

  void* allocate_host(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) throw OutOfMemory(str("out of host memory to pin: ", bytes, " bytes"));
    check(error, "pinned memory");
    return memory;
  }
  void release_host(void* memory) noexcept override { cudaFreeHost(memory); }
  void upload_async(const Tensor& to, const void* from) override {
    HYPIC_CHECK(to.contiguous());
    if (to.bytes() > 0) check(cudaMemcpyAsync(to.data, from, to.bytes(), cudaMemcpyHostToDevice, stream_), "upload");
  }
  void download_async(void* to, const Tensor& from) override {
    HYPIC_CHECK(from.contiguous());
    if (from.bytes() > 0)
      check(cudaMemcpyAsync(to, from.data, from.bytes(), cudaMemcpyDeviceToHost, stream_), "download");
  }
  std::unique_ptr<Event> record() override { return std::make_unique<CudaEvent>(stream_); }

  std::unique_ptr<SharedMemory> share(int64_t bytes) override { return share_memory(options_.device, bytes); }
  std::unique_ptr<SharedMemory> open_shared(const std::string& handle) override {
    return open_shared_memory(options_.device, handle);
  }
  std::unique_ptr<Copies> copies() override { return make_copies(options_.device); }
  void copy_bytes(std::span<const BytesCopy> pieces) override { cuda::copy_bytes(pieces, stream_); }
  void wait_for(Event& event) override { cuda::wait_for(event, stream_); }

  Rows begin(const ChainTable& table) override {
    table_.upload(table, *staging_, stream_);
    const auto view = [](const int32_t* x, size_t n) { return Tensor(x, {static_cast<int64_t>(n)}); };
    const DeviceTable& device = table_.device();
    return {view(device.tokens, table.tokens.size()), view(device.positions, table.positions.size()),
            view(device.logit_rows, table.logit_rows.size())};
  }

  void replay(const std::string& key, const std::function<void()>& enqueue) override {
    if (profiling_ || (group_ && !group_->records())) return enqueue();
    // Launch plans follow the number of keys by powers of two.
    const auto keys = std::bit_ceil(static_cast<uint32_t>(table_.max_keys()) + 1);
    if (group_) group_->will_enqueue(rank_);
    records_.replay(str(key, "|", table_.shape(), "|", keys), enqueue, stream_, launches_);
    if (group_) group_->has_enqueued(rank_, sums());
  }

  void profile(bool on) override {
    profiling_ = on;
    if (on) timings_.clear();
  }
  std::map<std::string, double> profile_seconds() const override { return timings_.seconds(stream_); }

  void random_normal(const RandomNormalArgs& a) override {
    run("random_normal/plain", cuda::random_normal, a, stream_);
  }
  void embedding(const EmbeddingArgs& a) override { run("embedding/plain", cuda::embedding, a, stream_); }
  void matmul(const MatmulArgs& a) override {
    if (fast() && matmul_rows_takes(a))
      run("matmul/rows", cuda::matmul_rows, a, recording_arena != nullptr, sms_, stream_);
    else
      run("matmul/cublas", &Products::matmul, *products_, a, stream_);
  }
  void head_matmul(const HeadMatmulArgs& a) override {
    run("head_matmul/cublas", &Products::head_matmul, *products_, a, stream_);
  }
  void add(const AddArgs& a) override {
    if (fast() && add_pieces_takes(a))
      run("add/pieces", cuda::add_pieces, a, stream_);
    else
      run("add/plain", cuda::add, a, stream_);
  }
  void rms_norm(const RmsNormArgs& a) override { run("rms_norm/plain", cuda::rms_norm, a, stream_); }
  void l2_norm(const L2NormArgs& a) override { run("l2_norm/plain", cuda::l2_norm, a, stream_); }
  void gate_mul(const GateMulArgs& a) override {
    if (fast() && gate_mul_pieces_takes(a))
      run("gate_mul/pieces", cuda::gate_mul_pieces, a, stream_);
    else
      run("gate_mul/plain", cuda::gate_mul, a, stream_);
  }
  void decay_gate(const DecayGateArgs& a) override { run("decay_gate/plain", cuda::decay_gate, a, stream_); }
  void sigmoid(const SigmoidArgs& a) override { run("sigmoid/plain", cuda::sigmoid, a, stream_); }
  void causal_conv(const CausalConvArgs& a) override {
    if (fast() && causal_conv_rows_takes(a))
      run("causal_conv/rows", cuda::causal_conv_rows, a, table_, sms_, stream_);
    else
      run("causal_conv/plain", cuda::causal_conv, a, table_, stream_);
  }
  void linear_attention(const LinearAttentionArgs& a) override {
    if (fast() && chunked_takes(a))
      run("linear_attention/chunked", cuda::chunked, a, table_, sms_, stream_);
    else if (fast() && low_rank_takes(a, table_))
      run("linear_attention/low_rank", cuda::low_rank, a, table_, sms_, stream_);
    else if (fast() && elementwise_takes(a))
      run("linear_attention/elementwise", cuda::elementwise, a, table_, sms_, stream_);
    else
      run("linear_attention/plain", cuda::linear_attention, a, table_, stream_);
  }
  void rope(const RopeArgs& a) override { run("rope/plain", cuda::rope, a, stream_); }
  void append_kv(const AppendKvArgs& a) override { run("append_kv/plain", cuda::append_kv, a, table_, stream_); }
  void attention(const AttentionArgs& a) override {
    if (fast() && attention_wgmma_suits(a, table_))
      run("attention/wgmma", cuda::attention_wgmma, a, table_, sms_, stream_);
    else if (fast() && attention_mma_takes(a, table_))
      run("attention/mma", cuda::attention_mma, a, table_, sms_, stream_);
    else
      run("attention/plain", cuda::attention, a, table_, stream_);
  }
  void route(const RouteArgs& a) override {
    if (fast() && route_rows_takes(a))
      run("route/rows", cuda::route_rows, a, stream_);
    else
      run("route/plain", cuda::route, a, stream_);
  }
  void experts(const ExpertsArgs& a) override {
    if (fast() && experts_wgmma_takes(a, sms_))
      run("experts/wgmma", cuda::experts_wgmma, a, sms_, stream_);
    else if (fast() && experts_mma_takes(a))
      run("experts/mma", cuda::experts_mma, a, ExpertsMore{}, sms_, stream_);
    else
      run("experts/plain", cuda::experts, a, stream_);
  }
  void gather_rows(const GatherRowsArgs& a) override { run("gather_rows/plain", cuda::gather_rows, a, stream_); }
  void sample(const SampleArgs& a) override { run("sample/plain", cuda::sample, a, stream_); }
  void add_rms_norm(const AddRmsNormArgs& a) override {
    if (fast() && add_rms_norm_pieces_takes(a))
      run("add_rms_norm/pieces", cuda::add_rms_norm_pieces, a, stream_);
    else
      Backend::add_rms_norm(a);
  }
  void add_gated(const AddGatedArgs& a) override {
    if (fast() && add_gated_pieces_takes(a))
      run("add_gated/pieces", cuda::add_gated_pieces, a, stream_);
    else
      Backend::add_gated(a);
  }
  void conv_gates(const ConvGatesArgs& a) override {
    if (fast() && conv_gates_rows_takes(a))
      run("conv_gates/rows", cuda::conv_gates_rows, a, table_, sms_, stream_);
    else
      Backend::conv_gates(a);
  }
  void qk_norm_append(const QkNormAppendArgs& a) override {
    if (fast() && qk_norm_append_heads_takes(a, table_))
      run("qk_norm_append/heads", cuda::qk_norm_append_heads, a, table_, stream_);
    else
      Backend::qk_norm_append(a);
  }
  void gated_norm(const GatedNormArgs& a) override {
    if (fast() && gated_norm_pieces_takes(a))
      run("gated_norm/pieces", cuda::gated_norm_pieces, a, stream_);
    else
      Backend::gated_norm(a);
  }
  void gated_linear_attention(const GatedLinearAttentionArgs& a) override {
    if (fast() && gated_row_takes(a, table_, sms_))
      run("gated_linear_attention/row", cuda::gated_row, a, table_, stream_);
    else
      Backend::gated_linear_attention(a);
  }
  void moe(const MoeArgs& a) override {
    if (fast() && moe_rows_takes(a, sms_))
      run("moe/rows", cuda::moe_rows, a, recording_arena != nullptr, sms_, stream_);
    else
      Backend::moe(a);
  }
  void all_reduce(const Tensor& tensor) override {
    if (!group_) return;
    if (!recording_arena) group_->will_enqueue(rank_);
    run(group_->kernel(), &RankGroup::all_reduce, *group_, rank_, tensor, stream_);
    if (!recording_arena) group_->has_enqueued(rank_, sums());
  }
  void leave_group() noexcept override {
    if (!group_) return;
    const cudaError_t error = cudaStreamQuery(stream_);
    group_->leave(rank_, error != cudaSuccess && error != cudaErrorNotReady);
  }
  void rejoin_group() override {
    if (!group_) return;
    enter_thread();
    const cudaError_t error = cudaStreamSynchronize(stream_);
    if (group_->aborted()) records_.forget();
    check(error, "a rank");
    old_sums_ += sums();
    group_->rejoin(rank_);
  }

 private:
  bool fast() const { return options_.rung == Rung::fast; }
  // Enqueued since the group was made or rejoined.
  int64_t sums() const {
    const auto found = launches_.find(group_->kernel());
    return found == launches_.end() ? 0 : found->second - old_sums_;
  }
  size_t pool_bytes(cudaMemPoolAttr attribute) const {
    uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, attribute, &bytes), "memory pool");
    return bytes;
  }

  template <class Operation, class... Args>
  void run(const char* kernel, Operation&& operation, Args&&... args) {
    ++launches_[kernel];
    if (profiling_) timings_.begin(kernel, stream_);
    std::invoke(operation, std::forward<Args>(args)...);
    if (profiling_) timings_.end(stream_);
  }

  const CudaOptions options_;
  const std::string name_;
  int sms_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  std::optional<Staging> staging_;
  std::optional<Products> products_;
  TableUpload table_;
  std::shared_ptr<RankGroup> group_;  // none: alone
  int rank_ = 0;
  int64_t old_sums_ = 0;
  std::map<std::string, int64_t> launches_;
  Records records_;
  bool profiling_ = false;
  Timings timings_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  return std::make_unique<CudaBackend>(options);
}

std::vector<std::unique_ptr<Backend>> make_cuda_ranks(const CudaOptions& options, std::span<const int> devices) {
  const std::set<int> distinct(devices.begin(), devices.end());
  require(distinct.size() == devices.size() || distinct.size() == 1,
          "devices of tensor-parallel ranks: must be all different, or, for tests, all the same");
  std::vector<std::unique_ptr<Backend>> ranks;
  std::vector<CudaBackend*> members;
  for (const int device : devices) {
    CudaOptions own = options;
    own.device = device;
    auto rank = std::make_unique<CudaBackend>(own);
    members.push_back(rank.get());
    ranks.push_back(std::move(rank));
  }
  if (ranks.size() > 1) {
    ranks[0]->enter_thread();
    const auto group = distinct.size() == 1 ? make_shared_device_group(static_cast<int>(devices.size()))
                                            : make_nccl_group(devices);
    for (size_t rank = 0; rank < members.size(); ++rank) members[rank]->join(group, static_cast<int>(rank));
  }
  ranks[0]->enter_thread();
  return ranks;
}

void* stream_of(const Backend& backend) {
  const auto* cuda = dynamic_cast<const CudaBackend*>(&backend);
  return cuda ? cuda->stream() : nullptr;
}

}  // namespace hypic::cuda
