// One architecture: a Hugging Face model type, how its config.json makes a spec and how its checkpoint's
// tensors make the model's own. Each has a file of the model type's name, listed in architectures().
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec.h"

namespace hypic {

// A config.json that is being read: every access is checked, errors name the key and the file.
class Config {
 public:
  Config(const nlohmann::json& json, std::string where)
      : json_(json), where_(std::move(where)), read_(std::make_shared<std::set<std::string>>()) {}

  bool has(const char* key) const;  // there, and not null
  int integer(const char* key, int low, int high) const;
  int size(const char* key, int high = 1 << 20) const { return integer(key, 1, high); }
  int size_or(const char* key, int fallback, int high = 1 << 20) const;
  double number(const char* key, double fallback) const;
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, const char* fallback) const;
  std::vector<std::string> texts(const char* key) const;     // empty where absent
  std::vector<int> integers(const char* key) const;          // empty where absent
  std::vector<double> numbers(const char* key, size_t count, double fallback) const;
  Config object(const char* key) const;  // empty where absent

  // Keys that change nothing here: they count as read.
  void ignore(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) find(key);
  }
  // Keys that are there and that nothing has looked at.
  std::vector<std::string> unread() const;

  // Refuses a flag that is set, or a text other than the one expected, as not supported.
  void refuse_flag(const char* key, bool fallback = false) const;
  void expect_text(const char* key, const char* expected) const;
  template <class... Parts>
  void check(bool holds, const Parts&... parts) const {
    require(holds, where_, ": ", parts...);
  }
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json* find(const char* key) const;
  nlohmann::json json_;
  std::string where_;
  std::shared_ptr<std::set<std::string>> read_;  // by all copies
};

// Builds the list of a model's tensors.
class TensorList {
 public:
  // Stored under one name, in the model's own layout. `stored` is its shape there, if another.
  void add(std::string name, std::vector<int64_t> shape, Init init, Split split, std::string stored_name,
           std::vector<int64_t> stored = {});
  // Made of pieces.
  void make(std::string name, std::vector<int64_t> shape, Init init, Split split, std::vector<Piece> pieces);
  // Another way in which checkpoints store the tensor added last.
  void or_else(std::vector<Piece> pieces);

  std::vector<TensorSpec> take() { return std::move(tensors_); }

  // The first and the last tensors of every model: the embedding; the final norm and the head.
  void embedding(const ModelSpec& spec, const std::string& stored = "embed_tokens.weight");
  std::vector<TensorSpec> finish(const ModelSpec& spec, const std::string& norm = "norm.weight");

  // Groups that architectures share; `stored` is the prefix of the checkpoint's names.
  void swiglu(const std::string& name, const std::string& stored, int64_t hidden, int64_t inner);
  // [E, 2I, N] and [E, N, I] from one matrix per expert; names such as {"gate_proj", "up_proj", "down_proj"}.
  void experts(const std::string& name, const std::string& stored, const MoeSpec& moe, int64_t hidden,
               std::span<const char* const> matrices);
  // q, k, v, o of softmax attention with plain matrices {q,k,v,o}_proj.
  void attention(const std::string& name, const std::string& stored, const AttentionSpec& a, int64_t hidden);

 private:
  std::vector<TensorSpec> tensors_;
};

struct NamedConfig {
  std::string name;
  nlohmann::json config;
};

struct Architecture {
  std::vector<std::string_view> model_types;
  ModelSpec (*spec)(const Config& config);
  std::vector<TensorSpec> (*tensors)(const ModelSpec& spec);
  CheckpointNames names;
  std::vector<NamedConfig> (*named)();  // the tiny one first: NAME-tiny
};

// One a file.
const Architecture& qwen3_5();
const Architecture& qwen3_5_moe();
const Architecture& qwen3_next();
const Architecture& bailing_moe_linear();
const Architecture& kimi_linear();
const Architecture& minimax();
const Architecture& nemotron_h();
const Architecture& granitemoehybrid();
const Architecture& falcon_h1();
const Architecture& olmo_hybrid();

// Parts that several architectures read alike.

// vocab_size, hidden_size, rms_norm_eps (or `eps_key`), tie_word_embeddings, max_position_embeddings;
// default_eps as transformers has it.
ModelSpec common_spec(const Config& config, double default_eps, const char* eps_key = "rms_norm_eps");

// Sigmoid routing among groups: active of `experts`, kept groups, scale. Error where they do not fit.
void read_group_router(const Config& config, const char* active_key, const char* groups_key,
                       double default_scale, MoeSpec* moe);

// The keys of a config.json that common_spec and attention_of read.
struct CommonSizes {
  const char* name;
  int vocabulary, layers, hidden, q_heads, kv_heads, max_positions;
};
nlohmann::json common_config(const char* model_type, const CommonSizes& sizes, double eps,
                             const char* eps_key = "rms_norm_eps");

// From layer_types (also by the older names mamba, attention); where it is absent, every interval-th layer
// is attention.
std::vector<Layer> layers_of(const Config& config, int count, int interval);

// Grouped heads: num_attention_heads, num_key_value_heads, head_dim.
AttentionSpec attention_of(const Config& config, int default_head_dim);
// What most architectures default to: hidden_size / num_attention_heads.
int head_dim_by_heads(const Config& config);

// Sets rotary_dim and theta from rope_parameters, rope_scaling, rope_theta, partial_rotary_factor; without
// default_part the architecture rotates all of `head_dim` and another factor is refused. An Error where theta is
// missing or frequencies depend on the length.
void read_rope(const Config& config, std::optional<double> default_part, int head_dim, int* rotary_dim,
               double* theta);

// The slopes of Lightning attention, 2^(−8(h+1)/heads) · factor(l), for all layers (linear or not), or for a
// number of heads that is no power of two the usual interleaving (ALiBi, arXiv 2108.12409).
std::vector<double> lightning_slopes(int heads, int layers, double (*factor)(int layer, int layers));

// Gated DeltaNet by the keys linear_num_key_heads, linear_key_head_dim, … that Qwen and OLMo share.
LinearSpec gated_delta_net_spec(const Config& config, double norm_eps);

// Mamba-2 (arXiv 2405.21060): v = x, k = B, q = C.
LinearSpec mamba2_spec(const Config& config, int heads, int head_dim, int groups, int state, int conv_width);
// Its tensors from `in_proj`, rows [z | x | B | C | dt], and the rest at `stored`.
void add_mamba2(TensorList& list, const std::string& name, const std::string& stored, const LinearSpec& a,
                int64_t hidden, const std::string& norm);

}  // namespace hypic
