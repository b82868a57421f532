// A model for tests, small enough for many runs, and tokens for it.
#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "models/spec.h"
#include "serving/planner.h"

namespace hypic {

struct SmallModel {
  std::vector<std::string> layers = {"linear_attention", "full_attention", "linear_attention"};
  int vocabulary = 256;
  int max_positions = 0;  // 0: config.json does not say
};

// Qwen3.5, hidden size 32.
inline ModelSpec small_spec(const SmallModel& model = {}) {
  nlohmann::json config = {{"model_type", "qwen3_5_text"},
                           {"vocab_size", model.vocabulary},
                           {"hidden_size", 32},
                           {"intermediate_size", 48},
                           {"num_hidden_layers", model.layers.size()},
                           {"layer_types", model.layers},
                           {"num_attention_heads", 2},
                           {"num_key_value_heads", 1},
                           {"head_dim", 16},
                           {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}},
                           {"linear_num_key_heads", 2},
                           {"linear_num_value_heads", 2},
                           {"linear_key_head_dim", 16},
                           {"linear_value_head_dim", 8},
                           {"linear_conv_kernel_dim", 4}};
  if (model.max_positions > 0) config["max_position_embeddings"] = model.max_positions;
  ModelSpec spec = spec_from_config(config.dump(), "test");
  spec.name = "test";
  return spec;
}

// n tokens below `vocabulary`, the same for a seed.
inline Tokens random_tokens(int n, int seed, int vocabulary = 256) {
  std::mt19937 rng(seed);
  Tokens tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % static_cast<uint32_t>(vocabulary));
  return tokens;
}

}  // namespace hypic
