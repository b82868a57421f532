#include "kernels/plugin/plugin_backend.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <deque>
#include <span>
#include <utility>

#include "core/check.h"

namespace hypic::plugin {
namespace {

constexpr size_t kMaxName = 64;
constexpr size_t kMaxReason = 80;

// Its first characters, those that are none of a word as '_': for keys and messages.
std::string plain(const char* text, size_t most, std::string_view also) {
  std::string out;
  for (; text && *text && out.size() < most; ++text)
    out += std::isalnum(static_cast<unsigned char>(*text)) || also.find(*text) != also.npos ? *text : '_';
  return out;
}

class Entered {
 public:
  Entered(Watch& watch, std::string_view what) : watch_(watch) { watch_.enter(what); }
  ~Entered() { watch_.leave(); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  Watch& watch_;
};

// A wait for the device is a wait for the plug-in's kernels.
class WatchedEvent final : public Event {
 public:
  WatchedEvent(std::unique_ptr<Event> event, Watch& watch) : event_(std::move(event)), watch_(watch) {}
  bool done() override { return event_->done(); }
  void wait() override {
    const Entered entered(watch_, "the device, wait");
    event_->wait();
  }

 private:
  const std::unique_ptr<Event> event_;
  Watch& watch_;
};

uint32_t bit_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return HYPIC_F32;
    case DType::f64:
      return HYPIC_F64;
    case DType::bf16:
      return HYPIC_BF16;
    default:
      return 0;
  }
}

// The table of a library that is loaded to stay: what it left behind (threads, handlers) may run until the end.
const hypic_kernel& load(const std::string& path, const Backend& base, bool on_device, Watch& watch) {
  const Entered entered(watch, "loading");
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const said = dlerror();
    std::string why = said ? said : "unknown reason";
    if (why.starts_with(path + ": ")) why.erase(0, path.size() + 2);
    fail(path, ": cannot be loaded: ", why);
  }
  void* const symbol = dlsym(library, "hypic_kernel_get");
  require(symbol != nullptr, path, ": exports no hypic_kernel_get; see kernels/plugin/hypic_kernel.h");
  const auto get = reinterpret_cast<const hypic_kernel* (*)(uint32_t)>(symbol);
  const hypic_kernel* const kernel = get(HYPIC_KERNEL_ABI);
  require(kernel != nullptr, path, ": does not speak version ", HYPIC_KERNEL_ABI, " of the kernel ABI");
  require(kernel->abi == HYPIC_KERNEL_ABI, path, ": was built for version ", kernel->abi,
          " of the kernel ABI, this program has ", HYPIC_KERNEL_ABI);
  require(kernel->struct_size == sizeof(hypic_kernel), path, ": its table has ", kernel->struct_size,
          " bytes, expected ", sizeof(hypic_kernel), "; build it with this program's hypic_kernel.h");
  require(kernel->name && kernel->name[0], path, ": its table has no name");
  require(kernel->linear_attention || kernel->causal_conv || kernel->attention || kernel->experts, path,
          ": offers no operation");
  require(kernel->devices & HYPIC_BIT(on_device ? kDLCUDA : kDLCPU), path, ": does not run on ",
          on_device ? "a GPU" : "the CPU", ", where ", base.name(), " has its memory");
  require(kernel->dtypes & bit_of(base.compute_dtype()), path, ": does not take operands in ",
          name_of(base.compute_dtype()), ", which ", base.name(), " computes in");
  watch.loaded(path, *kernel);
  return *kernel;
}

DLDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {kDLFloat, 64, 1};
    case DType::f32:
      return {kDLFloat, 32, 1};
    case DType::f16:
      return {kDLFloat, 16, 1};
    case DType::bf16:
      return {kDLBfloat, 16, 1};
    case DType::i32:
      return {kDLInt, 32, 1};
    default:
      fail("a plug-in cannot be given ", name_of(dtype));
  }
}

// DLPack's views of an operation's tensors; they point into copies that live here.
class Views {
 public:
  explicit Views(DLDevice device) : device_(device) {}
  DLTensor* operator()(const Tensor& tensor) {
    if (!tensor) return nullptr;
    Tensor& copy = tensors_.emplace_back(tensor);
    return &views_.emplace_back(
        DLTensor{copy.data, device_, copy.rank, type_of(copy.dtype), copy.shape.data(), copy.stride.data(), 0});
  }

 private:
  const DLDevice device_;
  std::deque<Tensor> tensors_;
  std::deque<DLTensor> views_;
};

// The chain table in the ABI's form, in host memory and, where the base has one, in the device's.
class Chains {
 public:
  void set(const ChainTable& table, Backend* device) {
    chains_.clear();
    items_.clear();
    residues_.clear();
    for (const Chain& c : table.chains)
      chains_.push_back({c.level, c.item_begin, c.item_end, c.row_begin, c.row_end, c.state, c.fresh, c.page_begin,
                         c.kv_begin, c.residue_begin, c.residue_end});
    for (const ChainItem& i : table.items)
      items_.push_back({i.kind == ChainItem::Kind::jump ? HYPIC_JUMP : HYPIC_STEP, static_cast<int32_t>(i.compose),
                        i.keep, i.begin, i.end, i.op, i.span, i.shift, i.save});
    for (const ResidueRef& r : table.residues) residues_.push_back({r.page_begin, r.first, r.last, r.start, r.shift});
    host_ = {.chain_count = static_cast<int32_t>(chains_.size()),
             .item_count = static_cast<int32_t>(items_.size()),
             .residue_count = static_cast<int32_t>(residues_.size()),
             .page_count = static_cast<int32_t>(table.pages.size()),
             .row_count = table.row_count(),
             .page_size = table.page_size,
             .chains = chains_.data(),
             .items = items_.data(),
             .residues = residues_.data(),
             .pages = table.pages.data(),
             .positions = table.positions.data(),
             .chain_of = table.chain_of.data()};
    device_ = host_;
    if (!device) return;
    memory_.clear();  // in the order of the device's operations
    device_.chains = copied(*device, chains_);
    device_.items = copied(*device, items_);
    device_.residues = copied(*device, residues_);
    device_.pages = copied(*device, table.pages);
    device_.positions = copied(*device, table.positions);
    device_.chain_of = copied(*device, table.chain_of);
  }

  const hypic_chains& host() const { return host_; }
  const hypic_chains& device() const { return device_; }

 private:
  template <class T>
  const T* copied(Backend& backend, const std::vector<T>& from) {
    const auto bytes = static_cast<int64_t>(from.size() * sizeof(T));
    if (bytes == 0) return nullptr;
    memory_.emplace_back(backend, DType::u8, std::initializer_list<int64_t>{bytes});
    backend.upload(memory_.back().tensor(), from.data());
    return static_cast<const T*>(memory_.back().tensor().data);
  }

  std::vector<hypic_chain> chains_;
  std::vector<hypic_item> items_;
  std::vector<hypic_residue> residues_;
  std::vector<Buffer> memory_;
  hypic_chains host_{}, device_{};
};

static_assert(static_cast<int>(Compose::zero) == HYPIC_ZERO && static_cast<int>(Compose::add) == HYPIC_ADD);
static_assert(static_cast<int>(Decay::elementwise) == HYPIC_DECAY_ELEMENTWISE);
static_assert(static_cast<int>(Update::delta_before) == HYPIC_UPDATE_DELTA_BEFORE);
static_assert(static_cast<int>(Readout::softmax) == HYPIC_READOUT_SOFTMAX);
static_assert(static_cast<int>(Side::value) == HYPIC_SIDE_VALUE);
static_assert(static_cast<int>(OperatorKind::dense) == HYPIC_OPERATOR_DENSE);
static_assert(static_cast<int>(Activation::relu2) == HYPIC_RELU2);

class PluginBackend final : public Backend {
 public:
  PluginBackend(std::unique_ptr<Backend> base, const std::string& path, void* stream, Watch& watch)
      : base_(std::move(base)),
        stream_(stream),
        watch_(watch),
        kernel_(load(path, *base_, stream != nullptr, watch)),
        name_(str(base_->name(), "+", plain(kernel_.name, kMaxName, "-._ "))),
        device_{stream ? kDLCUDA : kDLCPU, 0} {}

  std::string_view name() const override { return name_; }
  DType compute_dtype() const override { return base_->compute_dtype(); }
  DType state_dtype() const override { return base_->state_dtype(); }
  bool batch_invariant() const override {
    return base_->batch_invariant() && (kernel_.features & HYPIC_BATCH_INVARIANT);
  }
  std::map<std::string, int64_t> launches() const override {
    std::map<std::string, int64_t> all = base_->launches();
    for (const auto& [key, count] : ran_) all[key] += count;
    return all;
  }

  void enter_thread() const override { base_->enter_thread(); }

  size_t available_bytes() const override { return base_->available_bytes(); }
  void* allocate(size_t bytes) override { return base_->allocate(bytes); }
  MemoryUse memory_use() const override { return base_->memory_use(); }
  void forget_peak() override { base_->forget_peak(); }
  void release(void* memory) noexcept override { base_->release(memory); }
  void upload(const Tensor& to, const void* from) override {
    const Entered entered(watch_, "the device, upload");
    base_->upload(to, from);
  }
  void download(void* to, const Tensor& from) override {
    const Entered entered(watch_, "the device, download");
    base_->download(to, from);
  }
  void copy(const Tensor& to, const Tensor& from) override { base_->copy(to, from); }
  void fill_zero(const Tensor& tensor) override { base_->fill_zero(tensor); }
  void* allocate_host(size_t bytes) override { return base_->allocate_host(bytes); }
  void release_host(void* memory) noexcept override { base_->release_host(memory); }
  void upload_async(const Tensor& to, const void* from) override { base_->upload_async(to, from); }
  void download_async(void* to, const Tensor& from) override { base_->download_async(to, from); }
  std::unique_ptr<Event> record() override {
    std::unique_ptr<Event> event = base_->record();
    if (!event) return nullptr;
    return std::make_unique<WatchedEvent>(std::move(event), watch_);
  }
  std::unique_ptr<SharedMemory> share(int64_t bytes) override { return base_->share(bytes); }
  std::unique_ptr<SharedMemory> open_shared(const std::string& handle) override { return base_->open_shared(handle); }
  std::unique_ptr<Copies> copies() override { return base_->copies(); }
  void copy_bytes(std::span<const BytesCopy> pieces) override { base_->copy_bytes(pieces); }
  Rows begin(const ChainTable& table) override {
    chains_.set(table, stream_ ? base_.get() : nullptr);
    return base_->begin(table);
  }
  void profile(bool on) override { base_->profile(on); }
  std::map<std::string, double> profile_seconds() const override { return base_->profile_seconds(); }

  void random_normal(const RandomNormalArgs& a) override { base_->random_normal(a); }
  void embedding(const EmbeddingArgs& a) override { base_->embedding(a); }
  void matmul(const MatmulArgs& a) override { base_->matmul(a); }
  void head_matmul(const HeadMatmulArgs& a) override { base_->head_matmul(a); }
  void add(const AddArgs& a) override { base_->add(a); }
  void rms_norm(const RmsNormArgs& a) override { base_->rms_norm(a); }
  void l2_norm(const L2NormArgs& a) override { base_->l2_norm(a); }
  void gate_mul(const GateMulArgs& a) override { base_->gate_mul(a); }
  void decay_gate(const DecayGateArgs& a) override { base_->decay_gate(a); }
  void sigmoid(const SigmoidArgs& a) override { base_->sigmoid(a); }
  void rope(const RopeArgs& a) override { base_->rope(a); }
  void append_kv(const AppendKvArgs& a) override { base_->append_kv(a); }
  void route(const RouteArgs& a) override { base_->route(a); }
  void gather_rows(const GatherRowsArgs& a) override { base_->gather_rows(a); }
  void sample(const SampleArgs& a) override { base_->sample(a); }
  void all_reduce(const Tensor& tensor) override { base_->all_reduce(tensor); }
  void add_rms_norm(const AddRmsNormArgs& a) override { base_->add_rms_norm(a); }
  void add_gated(const AddGatedArgs& a) override { base_->add_gated(a); }
  void qk_norm_append(const QkNormAppendArgs& a) override { base_->qk_norm_append(a); }
  void gated_norm(const GatedNormArgs& a) override { base_->gated_norm(a); }
  void shared_expert(const SharedExpertArgs& a) override { base_->shared_expert(a); }
  // Composites of what the plug-in offers are made of primitives, so that it computes there too.
  void conv_gates(const ConvGatesArgs& a) override {
    kernel_.causal_conv ? Backend::conv_gates(a) : base_->conv_gates(a);
  }
  void gated_linear_attention(const GatedLinearAttentionArgs& a) override {
    kernel_.causal_conv || kernel_.linear_attention ? Backend::gated_linear_attention(a)
                                                    : base_->gated_linear_attention(a);
  }
  void moe(const MoeArgs& a) override { kernel_.experts ? Backend::moe(a) : base_->moe(a); }

  void linear_attention(const LinearAttentionArgs& a) override {
    Views view(device_);
    const hypic_linear_attention args{.decay = static_cast<int32_t>(a.decay),
                                      .update = static_cast<int32_t>(a.update),
                                      .readout = static_cast<int32_t>(a.readout),
                                      .side = static_cast<int32_t>(a.side),
                                      .scale = a.scale,
                                      .q = view(a.q),
                                      .k = view(a.k),
                                      .v = view(a.v),
                                      .g = view(a.g),
                                      .A = view(a.A),
                                      .beta = view(a.beta),
                                      .a = view(a.a),
                                      .b = view(a.b),
                                      .u = view(a.u),
                                      .skip = view(a.skip),
                                      .o = view(a.o),
                                      .state = view(a.state),
                                      .operator_kind = static_cast<int32_t>(a.operators.kind),
                                      .rotary_dim = a.rotary_dim,
                                      .rope_theta = a.rope_theta,
                                      .log_scale = view(a.operators.log_scale),
                                      .T = view(a.operators.T),
                                      .U = view(a.operators.U)};
    run(
        "linear_attention", kernel_.linear_attention, args, [&] { return lacks(a); },
        [&] { base_->linear_attention(a); });
  }
  void causal_conv(const CausalConvArgs& a) override {
    Views view(device_);
    const hypic_causal_conv args{.x = view(a.x),
                                 .w = view(a.w),
                                 .bias = view(a.bias),
                                 .activation = static_cast<int32_t>(a.activation),
                                 .window = view(a.window),
                                 .tail = view(a.tail),
                                 .out = view(a.out)};
    run(
        "causal_conv", kernel_.causal_conv, args,
        [&] {
          return missing(by_chains() | strided({&a.x, &a.out}));
        },
        [&] { base_->causal_conv(a); });
  }
  void attention(const AttentionArgs& a) override {
    Views view(device_);
    const hypic_attention args{.q = view(a.q),
                               .k_pages = view(a.k_pages),
                               .v_pages = view(a.v_pages),
                               .rotary_dim = a.rotary_dim,
                               .theta = a.theta,
                               .scale = a.scale,
                               .out = view(a.out)};
    run(
        "attention", kernel_.attention, args,
        [&] {
          return missing(strided({&a.q, &a.out}));
        },
        [&] { base_->attention(a); });
  }
  void experts(const ExpertsArgs& a) override {
    Views view(device_);
    const hypic_experts args{.x = view(a.x),
                             .experts = view(a.experts),
                             .weights = view(a.weights),
                             .up = view(a.up),
                             .down = view(a.down),
                             .gated = a.gated,
                             .activation = static_cast<int32_t>(a.activation),
                             .out = view(a.out)};
    run(
        "experts", kernel_.experts, args,
        [&] {
          return missing(strided({&a.x, &a.out}));
        },
        [&] { base_->experts(a); });
  }

 private:
  // Features that an operation needs, as bits, and those of them that the plug-in does not declare.
  uint32_t missing(uint32_t needed) const { return needed & ~kernel_.features; }
  static uint32_t strided(std::initializer_list<const Tensor*> rows) {
    const auto dense = [](const Tensor* t) { return !*t || t->contiguous(); };
    return std::all_of(rows.begin(), rows.end(), dense) ? 0 : HYPIC_STRIDED;
  }
  uint32_t by_chains() const {
    uint32_t needed = 0;
    const hypic_chains& table = chains_.host();
    for (int32_t i = 0; i < table.item_count; ++i) {
      const hypic_item& item = table.items[i];
      if (item.kind == HYPIC_JUMP)
        needed |= HYPIC_JUMPS;
      else if (item.op != kNone)
        needed |= HYPIC_OPERATORS;
      if (item.save != kNone || !item.keep) needed |= HYPIC_SAVES;
    }
    return needed;
  }
  static constexpr uint32_t kCell = 1u << 31;  // of `lacks`: no cell of the plug-in's
  uint32_t lacks(const LinearAttentionArgs& a) const {
    const bool cell = kernel_.decays & HYPIC_BIT(static_cast<uint32_t>(a.decay)) &&
                      kernel_.updates & HYPIC_BIT(static_cast<uint32_t>(a.update)) &&
                      kernel_.readouts & HYPIC_BIT(static_cast<uint32_t>(a.readout));
    if (!cell) return kCell;
    uint32_t needed = by_chains() | strided({&a.q, &a.k, &a.v, &a.g, &a.beta, &a.a, &a.b, &a.o});
    if (needed & HYPIC_JUMPS && a.rotary_dim > 0) needed |= HYPIC_ROTATED_KEYS;
    if (a.v[1] > a.k[1]) needed |= HYPIC_GROUPED_HEADS;
    if (a.side == Side::value) needed |= HYPIC_VALUE_SIDE;
    if (a.a || a.b) needed |= HYPIC_OTHER_VECTORS;
    if (a.skip) needed |= HYPIC_SKIP;
    return missing(needed);
  }
  static std::string names_of(uint32_t lacking) {
    if (lacking & kCell) return "cell";
    constexpr std::pair<uint32_t, const char*> kNames[] = {{HYPIC_STRIDED, "strided"},
                                                           {HYPIC_JUMPS, "jumps"},
                                                           {HYPIC_OPERATORS, "operators"},
                                                           {HYPIC_SAVES, "saves"},
                                                           {HYPIC_ROTATED_KEYS, "rotated_keys"},
                                                           {HYPIC_GROUPED_HEADS, "grouped_heads"},
                                                           {HYPIC_VALUE_SIDE, "value_side"},
                                                           {HYPIC_OTHER_VECTORS, "other_vectors"},
                                                           {HYPIC_SKIP, "skip"}};
    std::string text;
    for (const auto& [bit, name] : kNames)
      if (lacking & bit) text += str(text.empty() ? "" : ",", name);
    return text;
  }

  template <class Args, class Lacks, class Base>
  void run(const char* operation, int32_t (*function)(const hypic_call*, const Args*), const Args& args, Lacks lacks,
           Base base) {
    if (!function) return base();
    const uint32_t lacking = lacks();
    if (lacking != 0) {
      ran(str(operation, "/base:", names_of(lacking)));
      return base();
    }
    std::array<char, 256> message{};
    const hypic_call call{device_, stream_, &chains_.host(), &chains_.device(), message.data(), message.size()};
    int32_t status = 0;
    {
      const Entered entered(watch_, operation);
      status = function(&call, &args);
    }
    message.back() = 0;
    if (status == HYPIC_OK) return ran(str(operation, "/kernel"));
    if (status == HYPIC_FAILED)
      throw KernelFailure(
          str(name_, ", ", operation,
              " failed: ", message[0] ? plain(message.data(), message.size(), " -._,:;()[]=<>/'") : "it says not why"));
    if (status != HYPIC_UNSUPPORTED)
      throw KernelFailure(str(name_, ", ", operation, " returned ", status, ", which is no status"));
    ran(str(operation, "/base:declined", message[0] ? ":" + plain(message.data(), kMaxReason, "-._=") : ""));
    base();
  }
  void ran(const std::string& key) {
    ++ran_[key];
    watch_.ran(key);
  }

  const std::unique_ptr<Backend> base_;
  void* const stream_;
  Watch& watch_;
  const hypic_kernel& kernel_;
  const std::string name_;
  const DLDevice device_;
  Chains chains_;
  std::map<std::string, int64_t> ran_;
};

}  // namespace

std::unique_ptr<Backend> make_plugin_backend(std::unique_ptr<Backend> base, const std::string& path, void* stream,
                                             Watch& watch) {
  return std::make_unique<PluginBackend>(std::move(base), path, stream, watch);
}

}  // namespace hypic::plugin
