// Memory, a stream and operations on plain structs. Implementations: `cpu` and `cpu64` (reference/),
// `cuda` (kernels/), plug-ins. Operations are enqueued in order; none waits for the device but `download`.
//
// Operations come at two grains: primitives, which every backend has, and composites, whose default is
// made of primitives and which a backend may fuse. Letters: R rows of the forward, N and K matrix sizes,
// H heads, D head size, C convolution channels, W convolution width, P pages, S slots.
// Matrix operands and activations have the backend's compute dtype; states, operators and gates its state
// dtype (float32, or float64 in cpu64). Shapes are checked by every operation; a mismatch throws.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "core/chain.h"
#include "core/family.h"
#include "core/tensor.h"
#include "core/transfer_operator.h"

namespace hypic {

enum class Activation { identity, silu, sigmoid };

struct EmbeddingArgs {
  Tensor tokens;  // [R] i32
  Tensor table;   // [vocabulary, N]
  Tensor out;     // [R, N]
};

struct MatmulArgs {  // out = x · wᵀ
  Tensor x;          // [R, K], rows may be strided
  Tensor w;          // [N, K]
  Tensor out;        // [R, N], rows may be strided
};

struct AddArgs {  // x += y
  Tensor x;       // [R, N]
  Tensor y;       // [R, N]
};

struct RmsNormArgs {   // over the last axis, in float32 or wider
  Tensor x;            // [R, N] or [R, H, D]
  Tensor weight;       // [N] or [D]
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
  Tensor x;           // [R, N] or [R, H, D], any rows strided
  Tensor gate;
  Activation activation;
  Tensor out;
};

struct DecayGateArgs {  // out = −exp(A_log) · softplus(x + dt_bias), the log decay
  Tensor x;             // [R, H]
  Tensor A_log;         // [H]
  Tensor dt_bias;       // [H]
  Tensor out;           // [R, H] state dtype
};

struct SigmoidArgs {
  Tensor x;    // [R, N]
  Tensor out;  // [R, N] state dtype
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
  int rotary_dim = 0;          // keys carry RoPE on their first dims: a jump relocates by its shift
  double rope_theta = 0;
  Tensor o;      // [R, Hv, d_o]
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
  Tensor v;            // [R, H, D]
  Tensor k_pages;      // [P, page size, H, D]
  Tensor v_pages;
};

// Softmax attention of each row over the residues it sees and its chain's own tokens up to itself. Q is
// given without its rotation; it is rotated by position − shift for each residue, by position for own.
struct AttentionArgs {
  Tensor q;            // [R, Hq, D]
  Tensor positions;    // [R] i32
  Tensor k_pages;      // [P, page size, Hkv, D]
  Tensor v_pages;
  int rotary_dim;      // 0: no rotation
  double theta;
  double scale;
  Tensor out;          // [R, Hq, D]
};

struct GatherRowsArgs {
  Tensor x;     // [R, N]
  Tensor rows;  // [n] i32
  Tensor out;   // [n, N]
};

struct ArgmaxArgs {  // the lowest index wins a tie
  Tensor x;          // [R, N]
  Tensor out;        // [R] i32
};

struct AddRmsNormArgs {  // residual += update (if given); out = norm(residual)
  Tensor residual;
  Tensor update;         // optional
  Tensor weight;
  bool plus_one;
  double eps;
  Tensor out;
};

struct ConvGatesArgs {   // a gated DeltaNet layer's inputs from its projections
  CausalConvArgs conv;   // over [q | k | v]; its out holds the three afterwards
  int key_heads, value_heads, key_dim, value_dim;
  double l2_eps;
  Tensor q, k;           // [R, Hk, d_k] normalised, out
  Tensor alpha, A_log, dt_bias, g;  // g = −exp(A_log)·softplus(alpha + dt_bias)
  Tensor beta_logit, beta;          // beta = sigmoid(beta_logit)
};

struct QkNormAppendArgs {  // q ← norm(q); k ← rope(norm(k)), appended with v
  Tensor q;                // [R, Hq, D], rows may be strided
  Tensor k;                // [R, Hkv, D]
  Tensor v;
  Tensor q_weight, k_weight;  // [D]
  bool plus_one;
  double eps;
  Tensor positions;
  int rotary_dim;
  double theta;
  Tensor k_pages, v_pages;
  Tensor q_out;  // [R, Hq, D], not rotated
  Tensor k_out;  // [R, Hkv, D], rotated
};

struct GatedNormArgs {  // out = rms_norm(x) ⊙ activation(gate)
  Tensor x;             // [R, H, D]
  Tensor weight;        // [D]
  double eps;
  Tensor gate;          // [R, H, D]
  Activation activation;
  Tensor out;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  virtual DType compute_dtype() const = 0;
  virtual DType state_dtype() const = 0;

  // Memory. allocate throws Error when there is none left. Fresh memory holds NaN in every float type.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void upload(const Tensor& to, const void* from) = 0;    // `to` contiguous
  virtual void download(void* to, const Tensor& from) = 0;        // waits; `from` contiguous
  virtual void copy(const Tensor& to, const Tensor& from) = 0;    // same shape and dtype
  virtual void fill_zero(const Tensor& tensor) = 0;

  // The chain table of the operations that follow; it must outlive them.
  virtual void begin(const ChainTable& table) = 0;

  // Primitives.
  virtual void embedding(const EmbeddingArgs&) = 0;
  virtual void matmul(const MatmulArgs&) = 0;
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
  virtual void gather_rows(const GatherRowsArgs&) = 0;
  virtual void argmax(const ArgmaxArgs&) = 0;
  // Sums over the ranks of a tensor-parallel group, in place; one rank: nothing to do.
  virtual void all_reduce(const Tensor&) {}

  // Composites.
  virtual void add_rms_norm(const AddRmsNormArgs&);
  virtual void conv_gates(const ConvGatesArgs&);
  virtual void qk_norm_append(const QkNormAppendArgs&);
  virtual void gated_norm(const GatedNormArgs&);
};

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
