// What a model is: sizes and the parts of each layer, read from a Hugging Face config.json or by name.
// Every architecture is brought to one form: the same kinds of parts, tensors by the same names and in
// the same layout (TensorSpec says how a checkpoint's tensors make them), so that forward is written once.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/family.h"

namespace hypic {

// How q and k are normalised, before any rotation.
enum class QkNorm : uint8_t { none, l2, heads, all_heads };  // RMS over each head, or over all as one vector

struct AttentionSpec {  // softmax attention with grouped heads
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;  // NeoX RoPE on the first dims of q and k; 0: none
  double rope_theta = 0;
  bool output_gate = false;  // q gives [q | gate] per head; o ⊙ sigmoid(gate)
  QkNorm qk_norm = QkNorm::none;
  double scale = 0;      // of the scores; 0: 1/√head_dim
  double in_scale = 1;   // of q, k, v
  double key_scale = 1;  // of k besides
  double out_scale = 1;

  // Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), in its absorbed form: one
  // latent K of latent_dim + shared_dim a token, its first latent_dim dims being V too. 0: none.
  int latent_dim = 0;
  int nope_dim = 0;    // of a head's q and k that come from the latent
  int shared_dim = 0;  // of k that all heads share
  int value_dim = 0;   // of a head

  bool latent() const { return latent_dim > 0; }
  int key_width() const { return latent() ? latent_dim + shared_dim : head_dim; }  // of a cached K
};

// A linear-attention layer. What its family says is not repeated here: gated_delta_net and kda take
// beta = sigmoid, mamba2 takes beta = Δ and adds D·v, lightning has a constant decay.
struct LinearSpec {
  Family family = Family::gated_delta_net;
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  int conv_width = 1;  // causal depthwise convolution over [q | k | v]; 1: none
  bool conv_bias = false;
  Activation activation = Activation::silu;  // of q, k, v, after the convolution
  QkNorm qk_norm = QkNorm::none;
  int rotary_dim = 0;  // RoPE on q and k: cached states must be relocated
  double rope_theta = 0;
  double scale = 1;       // of q
  double beta_scale = 1;  // of sigmoid
  double step_min = 0;    // of Δ (mamba2)
  double step_max = std::numeric_limits<double>::infinity();
  int decay_rank = 0;  // the decay's projection goes through this many dims (kda)
  int gate_rank = 0;   // and the output gate's; 0: directly
  // The norm of o: one weight for every head (0), or groups of all heads with a weight of their own; −1: none.
  int norm_groups = 0;
  bool norm_spans_ranks = false;  // the groups are those of all ranks together
  double norm_eps = 1e-6;
  bool gate_first = false;             // norm(o ⊙ gate), not norm(o) ⊙ gate
  Activation gate = Activation::silu;  // of the output gate
  double z_scale = 1, v_scale = 1, k_scale = 1, q_scale = 1, dt_scale = 1;  // of the projections
  double out_scale = 1;

  int conv_channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  bool takes_beta() const { return family == Family::gated_delta_net || family == Family::kda; }
};

struct FfnSpec {
  int inner = 0;
  bool gated = true;  // down(activation(gate x) ⊙ up x), else down(activation(up x))
  Activation activation = Activation::silu;
  double gate_scale = 1, down_scale = 1;
};

struct MoeSpec {
  int experts = 0;
  int active = 0;  // experts a token goes to
  int inner = 0;
  int shared_inner = 0;      // of the shared expert; 0: none
  bool shared_gate = false;  // its output times sigmoid(x·w)
  bool gated = true;
  Activation activation = Activation::silu;
  RouteArgs::Score score = RouteArgs::Score::softmax;
  bool bias = false;
  int groups = 1, kept_groups = 1;
  bool renormalise = true;
  double scale = 1;
};

enum class Ffn : uint8_t { none, dense, moe };

// h ← h + f(norm(h)) · h ← h + norm(f(h)) · x = norm(h), h ← x + f(x).
enum class Residual : uint8_t { pre_norm, post_norm, normed };

struct Layer {
  bool linear = false;
  bool attention = false;  // with linear: side by side, their outputs added
  Ffn ffn = Ffn::dense;
  Residual residual = Residual::pre_norm;

  bool mixes() const { return linear || attention; }
  bool operator==(const Layer&) const = default;
};

inline constexpr Layer kLinearLayer{.linear = true};
inline constexpr Layer kAttentionLayer{.attention = true};

// How a sublayer's output is added: h ← residual · h + update · f.
struct Mix {
  double residual = 1, update = 1;
};

struct ModelSpec {
  std::string name;        // "qwen3.5-0.8b", or the folder it was read from
  std::string model_type;  // of config.json, such as qwen3_5_text
  std::string config;      // the text of config.json
  std::vector<std::string> unread;  // keys of config.json that nothing looked at
  int later_layers = 0;             // in the checkpoint after the last, for speculative decoding
  int vocabulary = 0;
  int hidden = 0;
  double norm_eps = 1e-6;
  bool norm_plus_one = false;  // layer norms multiply by 1 + weight
  bool tied = false;           // lm_head is the embedding
  int max_positions = 0;
  double embedding_scale = 1, logit_scale = 1;
  Mix linear_mix, attention_mix, ffn_mix;
  std::vector<Layer> layers;
  AttentionSpec attention;
  LinearSpec linear;
  FfnSpec ffn;
  MoeSpec moe;
  std::vector<double> slopes;  // lightning: decay e^−s of each layer's heads, [layers · heads]

  // A tensor-parallel rank's part, by part_of(): heads and inner sizes above are its own, and this is the whole model.
  std::shared_ptr<const ModelSpec> whole;
  int rank = 0, ranks = 1;

  int layer_count() const { return static_cast<int>(layers.size()); }
  int linear_layers() const;
  int attention_layers() const;
};

// Which part of a tensor a tensor-parallel rank has.
enum class Split : uint8_t {
  none,         // all of it
  rows,         // of the first axis, its share
  columns,      // of the last axis
  qkv_rows,     // [q | k | v] of linear attention: of each the rows of its heads
  kv_rows,      // the rows of its KV heads; several ranks have the same one where there are fewer
  norm_groups,  // rows, or all of it where there are no whole groups for each rank
  expert_rows,  // [E, parts · I, N]: of each part of an expert its share
};

// The parts of one axis that a rank has, in this order; all of the tensor where there are none.
struct Cut {
  int axis = 0;
  std::vector<std::pair<int64_t, int64_t>> ranges;  // [begin, end)
};

// How `random:` fills a tensor; see random_weights.h.
enum class Init : uint8_t {
  matrix,         // fan-in scaled
  output_matrix,  // writes to the residual stream: scaled down with the depth
  gate_matrix,    // into the decay gate: scaled down, so that the memory length of a head stays its
                  // own
  router,         // logits spread as a trained router's
  embedding,
  head,
  norm,         // about 1
  norm_offset,  // about 0, for norms that multiply by 1 + weight
  bias,         // about 0
  // In the state dtype, also in a bfloat16 model:
  router_bias,
  D,  // about 1
  A_log,
  dt_bias,
};

// Rows of a checkpoint's tensor, its first axis, in this order; all where `rows` is empty.
struct Piece {
  std::string name;  // without the checkpoint's prefix: layers.0.mlp.up_proj.weight
  std::vector<int64_t> shape;
  std::vector<int64_t> rows;
};

// One of the model's own tensors. Its elements are those of its pieces laid end to end.
struct TensorSpec {
  std::string name;  // layers.0.ffn.up
  std::vector<int64_t> shape;
  Init init;
  Split split = Split::none;
  // Checkpoints of one architecture may store a tensor in several ways: the first whose pieces are all there
  // in their shapes counts. The first is also how a checkpoint is written.
  std::vector<std::vector<Piece>> sources;

  Cut cut = {};  // of a rank's part: what `shape` has of the tensor that the sources make

  int64_t size() const;
  bool in_state_dtype() const { return init >= Init::router_bias; }
};

// Every tensor that a model has, in the order of its layers. Of a rank's part: the same, cut.
std::vector<TensorSpec> tensor_specs(const ModelSpec& spec);

// What one of `ranks` tensor-parallel ranks computes of a model: its share of the heads, of the channels of the
// convolution and of every inner size, experts' too; layer norms, routers, embedding and head in full. KV heads, and
// key heads of linear attention, are the same on several ranks where there are fewer. Sublayers' outputs are summed by
// Backend::all_reduce, so the residual stream and the logits are the same on all.
// Error: something of which no rank can have its share.
ModelSpec part_of(const ModelSpec& whole, int rank, int ranks);

// Matrices that read the same input. A model keeps them as rows of one, so that one product serves them all.
struct StackSpec {
  std::string name;                // layers.0.linear.in
  std::vector<std::string> parts;  // names of tensors [N, K] with one K, in the compute dtype
};

// Per layer:
//   linear.in      qkv · z, or z_down · decay, or decay_down (not Lightning) · beta (LinearSpec::takes_beta)
//   attention.in   q · k · v; latent: q · latent
//   ffn.in         up · gate (where gated)
//   moe.shared.in  up · gate (where gated) · moe.shared_gate (where there is one)
std::vector<StackSpec> stack_specs(const ModelSpec& spec);

// What checkpoints of this architecture put before the names ("model.", …) and which of their tensors are
// of no use to a text model.
struct CheckpointNames {
  std::vector<std::string_view> prefixes;  // the first one is written
  std::vector<std::string_view> ignored;   // a name that starts with one, or ends with one that begins with '.'
};
CheckpointNames checkpoint_names(const ModelSpec& spec);

// Parameters in all.
int64_t parameter_count(const ModelSpec& spec);

// The named configurations of `random:NAME`. Each full-size NAME has a NAME-tiny, which runs on a CPU in
// seconds; only those of different architectures are listed.
std::vector<std::string> model_names();

// By name; an Error that lists the known names otherwise.
ModelSpec spec_named(std::string_view name);

// The model types that config.json may name.
std::vector<std::string> model_types();

// From the text of a config.json; `where` begins every error message.
// Error: unknown model type (lists the supported ones), missing or ill-typed key, size out of
// range, frequencies that depend on the length (residues could not be relocated).
ModelSpec spec_from_config(const std::string& config, const std::string& where);

}  // namespace hypic
