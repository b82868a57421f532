// What a model is: sizes and the kind of each layer, read from a Hugging Face config.json or by
// name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "core/family.h"

namespace hypic {

struct AttentionSpec {  // softmax attention with grouped heads
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;  // NeoX RoPE on the first dims of q and k
  double rope_theta = 0;
  bool output_gate = false;  // q_proj gives [q | gate] per head; o ⊙ sigmoid(gate)
};

struct LinearSpec {  // a linear-attention layer
  Family family = Family::gated_delta_net;
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  int conv_width = 0;                  // causal depthwise convolution over [q | k | v]
  Activation gate = Activation::silu;  // of the gated output norm

  int conv_channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

enum class LayerKind : uint8_t { linear, attention };

struct ModelSpec {
  std::string name;        // "qwen3.5-0.8b", or the folder it was read from
  std::string model_type;  // of config.json, such as qwen3_5_text
  int vocabulary = 0;
  int hidden = 0;
  int ffn = 0;  // SwiGLU inner size
  double norm_eps = 1e-6;
  bool norm_plus_one = true;  // layer norms multiply by 1 + weight
  bool tied = false;          // lm_head is the embedding
  int max_positions = 0;
  std::vector<LayerKind> layers;
  AttentionSpec attention;
  LinearSpec linear;

  int layer_count() const { return static_cast<int>(layers.size()); }
};

// How a tensor is shared among tensor-parallel ranks.
enum class Split : uint8_t { none, rows, columns };

// How `random:` fills a tensor; see random_weights.h.
enum class Init : uint8_t {
  matrix,         // fan-in scaled
  output_matrix,  // writes to the residual stream: scaled down with the depth
  gate_matrix,    // into the decay gate: scaled down, so that the memory length of a head stays its
                  // own
  embedding,
  norm,         // about 1
  norm_offset,  // about 0, for norms that multiply by 1 + weight
  A_log,
  dt_bias,
};

struct TensorSpec {
  std::string name;  // without the checkpoint's prefix: layers.0.mlp.up_proj.weight
  std::vector<int64_t> shape;
  Init init;
  Split split = Split::none;
};

// Every tensor that a model has, in the order of its layers.
std::vector<TensorSpec> tensor_specs(const ModelSpec& spec);

// Parameters in all.
int64_t parameter_count(const ModelSpec& spec);

// The named configurations of `random:NAME`.
std::vector<std::string> model_names();

// By name; an Error that lists the known names otherwise.
ModelSpec spec_named(std::string_view name);

// From the text of a config.json; `where` begins every error message.
// Error: unknown model type (lists the supported ones), missing or ill-typed key, size out of
// range, frequencies that depend on the length (residues could not be relocated).
ModelSpec spec_from_config(const std::string& config, const std::string& where);

}  // namespace hypic
