#include "reference/cpu_backend.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "reference/group.h"
#include "reference/memory.h"
#include "reference/ops/attention.h"
#include "reference/ops/causal_conv.h"
#include "reference/ops/linear_attention.h"
#include "reference/ops/matmul.h"
#include "reference/ops/moe.h"
#include "reference/ops/norm.h"
#include "reference/ops/pointwise.h"
#include "reference/ops/random.h"
#include "reference/ops/rope.h"
#include "reference/ops/sample.h"
#include "reference/shared_memory.h"

namespace hypic::reference {
namespace {

template <class T>
class CpuBackend final : public Backend {
 public:
  CpuBackend() = default;
  CpuBackend(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  std::string_view name() const override { return sizeof(T) == 8 ? "cpu64" : "cpu"; }
  DType compute_dtype() const override { return kDTypeOf<T>; }
  DType state_dtype() const override { return kDTypeOf<T>; }
  bool batch_invariant() const override { return true; }

  size_t available_bytes() const override { return available_memory(); }
  void* allocate(size_t bytes) override {
    void* memory = std::malloc(bytes);
    if (!memory) throw OutOfMemory(str("out of memory: ", bytes, " bytes asked for on the CPU"));
    std::memset(memory, 0xff, bytes);  // NaN, so that a read before a write shows
    use_.now += malloc_usable_size(memory);
    use_.peak = std::max(use_.peak, use_.now);
    return memory;
  }
  void release(void* memory) noexcept override {
    use_.now -= malloc_usable_size(memory);
    std::free(memory);
  }
  MemoryUse memory_use() const override { return use_; }
  void forget_peak() override { use_.peak = use_.now; }
  void upload(const Tensor& to, const void* from) override {
    HYPIC_CHECK(to.contiguous());
    move(to.data, from, to.bytes());
  }
  void download(void* to, const Tensor& from) override {
    HYPIC_CHECK(from.contiguous());
    move(to, from.data, from.bytes());
  }
  void copy(const Tensor& to, const Tensor& from) override {
    HYPIC_CHECK(to.dtype == from.dtype && to.rank == from.rank && to.shape == from.shape, to.shape_string(),
                " from ", from.shape_string());
    if (to.contiguous() && from.contiguous()) return move(to.data, from.data, to.bytes());
    if (to.rank > 1) {
      for (int64_t i = 0; i < to[0]; ++i) copy(to.at(i), from.at(i));
      return;
    }
    HYPIC_CHECK(to.contiguous() && from.contiguous(), "the last axis must be contiguous");
  }
  void fill_zero(const Tensor& tensor) override {
    HYPIC_CHECK(tensor.contiguous());
    std::memset(tensor.data, 0, tensor.bytes());
  }

  std::unique_ptr<SharedMemory> share(int64_t bytes) override { return share_memory(bytes); }
  std::unique_ptr<SharedMemory> open_shared(const std::string& handle) override { return open_shared_memory(handle); }
  std::unique_ptr<Copies> copies() override { return make_copies(); }

  Rows begin(const ChainTable& table) override {
    table_ = &table;
    const auto view = [](const std::vector<int32_t>& x) { return Tensor(x.data(), {static_cast<int64_t>(x.size())}); };
    return {view(table.tokens), view(table.positions), view(table.logit_rows)};
  }

  void random_normal(const RandomNormalArgs& a) override { reference::random_normal(a); }
  void embedding(const EmbeddingArgs& a) override { reference::embedding<T>(a); }
  void matmul(const MatmulArgs& a) override { reference::matmul<T>(a); }
  void head_matmul(const HeadMatmulArgs& a) override { reference::head_matmul<T>(a); }
  void add(const AddArgs& a) override { reference::add<T>(a); }
  void rms_norm(const RmsNormArgs& a) override { reference::rms_norm<T>(a); }
  void l2_norm(const L2NormArgs& a) override { reference::l2_norm<T>(a); }
  void gate_mul(const GateMulArgs& a) override { reference::gate_mul<T>(a); }
  void decay_gate(const DecayGateArgs& a) override { reference::decay_gate<T>(a); }
  void sigmoid(const SigmoidArgs& a) override { reference::sigmoid<T>(a); }
  void causal_conv(const CausalConvArgs& a) override { reference::causal_conv<T>(a, table()); }
  void linear_attention(const LinearAttentionArgs& a) override { reference::linear_attention<T>(a, table()); }
  void rope(const RopeArgs& a) override { reference::rope<T>(a); }
  void append_kv(const AppendKvArgs& a) override { reference::append_kv<T>(a, table()); }
  void attention(const AttentionArgs& a) override { reference::attention<T>(a, table()); }
  void route(const RouteArgs& a) override { reference::route<T>(a); }
  void experts(const ExpertsArgs& a) override { reference::experts<T>(a); }
  void gather_rows(const GatherRowsArgs& a) override { reference::gather_rows<T>(a); }
  void sample(const SampleArgs& a) override { reference::sample<T>(a); }
  void all_reduce(const Tensor& tensor) override {
    if (group_) group_->all_reduce(rank_, tensor);
  }
  void leave_group() noexcept override {
    if (group_) group_->meeting.leave(rank_);
  }
  void rejoin_group() override {
    if (group_) group_->meeting.rejoin(rank_);
  }

 private:
  // An empty vector may have no address, which memmove would not take.
  static void move(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memmove(to, from, bytes);
  }
  const ChainTable& table() const {
    HYPIC_CHECK(table_ != nullptr, "begin() comes first");
    return *table_;
  }
  const ChainTable* table_ = nullptr;
  MemoryUse use_;
  const std::shared_ptr<Group> group_;  // none: alone
  const int rank_ = 0;
};

template <class T>
std::vector<std::unique_ptr<Backend>> make_ranks(int ranks) {
  const auto group = std::make_shared<Group>(ranks);
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < ranks; ++rank) backends.push_back(std::make_unique<CpuBackend<T>>(group, rank));
  return backends;
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend<float>>(); }
std::unique_ptr<Backend> make_cpu64_backend() { return std::make_unique<CpuBackend<double>>(); }
std::vector<std::unique_ptr<Backend>> make_cpu_ranks(int ranks) { return make_ranks<float>(ranks); }
std::vector<std::unique_ptr<Backend>> make_cpu64_ranks(int ranks) { return make_ranks<double>(ranks); }

}  // namespace hypic::reference
