// Memory, a stream and operations on plain structs. Implementations: `cpu` and `cpu64` (reference/),
// `cuda` (kernels/), plug-ins. Operations are enqueued in order; none waits for the device but `download`.
//
// Operations come at two grains: primitives, which every backend has, and composites, whose default is
// made of primitives and which a backend may fuse. Letters: R rows of the forward, N and K matrix sizes,
// H heads, D head size, C convolution channels, W convolution width, P pages, S slots.
// Matrix operands and activations have the backend's compute dtype; states, operators and gates its state
// dtype (float32, or float64 in cpu64). Rows of activations may be strided: they are columns of a product with several
// weights at once. Shapes are checked by every operation; a mismatch throws.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/chain.h"
#include "core/family.h"
#include "core/shared_memory.h"
#include "core/tensor.h"
#include "core/transfer_operator.h"

namespace hypic {

enum class Activation { identity, silu, sigmoid, relu2 };  // relu2: max(x, 0)²

// Element i of `out`, row-major: mean + deviation · z(i) rounded to bfloat16, in any float dtype that holds it, so that
// every backend draws the same numbers. z is normal, from uniform numbers of a counter: with
// u(n) = ((mix(stream + n) >> 11) + ½) · 2⁻⁵³, mix being SplitMix64's output function (Steele, Lea, Flood, OOPSLA 2014),
// z(i) = √(−2 ln u(2i)) · cos(2π u(2i + 1)), in float64 (Box and Muller 1958).
// Of a part of a larger tensor: `columns` elements follow one another, then the next are `stride` behind the first of
// those, so that element i is number (i / columns) · stride + i % columns.
struct RandomNormalArgs {
  Tensor out;  // contiguous
  uint64_t stream = 0;
  double mean = 0;
  double deviation = 1;
  int64_t columns = 1;  // at most stride
  int64_t stride = 1;
};

struct EmbeddingArgs {
  Tensor tokens;  // [R] i32
  Tensor table;   // [vocabulary, N]
  Tensor out;     // [R, N]
  double scale = 1;
};

struct MatmulArgs {  // out = scale · x · wᵀ
  Tensor x;          // [R, K], rows may be strided
  Tensor w;          // [N, K]
  Tensor out;        // [R, N], rows may be strided; compute or state dtype
  double scale = 1;
};

struct HeadMatmulArgs {  // out[r, h] = w[h] · x[r, h], each head with a matrix of its own
  Tensor x;              // [R, H, K], rows and heads may be strided
  Tensor w;              // [H, N, K]; transposed: [H, K, N]
  bool transposed;
  Tensor out;            // [R, H, N], rows and heads may be strided
};

struct AddArgs {  // x ← alpha · x + beta · y
  Tensor x;       // [R, N]
  Tensor y;       // [R, N]
  double alpha = 1;
  double beta = 1;
};

struct RmsNormArgs {   // over the last axis, in float32 or wider
  Tensor x;            // [R, N] or [R, H, D]
  Tensor weight;       // [N], [D] or, of each head its own, [H, D]
  bool plus_one;       // multiply by 1 + weight (Qwen), not by weight
  double eps;
  Tensor out;
};

struct L2NormArgs {  // x / sqrt(Σx² + eps) over the last axis
  Tensor x;          // [R, H, D]
  double eps;
  Tensor out;
};

struct GateMulArgs {  // out = x ⊙ activation(gate)
  Tensor x;           // [R, N] or [R, H, D], any rows strided; optional (1)
  Tensor gate;        // as x, or [R, 1]: one number a row
  Activation activation;
  Tensor out;
};

// The log decay, out = −exp(A_log) · Δ with Δ = softplus(x + dt_bias), of each head or each channel.
struct DecayGateArgs {
  Tensor x;        // [R, H] or [R, H, D]
  Tensor A_log;    // [H]
  Tensor dt_bias;  // [H] or [H, D]
  Tensor out;      // [R, H] or [R, H, D], state dtype
  Tensor step;     // optional: receives Δ; as out
  double step_min = 0;  // Δ is clamped to [step_min, step_max] (Mamba-2's time-step limit)
  double step_max = std::numeric_limits<double>::infinity();
};

struct SigmoidArgs {  // out = scale · sigmoid(x)
  Tensor x;           // [R, N]
  Tensor out;         // [R, N] state dtype
  double scale = 1;
};

// Causal depthwise convolution over chains: out_t = activation(Σ_j w[·, j] x_{t−W+1+j}). The window before
// a step is the last W−1 raw rows of everything before it in prompt order, computed or jumped over.
struct CausalConvArgs {
  Tensor x;       // [R, C] raw rows
  Tensor w;       // [C, W]
  Activation activation;
  Tensor window;  // [S, W−1, C] state slots, oldest row first; zero where nothing came before
  Tensor tail;    // [operators, W−1, C] the last min(W−1, span) raw rows of each operator's span, at the end
  Tensor out;     // [R, C]
  Tensor bias;    // [C], optional: added before the activation
};

// Added to the divisor of Readout::normalised.
inline constexpr double kNormaliserEps = 1e-10;

// One linear-attention layer over chains: per value head, S ← A S + c dᵀ with c = k, d = beta·v, and
// A by decay and update, where a defaults to k and b to beta·k. Value head h reads key head h / (Hv/Hk).
// Side::value: the state is stored transposed, so that q has length d_v and o, its readout, length d_k.
struct LinearAttentionArgs {
  Decay decay;
  Update update;
  Readout readout;
  double scale;  // multiplies q wherever q is read
  Tensor q;      // [R, Hk, d_k]; softmax readout: [R, Hk, number of leading value columns]
  Tensor k;      // [R, Hk, d_k]
  Tensor v;      // [R, Hv, d_v]
  Tensor g;      // log decay: scalar [R, Hv] · diagonal [R, Hv, d_k] · elementwise [R, Hv, d_v]: the step Δ
  Tensor A;      // elementwise: [Hv, d_k, d_v], log decay of an entry is Δ·A
  Tensor beta;   // [R, Hv], optional (1)
  Tensor a;      // [R, Hv, d_k], optional (k)
  Tensor b;      // [R, Hv, d_k], optional (beta·k)
  Tensor u;      // bonus: [Hv, d_k]
  Tensor state;  // [S, Hv, d_k, d_v] state slots
  TransferOperator operators;  // pool, leading axis: operator slots
  Side side = Side::key;
  int rotary_dim = 0;          // keys carry RoPE on their first dims: a jump relocates by its shift, which is ≥ 0;
                               // 0: they do not, and its shift says nothing
  double rope_theta = 0;
  Tensor o;      // [R, Hv, d_o]
  Tensor skip;   // [Hv] state dtype, optional: o += skip · v (Mamba's D); with Readout::plain and Side::key only
};

struct RopeArgs {      // NeoX pairs (i, i + rotary_dim/2), angle position · theta^(−2i/rotary_dim)
  Tensor x;            // [R, H, D]
  Tensor positions;    // [R] i32
  int rotary_dim;
  double theta;
  Tensor out;          // [R, H, D]
};

struct AppendKvArgs {  // puts each row's K, V into its chain's own pages
  Tensor k;            // [R, H, D]
  Tensor v;            // [R, H, Dv]; empty where V is a part of K (multi-head latent attention)
  Tensor k_pages;      // [P, page size, H, D]
  Tensor v_pages;      // [P, page size, H, Dv]; empty with v
};

// Softmax attention of each row over the residues it sees and its chain's own tokens up to itself. Q is
// given without its rotation; it is rotated by position − shift for each residue, by position for own.
struct AttentionArgs {
  Tensor q;            // [R, Hq, D]
  Tensor k_pages;      // [P, page size, Hkv, D]
  Tensor v_pages;      // [P, page size, Hkv, Dv], tokens and heads may be strided
  int rotary_dim;      // 0: no rotation
  double theta;
  double scale;
  Tensor out;          // [R, Hq, Dv]
};

// Added to the sum that RouteArgs::renormalise divides by.
inline constexpr double kRouteEps = 1e-20;

// Which experts a row goes to, and with which weights. Scores are softmax or sigmoid of the logits; the
// choice is by score + bias, among the kept_groups groups whose two best such sums are largest (DeepSeek-V3,
// arXiv 2412.19437, section 2.1.2); weights are the scores without bias. The lowest index wins a tie.
struct RouteArgs {
  enum class Score { softmax, sigmoid };
  Tensor logits;       // [R, E] state dtype
  Tensor bias;         // [E] state dtype, optional
  Score score;
  int groups = 1;      // E is a multiple
  int kept_groups = 1;
  bool renormalise;    // weights of a row sum to 1 before the scale
  double scale = 1;
  Tensor experts;      // [R, k] i32, by falling choice
  Tensor weights;      // [R, k] state dtype
};

// out[r] = Σ_j weights[r, j] · down_e · (activation(gate_e x) ⊙ up_e x), e = experts[r, j]; ungated:
// activation(up_e x).
struct ExpertsArgs {
  Tensor x;            // [R, N]
  Tensor experts;      // [R, k] i32
  Tensor weights;      // [R, k] state dtype
  Tensor up;           // [E, 2I, N], of each expert the rows of its gate, then of its up; ungated: [E, I, N]
  Tensor down;         // [E, N, I]
  bool gated;
  Activation activation;
  Tensor out;          // [R, N]
};

struct GatherRowsArgs {
  Tensor x;     // [R, N]
  Tensor rows;  // [n] i32
  Tensor out;   // [n, N]
};

// The next token of each row of logits: p = softmax(logits / temperature). Tokens stand in falling
// order of p, the lower index first among equals. The first top_k stay; of those the shortest prefix
// whose share of their mass reaches top_p, at least one token (Holtzman et al., arXiv 1904.09751,
// section 3.1). Of what stays the first token is taken at which the mass so far exceeds uniform times
// that of all; where greedy, the very first. NaN is never chosen unless all logits are: then 0. −∞ has
// p = 0; where the largest logit is not finite the row is greedy.
struct SampleArgs {
  Tensor logits;       // [R, N] compute or state dtype
  Tensor temperature;  // [R] state dtype, 0: greedy; empty: all rows are, and the next three are not read
  Tensor top_k;        // [R] i32, 0 or at least N: all; optional (all)
  Tensor top_p;        // [R] state dtype, at least 1: all; optional (all)
  Tensor uniform;      // [R] state dtype in [0, 1), drawn by the host: a seed means the same everywhere
  Tensor out;          // [R] i32
};

struct AddRmsNormArgs {  // residual += scale · update (if given); out = norm(residual)
  Tensor residual;
  Tensor update;         // optional
  Tensor weight;
  bool plus_one;
  double eps;
  Tensor out;
  double scale = 1;
};

struct AddGatedArgs {  // x += activation(gate) · y
  Tensor x;            // [R, N]
  Tensor y;            // [R, N]; may be overwritten
  Tensor gate;         // [R, 1]
  Activation activation;
};

struct ConvGatesArgs {   // the inputs of a layer with a convolution from its projections
  CausalConvArgs conv;   // over [q | k | v]; its out holds v afterwards, and q and k where they stay as they are
  int key_heads, key_dim;
  double l2_eps;
  Tensor q, k;           // [R, Hk, d_k] normalised, out: what conv.out holds of them is then anything; empty: they stay
  DecayGateArgs decay;
  SigmoidArgs beta;      // x empty: the family has none, or takes decay.step
};

struct QkNormAppendArgs {  // q ← norm(q); k ← rope(norm(k)), appended with v
  Tensor q;                // [R, Hq, D], rows may be strided
  Tensor k;                // [R, Hkv, D]
  Tensor v;
  Tensor q_weight, k_weight;  // [D] each head alone · [H·D] all heads as one vector · empty: no norm
  bool plus_one;
  double eps;
  Tensor positions;
  int rotary_dim;
  double theta;
  Tensor k_pages, v_pages;
  Tensor q_out;  // [R, Hq, D], not rotated
  Tensor k_out;  // [R, Hkv, D], rotated
};

struct GatedNormArgs {  // out = rms_norm(x) ⊙ activation(gate), or rms_norm(x ⊙ activation(gate))
  Tensor x;             // [R, H, D]
  Tensor weight;        // [D] or [H, D]; empty: no norm
  double eps;
  Tensor gate;          // [R, H, D]
  Activation activation;
  Tensor out;
  bool gate_first = false;
};

// conv_gates, linear_attention and gated_norm, one after another. What passes from one to the next is given twice; but
// for norm.out it is anything afterwards.
struct GatedLinearAttentionArgs {
  ConvGatesArgs inputs;
  LinearAttentionArgs attention;
  GatedNormArgs norm;
};

// out += sigmoid(row_gate) · down (activation(gate) ⊙ up), the three being columns of `projected` = x · inᵀ: an expert
// that every row goes to.
struct SharedExpertArgs {
  Tensor x;          // [R, N]
  Tensor in;         // [M, N], M ≥ the columns of the three
  Tensor projected;  // [R, M], overwritten
  Tensor up;         // [R, I]
  Tensor gate;       // [R, I]; empty: activation(up) alone
  Tensor row_gate;   // [R, 1]; empty: 1
  Activation activation;
  Tensor down;       // [N, I]
  Tensor part;       // [R, N], overwritten
  Tensor out;        // [R, N]
};

struct MoeArgs {        // router, then experts; the fields that pass from one to the next are given twice
  Tensor router;        // [E, N]
  RouteArgs route;
  ExpertsArgs experts;
  SharedExpertArgs shared;  // its out being that of experts; `in` empty: there is none
};

// Bytes that allocate gave and release has not taken back.
struct MemoryUse {
  size_t now = 0;
  size_t peak = 0;  // the most since the beginning, or since forget_peak
};

// The rows of a forward, in memory of the backend; valid until the next begin.
struct Rows {
  Tensor tokens;      // [R] i32
  Tensor positions;   // [R] i32
  Tensor logit_rows;  // [n] i32
};

// What a rank of a group runs into where another one has left it: the error of that one is the one to tell.
struct RankLost : Error {
  using Error::Error;
};

// A point in the order of operations of a backend, which it must not outlive. For any thread.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() = 0;  // whether all that was enqueued before it is done
  virtual void wait() = 0;  // until it is
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  virtual DType compute_dtype() const = 0;
  virtual DType state_dtype() const = 0;
  // Whether a row gets the same bits alone and in any batch, and a sequence in any split.
  virtual bool batch_invariant() const = 0;
  // Operations so far by what ran them, such as "attention/plain": proof of which kernel it was. Empty where
  // there is no choice.
  virtual std::map<std::string, int64_t> launches() const { return {}; }

  // Before the first operation on a thread that did not make it.
  virtual void enter_thread() const {}

  // Memory. allocate throws Error when there is none left. Fresh memory holds NaN in every float type.
  virtual size_t available_bytes() const = 0;  // that allocate may still give, as far as is known
  virtual void* allocate(size_t bytes) = 0;
  // What operations take for themselves counts too where it comes from the same memory. Zeros: not counted.
  virtual MemoryUse memory_use() const { return {}; }
  virtual void forget_peak() {}  // the peak is what is used now
  virtual void release(void* memory) noexcept = 0;
  virtual void upload(const Tensor& to, const void* from) = 0;    // `to` contiguous
  virtual void download(void* to, const Tensor& from) = 0;        // waits; `from` contiguous
  // Same shape and dtype; of up to three axes, the last one contiguous.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;
  virtual void fill_zero(const Tensor& tensor) = 0;

  // Host memory that the device copies from and to directly: pinned, where that exists. Error when there is none left.
  virtual void* allocate_host(size_t bytes);
  virtual void release_host(void* memory) noexcept;
  // As upload and download, in order with the other operations; from and to memory of allocate_host without waiting, so
  // it stays as it is until an event that is recorded afterwards is done. By default they wait.
  virtual void upload_async(const Tensor& to, const void* from);
  virtual void download_async(void* to, const Tensor& from);
  // Null where nothing is ever under way.
  virtual std::unique_ptr<Event> record();

  // Device to device, core/shared_memory.h. By default a backend shares nothing: null, and open_shared throws.
  virtual std::unique_ptr<SharedMemory> share(int64_t bytes);  // OutOfMemory
  // Memory that another process has shared. Error: there is none by this handle that this device can write to.
  virtual std::unique_ptr<SharedMemory> open_shared(const std::string& handle);
  virtual std::unique_ptr<Copies> copies();
  // In order with the operations: copies between memory of this device, shared or not, which do not overlap; and what
  // follows waits for an event of any backend of this process, by default on the host.
  virtual void copy_bytes(std::span<const BytesCopy> pieces);
  virtual void wait_for(Event& event);

  // The chain table of the operations that follow; it must outlive them.
  virtual Rows begin(const ChainTable& table) = 0;

  // Enqueues operations that depend on `key`, the chain table and memory alone and write no `w` of a product. A backend
  // may record them and replay the record where it has one for this key and a table of the same shape.
  virtual void replay(const std::string& key, const std::function<void()>& enqueue);

  // While on, operations are timed one by one; profile(true) begins anew. Seconds so far by operation, such as
  // "linear_attention"; empty where a backend does not time.
  virtual void profile(bool on);
  virtual std::map<std::string, double> profile_seconds() const { return {}; }

  // Primitives.
  virtual void random_normal(const RandomNormalArgs&) = 0;
  virtual void embedding(const EmbeddingArgs&) = 0;
  virtual void matmul(const MatmulArgs&) = 0;
  virtual void head_matmul(const HeadMatmulArgs&) = 0;
  virtual void add(const AddArgs&) = 0;
  virtual void rms_norm(const RmsNormArgs&) = 0;
  virtual void l2_norm(const L2NormArgs&) = 0;
  virtual void gate_mul(const GateMulArgs&) = 0;
  virtual void decay_gate(const DecayGateArgs&) = 0;
  virtual void sigmoid(const SigmoidArgs&) = 0;
  virtual void causal_conv(const CausalConvArgs&) = 0;
  virtual void linear_attention(const LinearAttentionArgs&) = 0;
  virtual void rope(const RopeArgs&) = 0;
  virtual void append_kv(const AppendKvArgs&) = 0;
  virtual void attention(const AttentionArgs&) = 0;
  virtual void route(const RouteArgs&) = 0;
  virtual void experts(const ExpertsArgs&) = 0;
  virtual void gather_rows(const GatherRowsArgs&) = 0;
  virtual void sample(const SampleArgs&) = 0;
  // Sums over the ranks of a tensor-parallel group, in place; contiguous, also of i32; one rank: nothing to do. Every rank
  // calls it with the same shape, in the same order, and gets the same bits. RankLost.
  virtual void all_reduce(const Tensor&) {}
  // This rank stops after an error: none that waits for it, or will, hangs; it throws RankLost, there or where it next
  // waits for the device.
  virtual void leave_group() noexcept {}
  // After some rank has left, once none runs: of every rank, one after another. Error: the group cannot go on.
  virtual void rejoin_group() {}

  // Composites.
  virtual void add_rms_norm(const AddRmsNormArgs&);
  virtual void add_gated(const AddGatedArgs&);
  virtual void conv_gates(const ConvGatesArgs&);
  virtual void qk_norm_append(const QkNormAppendArgs&);
  virtual void gated_norm(const GatedNormArgs&);
  virtual void gated_linear_attention(const GatedLinearAttentionArgs&);
  virtual void shared_expert(const SharedExpertArgs&);
  virtual void moe(const MoeArgs&);
};

// The elements of a view of any float dtype, row-major, in host memory.
std::vector<double> to_doubles(Backend& backend, const Tensor& tensor);

// Owns memory of a backend, which must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend& backend, DType dtype, std::span<const int64_t> shape);
  Buffer(Backend& backend, DType dtype, std::initializer_list<int64_t> shape)
      : Buffer(backend, dtype, std::span(shape.begin(), shape.size())) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept { swap(other); return *this; }
  ~Buffer() { if (backend_) backend_->release(tensor_.data); }

  const Tensor& tensor() const { return tensor_; }
  explicit operator bool() const { return backend_ != nullptr; }
  operator const Tensor&() const { return tensor_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(tensor_, other.tensor_);
  }
  Backend* backend_ = nullptr;
  Tensor tensor_;
};

}  // namespace hypic
