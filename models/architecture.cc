#include "models/architecture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "core/json.h"

namespace hypic {

using nlohmann::json;

const json* Config::find(const char* key) const {
  read_->insert(key);
  const auto value = json_.find(key);
  return value == json_.end() || value->is_null() ? nullptr : &*value;
}

bool Config::has(const char* key) const { return find(key) != nullptr; }

int Config::integer(const char* key, int low, int high) const {
  const json* value = find(key);
  check(value != nullptr, "key ", key, " is missing");
  check(value->is_number_integer(), key, " must be an integer, is ", shown(*value));
  check(is_integer_in(*value, low, high), key, " = ", shown(*value), " is outside ", low, " … ", high);
  return *value;
}

int Config::size_or(const char* key, int fallback, int high) const {
  return has(key) ? size(key, high) : fallback;
}

double Config::number(const char* key, double fallback) const {
  const json* value = find(key);
  if (!value) return fallback;
  check(value->is_number(), key, " must be a number, is ", shown(*value));
  const double x = *value;
  check(std::isfinite(x), key, " must be finite");
  return x;
}

bool Config::flag(const char* key, bool fallback) const {
  const json* value = find(key);
  if (!value) return fallback;
  check(value->is_boolean(), key, " must be true or false, is ", shown(*value));
  return *value;
}

std::string Config::text(const char* key, const char* fallback) const {
  const json* value = find(key);
  if (!value) return fallback;
  check(value->is_string(), key, " must be a string, is ", shown(*value));
  return *value;
}

std::vector<std::string> Config::texts(const char* key) const {
  const json* value = find(key);
  if (!value) return {};
  check(value->is_array(), key, " must be a list, is ", shown(*value));
  std::vector<std::string> out;
  for (const json& item : *value)
    out.push_back(item.is_string() ? item.get<std::string>() : shown(item));
  return out;
}

std::vector<int> Config::integers(const char* key) const {
  const json* value = find(key);
  if (!value) return {};
  check(value->is_array(), key, " must be a list, is ", shown(*value));
  std::vector<int> out;
  for (const json& item : *value) {
    check(is_integer_in(item, INT32_MIN, INT32_MAX), key, " must hold integers, holds ", shown(item));
    out.push_back(item);
  }
  return out;
}

std::vector<double> Config::numbers(const char* key, size_t count, double fallback) const {
  const json* value = find(key);
  if (!value) return std::vector<double>(count, fallback);
  check(value->is_array() && value->size() == count, key, " must be a list of ", count, " numbers, is ",
        shown(*value));
  std::vector<double> out;
  for (const json& item : *value) {
    // JSON has no infinity: transformers writes {"__float__": "Infinity"}.
    if (item == json{{"__float__", "Infinity"}}) {
      out.push_back(INFINITY);
      continue;
    }
    check(item.is_number(), key, " must hold numbers, holds ", shown(item));
    out.push_back(item);
  }
  return out;
}

Config Config::object(const char* key) const {
  const json* value = find(key);
  if (!value) return Config(json::object(), where_);
  check(value->is_object(), key, " must be an object, is ", shown(*value));
  return Config(*value, where_);
}

std::vector<std::string> Config::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_.items())
    if (!read_->count(key)) keys.push_back(key);
  return keys;
}

void Config::refuse_flag(const char* key, bool fallback) const {
  check(!flag(key, fallback), key, " is not supported");
}

void Config::expect_text(const char* key, const char* expected) const {
  const std::string value = text(key, expected);
  check(value == expected, key, " \"", value, "\" is not supported (", expected, " is)");
}

void TensorList::add(std::string name, std::vector<int64_t> shape, Init init, Split split,
                     std::string stored_name, std::vector<int64_t> stored) {
  if (stored.empty()) stored = shape;
  std::vector<Piece> pieces = {{std::move(stored_name), std::move(stored), {}}};
  make(std::move(name), std::move(shape), init, split, std::move(pieces));
}

void TensorList::make(std::string name, std::vector<int64_t> shape, Init init, Split split,
                      std::vector<Piece> pieces) {
  tensors_.push_back({std::move(name), std::move(shape), init, split, {std::move(pieces)}});
}

void TensorList::or_else(std::vector<Piece> pieces) {
  tensors_.back().sources.push_back(std::move(pieces));
}

void TensorList::embedding(const ModelSpec& spec, const std::string& stored) {
  add("embed", {spec.vocabulary, spec.hidden}, Init::embedding, Split::none, stored);
}

std::vector<TensorSpec> TensorList::finish(const ModelSpec& spec, const std::string& norm) {
  add("norm", {spec.hidden}, spec.norm_plus_one ? Init::norm_offset : Init::norm, Split::none, norm);
  if (!spec.tied) add("lm_head", {spec.vocabulary, spec.hidden}, Init::head, Split::none, "lm_head.weight");
  return take();
}

void TensorList::swiglu(const std::string& name, const std::string& stored, int64_t hidden,
                        int64_t inner) {
  add(name + "gate", {inner, hidden}, Init::matrix, Split::rows, stored + "gate_proj.weight");
  add(name + "up", {inner, hidden}, Init::matrix, Split::rows, stored + "up_proj.weight");
  add(name + "down", {hidden, inner}, Init::output_matrix, Split::columns, stored + "down_proj.weight");
}

void TensorList::experts(const std::string& name, const std::string& stored, const MoeSpec& moe,
                         int64_t hidden, std::span<const char* const> matrices) {
  const int64_t E = moe.experts, I = moe.inner;
  const size_t ups = matrices.size() - 1;
  std::vector<Piece> up, down;
  for (int64_t e = 0; e < E; ++e) {
    const std::string at = str(stored, e, ".");
    for (size_t i = 0; i < ups; ++i) up.push_back({str(at, matrices[i], ".weight"), {I, hidden}, {}});
    down.push_back({str(at, matrices[ups], ".weight"), {hidden, I}, {}});
  }
  make(name + "up", {E, static_cast<int64_t>(ups) * I, hidden}, Init::matrix, Split::expert_rows, std::move(up));
  make(name + "down", {E, hidden, I}, Init::output_matrix, Split::columns, std::move(down));
}

void TensorList::attention(const std::string& name, const std::string& stored, const AttentionSpec& a,
                           int64_t hidden) {
  const int64_t q = a.q_heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  add(name + "q", {a.output_gate ? 2 * q : q, hidden}, Init::matrix, Split::rows, stored + "q_proj.weight");
  add(name + "k", {kv, hidden}, Init::matrix, Split::kv_rows, stored + "k_proj.weight");
  add(name + "v", {kv, hidden}, Init::matrix, Split::kv_rows, stored + "v_proj.weight");
  add(name + "o", {hidden, q}, Init::output_matrix, Split::columns, stored + "o_proj.weight");
}

ModelSpec common_spec(const Config& config, double default_eps, const char* eps_key) {
  ModelSpec spec;
  spec.vocabulary = config.size("vocab_size", 1 << 24);
  spec.hidden = config.size("hidden_size", 1 << 17);
  spec.norm_eps = config.number(eps_key, default_eps);
  config.check(spec.norm_eps > 0 && spec.norm_eps < 1, eps_key, " = ", spec.norm_eps, " is outside (0, 1)");
  spec.tied = config.flag("tie_word_embeddings", false);
  spec.max_positions = config.size_or("max_position_embeddings", 262144, 1 << 28);
  return spec;
}

void read_group_router(const Config& config, const char* active_key, const char* groups_key,
                       double default_scale, MoeSpec* moe) {
  moe->score = RouteArgs::Score::sigmoid;
  moe->active = config.size(active_key, moe->experts);
  moe->groups = config.size_or(groups_key, 1, moe->experts);
  moe->kept_groups = config.size_or("topk_group", 1, moe->groups);
  moe->scale = config.number("routed_scaling_factor", default_scale);
  config.check(moe->experts % moe->groups == 0 && moe->active <= moe->experts / moe->groups * moe->kept_groups,
               groups_key, ", topk_group and ", active_key, " do not fit ", moe->experts, " experts");
}

nlohmann::json common_config(const char* model_type, const CommonSizes& s, double eps, const char* eps_key) {
  return {{"model_type", model_type},
          {"vocab_size", s.vocabulary},
          {"hidden_size", s.hidden},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.q_heads},
          {"num_key_value_heads", s.kv_heads},
          {eps_key, eps},
          {"tie_word_embeddings", false},
          {"max_position_embeddings", s.max_positions}};
}

std::vector<Layer> layers_of(const Config& config, int count, int interval) {
  std::vector<Layer> layers;
  if (!config.has("layer_types")) {
    for (int l = 0; l < count; ++l)
      layers.push_back((l + 1) % interval == 0 ? kAttentionLayer : kLinearLayer);
    return layers;
  }
  const std::vector<std::string> types = config.texts("layer_types");
  config.check(static_cast<int>(types.size()) == count, "layer_types must list num_hidden_layers = ", count,
               " layers");
  for (const std::string& name : types) {
    const bool linear = name == "linear_attention" || name == "mamba";
    config.check(linear || name == "full_attention" || name == "attention", "layer type \"", name,
                 "\" is not supported (linear_attention and full_attention are)");
    layers.push_back(linear ? kLinearLayer : kAttentionLayer);
  }
  return layers;
}

int head_dim_by_heads(const Config& config) {
  return std::max(1, config.size("hidden_size", 1 << 17) / config.size("num_attention_heads", 1024));
}

AttentionSpec attention_of(const Config& config, int default_head_dim) {
  AttentionSpec a;
  a.q_heads = config.size("num_attention_heads", 1024);
  a.kv_heads = config.size_or("num_key_value_heads", a.q_heads, 1024);
  a.head_dim = config.size_or("head_dim", default_head_dim, 4096);
  config.check(a.q_heads % a.kv_heads == 0, "num_attention_heads = ", a.q_heads,
               " is no multiple of num_key_value_heads = ", a.kv_heads);
  config.refuse_flag("attention_bias");
  return a;
}

void read_rope(const Config& config, std::optional<double> default_part, int head_dim, int* rotary_dim,
               double* theta) {
  const Config rope = config.object("rope_parameters"), scaling = config.object("rope_scaling");
  for (const Config& part : {rope, scaling}) {
    for (const char* key : {"rope_type", "type"}) {  // "type" in older files
      const std::string type = part.text(key, "default");
      config.check(type == "default" || type == "mrope", "RoPE type \"", type,
                   "\" is refused: its frequencies may depend on the length, so cached segments cannot "
                   "be moved");
    }
    for (const char* key : {"full_attention", "linear_attention", "sliding_attention"})
      config.check(!part.has(key), "RoPE parameters of their own for ", key, " are not supported");
  }
  config.check(!scaling.has("rope_theta") && !scaling.has("partial_rotary_factor"),
               "rope_scaling with rope_theta or partial_rotary_factor is not supported; put them into "
               "rope_parameters");
  config.check(rope.has("rope_theta") || config.has("rope_theta"),
               "rope_theta is missing, in rope_parameters and beside it");
  *theta = rope.number("rope_theta", config.number("rope_theta", 0));
  const double part = rope.number("partial_rotary_factor",
                                  config.number("partial_rotary_factor", default_part.value_or(1)));
  config.check(default_part || part == 1, "partial_rotary_factor is not supported by this architecture");
  config.check(*theta > 1 && part > 0 && part <= 1, "rope_theta must exceed 1, is ", *theta,
               ", and partial_rotary_factor lie in (0, 1], is ", part);
  *rotary_dim = static_cast<int>(head_dim * part);
  config.check(*rotary_dim % 2 == 0, *rotary_dim, " rotary dims are not even: partial_rotary_factor ", part,
               " of a head_dim of ", head_dim);
}

std::vector<double> lightning_slopes(int heads, int layers, double (*factor)(int layer, int layers)) {
  // 2^(−8(h+1)/n) for a power of two; below that, those of the next power fill up, every other one.
  const auto series = [](int n, int h) { return std::exp2(-8.0 * (h + 1) / n); };
  int power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (int l = 0; l < layers; ++l)
    for (int h = 0; h < heads; ++h)
      slopes.push_back((h < power ? series(power, h) : series(2 * power, 2 * (h - power))) *
                       factor(l, layers));
  return slopes;
}

LinearSpec gated_delta_net_spec(const Config& config, double norm_eps) {
  LinearSpec a;
  a.family = Family::gated_delta_net;
  a.key_heads = config.size("linear_num_key_heads", 1024);
  a.value_heads = config.size("linear_num_value_heads", 1024);
  a.key_dim = config.size("linear_key_head_dim", 1024);
  a.value_dim = config.size("linear_value_head_dim", 1024);
  a.conv_width = config.size("linear_conv_kernel_dim", 64);
  a.qk_norm = QkNorm::l2;
  a.scale = 1 / std::sqrt(static_cast<double>(a.key_dim));
  a.norm_eps = norm_eps;
  config.check(a.value_heads % a.key_heads == 0, "linear_num_value_heads = ", a.value_heads,
               " is no multiple of linear_num_key_heads = ", a.key_heads);
  return a;
}

LinearSpec mamba2_spec(const Config& config, int heads, int head_dim, int groups, int state,
                       int conv_width) {
  LinearSpec a;
  a.family = Family::mamba2;
  a.key_heads = groups;
  a.value_heads = heads;
  a.key_dim = state;
  a.value_dim = head_dim;
  a.conv_width = conv_width;
  config.check(heads % groups == 0, heads, " Mamba heads are no multiple of ", groups, " groups");
  const std::vector<double> limit =
      config.has("time_step_limit") ? config.numbers("time_step_limit", 2, 0) : std::vector<double>{0, INFINITY};
  a.step_min = limit[0];
  a.step_max = limit[1];
  config.check(0 <= a.step_min && a.step_min < a.step_max, "time_step_limit must be two rising numbers");
  return a;
}

void add_mamba2(TensorList& list, const std::string& name, const std::string& stored,
                const LinearSpec& a, int64_t hidden, const std::string& norm) {
  const int64_t x = a.value_heads * a.value_dim, bc = a.key_heads * a.key_dim, dt = a.value_heads,
                C = a.conv_channels();
  const std::string proj = stored + "in_proj.weight";
  const std::vector<int64_t> all = {x + C + dt, hidden};
  const auto range = [](int64_t begin, int64_t end) {
    std::vector<int64_t> rows(end - begin);
    std::iota(rows.begin(), rows.end(), begin);
    return rows;
  };
  // [x | B | C] becomes [q | k | v] = [C | B | x].
  const auto as_qkv = [&](int64_t first) {
    std::vector<int64_t> rows = range(first + x + bc, first + x + 2 * bc);
    for (const auto& more : {range(first + x, first + x + bc), range(first, first + x)})
      rows.insert(rows.end(), more.begin(), more.end());
    return rows;
  };
  list.make(name + "qkv", {C, hidden}, Init::matrix, Split::qkv_rows, {{proj, all, as_qkv(x)}});
  list.make(name + "z", {x, hidden}, Init::matrix, Split::rows, {{proj, all, range(0, x)}});
  list.make(name + "decay", {dt, hidden}, Init::gate_matrix, Split::rows, {{proj, all, range(x + C, x + C + dt)}});
  list.make(name + "conv", {C, a.conv_width}, Init::matrix, Split::qkv_rows,
            {{stored + "conv1d.weight", {C, 1, a.conv_width}, as_qkv(0)}});
  if (a.conv_bias)
    list.make(name + "conv_bias", {C}, Init::bias, Split::qkv_rows, {{stored + "conv1d.bias", {C}, as_qkv(0)}});
  list.add(name + "dt_bias", {dt}, Init::dt_bias, Split::rows, stored + "dt_bias");
  list.add(name + "A_log", {dt}, Init::A_log, Split::rows, stored + "A_log");
  list.add(name + "D", {dt}, Init::D, Split::rows, stored + "D");
  if (!norm.empty())
    list.add(name + "norm", {a.norm_groups, x / a.norm_groups}, Init::norm, Split::norm_groups, norm, {x});
  list.add(name + "out", {hidden, x}, Init::output_matrix, Split::columns, stored + "out_proj.weight");
}

}  // namespace hypic
