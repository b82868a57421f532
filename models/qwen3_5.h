// What the Qwen3.5 and Qwen3-Next architectures share: gated DeltaNet layers and, every fourth, gated full
// attention.
#pragma once

#include <string>

#include "models/architecture.h"

namespace hypic {

// All but the feed-forward part.
ModelSpec qwen_spec(const Config& config);
// moe and the layers that have it, from num_experts and its companions.
void read_qwen_moe(const Config& config, ModelSpec* spec);

// Everything before, between and after the feed-forward parts; `linear` adds a gated DeltaNet layer's
// projections, `ffn` a layer's feed-forward part.
std::vector<TensorSpec> qwen_tensors(const ModelSpec& spec,
                                     void (*linear)(TensorList& list, const ModelSpec& spec,
                                                    const std::string& name, const std::string& stored),
                                     void (*ffn)(TensorList& list, const ModelSpec& spec, int layer));
void add_qwen3_5_projections(TensorList& list, const ModelSpec& spec, const std::string& name,
                             const std::string& stored);
// Router, experts one matrix each, gated shared expert.
void add_qwen_moe(TensorList& list, const ModelSpec& spec, int layer);

struct QwenSizes {
  const char* name;
  int layers, hidden, q_heads, kv_heads, head_dim, key_heads, value_heads, key_dim, value_dim;
};
// A config.json without its feed-forward part.
nlohmann::json qwen_config(const QwenSizes& sizes, const char* model_type, int vocabulary);

}  // namespace hypic
