// What every architecture makes of its config.json: layers, refusals, and tensors of which each row
// of a checkpoint is one.
#include "models/architecture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace hypic {
namespace {

using nlohmann::json;

json config_of(const std::string& name) { return json::parse(spec_named(name).config); }

ModelSpec read(const json& config) { return spec_from_config(config.dump(), "dir/config.json"); }

// l, a: linear, attention; b: both side by side; then m, f, or nothing by the feed-forward part.
std::string kinds(const ModelSpec& spec) {
  std::string text;
  for (const Layer& layer : spec.layers) {
    text += layer.linear && layer.attention ? "b" : layer.linear ? "l" : layer.attention ? "a" : "";
    text += layer.ffn == Ffn::moe ? "m" : layer.ffn == Ffn::dense ? "f" : "";
  }
  return text;
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// The message with which a config with one more key is refused; empty where it is not.
std::string refusal(const std::string& name, const char* key, const json& value) {
  json config = config_of(name);
  config[key] = value;
  try {
    read(config);
    return "";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("dir/config.json: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
}

struct Refused {
  const char* key;
  json value;
  const char* message;
};

void expect_refused(const std::string& name, const std::vector<Refused>& all) {
  EXPECT_NO_THROW(read(config_of(name)));
  for (const auto& [key, value, message] : all) {
    const std::string found = refusal(name, key, value);
    EXPECT_NE(found.find(message), std::string::npos)
        << name << ", " << key << ": \"" << found << "\", expected: " << message;
  }
}

// Layers as published
// -----------------------------------------------------------------------------------------------

TEST(Architectures, LayersAsPublished) {
  const std::map<std::string, std::string> layers = {
      {"qwen3.5-tiny", repeated("lflflfaf", 2)},
      {"qwen3.5-0.8b", repeated("lflflfaf", 6)},
      {"qwen3.5-2b", repeated("lflflfaf", 6)},
      {"qwen3.5-4b", repeated("lflflfaf", 8)},
      {"qwen3.5-9b", repeated("lflflfaf", 8)},
      {"qwen3.5-27b", repeated("lflflfaf", 16)},
      {"qwen3.5-35b-a3b-tiny", repeated("lmlmlmam", 2)},
      {"qwen3.5-35b-a3b", repeated("lmlmlmam", 10)},
      {"qwen3.5-122b-a10b", repeated("lmlmlmam", 12)},
      {"qwen3.5-397b-a17b", repeated("lmlmlmam", 15)},
      {"qwen3-next-80b-a3b-tiny", "lmlmlmam"},
      {"qwen3-next-80b-a3b", repeated("lmlmlmam", 12)},
      {"ring-mini-linear-2.0-tiny", "lflmlmlmam"},
      {"ring-mini-linear-2.0", "lflmlmlmam" + repeated("lmlmlmlmam", 3)},
      {"ring-flash-linear-2.0",
       "lf" + repeated("lm", 6) + "am" + repeated(repeated("lm", 7) + "am", 3)},
      {"kimi-linear-48b-a3b-tiny", "lflmlmam"},
      {"kimi-linear-48b-a3b", "lflmlmam" + repeated("lmlmlmam", 5) + "lmlmam"},
      {"minimax-text-01-tiny", repeated("lm", 7) + "am"},
      {"minimax-text-01", repeated(repeated("lm", 7) + "am", 10)},
      {"nemotron-3-nano-30b-a3b-tiny", "lmlamlmlf"},
      {"nemotron-3-nano-30b-a3b", repeated("lmlmlam", 5) + "lmlmlmlam" + repeated("lm", 4)},
      {"granite-4.0-h-350m-tiny", "lflfaflf"},
      {"granite-4.0-h-350m", repeated("lf", 10) + "aflflfaf" + repeated("lf", 3) + "af" +
                                 repeated("lf", 9) + "af" + repeated("lf", 4)},
      {"granite-4.0-h-tiny",
       repeated("lm", 5) + "am" + repeated(repeated("lm", 9) + "am", 3) + repeated("lm", 4)},
      {"falcon-h1-1.5b-tiny", repeated("bf", 4)},
      {"falcon-h1-1.5b", repeated("bf", 24)},
      {"olmo-hybrid-7b-tiny", "lflflfaf"},
      {"olmo-hybrid-7b", repeated("lflflfaf", 8)}};
  for (const std::string& name : model_names()) {
    ASSERT_TRUE(layers.count(name)) << name;
    EXPECT_EQ(kinds(spec_named(name)), layers.at(name)) << name;
  }
  EXPECT_EQ(layers.size(), model_names().size());
}

TEST(Architectures, PartsAsPublished) {
  const ModelSpec moe = spec_named("qwen3.5-35b-a3b");
  EXPECT_EQ(moe.moe.experts, 256);
  EXPECT_EQ(moe.moe.active, 8);
  EXPECT_EQ(moe.moe.shared_inner, 512);
  EXPECT_TRUE(moe.moe.shared_gate && moe.moe.renormalise);
  EXPECT_EQ(moe.moe.score, RouteArgs::Score::softmax);

  const ModelSpec ring = spec_named("ring-mini-linear-2.0");
  EXPECT_EQ(ring.linear.family, Family::lightning);
  EXPECT_EQ(ring.linear.rotary_dim, 64);
  EXPECT_EQ(ring.linear.conv_width, 1);
  EXPECT_EQ(ring.linear.norm_groups, 4);
  EXPECT_EQ(ring.moe.score, RouteArgs::Score::sigmoid);
  EXPECT_EQ(ring.moe.groups, 8);
  EXPECT_EQ(ring.moe.kept_groups, 4);
  EXPECT_EQ(ring.moe.scale, 2.5);
  EXPECT_TRUE(ring.moe.bias);
  EXPECT_EQ(ring.ffn.inner, 5120);

  const ModelSpec kimi = spec_named("kimi-linear-48b-a3b");
  EXPECT_EQ(kimi.linear.family, Family::kda);
  EXPECT_TRUE(kimi.attention.latent());
  EXPECT_EQ(kimi.attention.key_width(), 576);
  EXPECT_EQ(kimi.attention.head_dim, 192);
  EXPECT_EQ(kimi.attention.rotary_dim, 0);
  EXPECT_EQ(kimi.moe.scale, 2.446);

  const ModelSpec minimax = spec_named("minimax-text-01");
  EXPECT_EQ(minimax.layers[0].residual, Residual::normed);
  EXPECT_EQ(minimax.linear_mix.residual, 3.5565588200778455);
  EXPECT_EQ(minimax.linear_mix.update, 1);
  EXPECT_EQ(minimax.linear.rotary_dim, 0);
  EXPECT_EQ(minimax.attention.rotary_dim, 64);
  EXPECT_EQ(minimax.linear.scale, 1);

  const ModelSpec nemotron = spec_named("nemotron-3-nano-30b-a3b");
  EXPECT_EQ(nemotron.linear.family, Family::mamba2);
  EXPECT_EQ(nemotron.linear.key_heads, 8);
  EXPECT_EQ(nemotron.linear.norm_groups, 8);
  EXPECT_TRUE(nemotron.linear.gate_first && nemotron.linear.conv_bias);
  EXPECT_FALSE(nemotron.moe.gated);
  EXPECT_EQ(nemotron.moe.activation, Activation::relu2);
  EXPECT_EQ(nemotron.attention.rotary_dim, 0);

  const ModelSpec granite = spec_named("granite-4.0-h-tiny");
  EXPECT_TRUE(granite.tied);
  EXPECT_EQ(granite.embedding_scale, 12);
  EXPECT_EQ(granite.logit_scale, 1.0 / 6);
  EXPECT_EQ(granite.attention.scale, 0.0078125);
  EXPECT_EQ(granite.ffn_mix.update, 0.22);
  EXPECT_EQ(granite.moe.experts, 64);

  const ModelSpec falcon = spec_named("falcon-h1-1.5b");
  EXPECT_EQ(falcon.attention.rope_theta, 1e11);
  EXPECT_EQ(falcon.linear.norm_groups, -1);  // none
  EXPECT_EQ(falcon.linear.key_dim, 256);

  const ModelSpec olmo = spec_named("olmo-hybrid-7b");
  EXPECT_EQ(olmo.layers[0].residual, Residual::pre_norm);
  EXPECT_EQ(olmo.layers[3].residual, Residual::post_norm);
  EXPECT_EQ(olmo.linear.beta_scale, 2);
  EXPECT_EQ(olmo.attention.qk_norm, QkNorm::all_heads);
  EXPECT_EQ(olmo.attention.rotary_dim, 0);
}

// 2^(−8(h+1)/n) · f(l), and the two forms of Ring's factor.
TEST(Architectures, LightningSlopes) {
  const auto one = [](int, int) { return 1.0; };
  EXPECT_EQ(lightning_slopes(4, 1, one),
            (std::vector<double>{0.25, 1.0 / 16, 1.0 / 64, 1.0 / 256}));
  const std::vector<double> six = lightning_slopes(6, 2, one);
  ASSERT_EQ(six.size(), 12u);
  EXPECT_EQ(six[0], 0.25);
  EXPECT_EQ(six[3], 1.0 / 256);
  EXPECT_EQ(six[4], 0.5);    // of 8 heads, the first
  EXPECT_EQ(six[5], 0.125);  // and the third
  EXPECT_EQ(six[11], 0.125);

  json config = config_of("ring-mini-linear-2.0");
  const auto factor = [&](int l) { return read(config).slopes[l * 16] / std::exp2(-0.5); };
  EXPECT_NEAR(factor(0), 1.000, 5e-4);
  EXPECT_NEAR(factor(18), 0.053, 5e-4);
  config["slope_form"] = "huggingface";
  EXPECT_NEAR(factor(0), 1.053, 5e-4);
  EXPECT_NEAR(factor(18), 0.105, 5e-4);
  const ModelSpec minimax = spec_named("minimax-text-01");
  EXPECT_NEAR(minimax.slopes[0] / std::exp2(-8.0 / 64), 1 + 1e-5, 1e-12);
  EXPECT_NEAR(minimax.slopes[79 * 64], std::exp2(-8.0 / 64) * (1e-5 + 1e-5 / 79), 1e-9);
}

// Other ways of saying the same
// -----------------------------------------------------------------------------------------------

TEST(Architectures, LayersInOtherWords) {
  json config = config_of("nemotron-3-nano-30b-a3b-tiny");
  config.erase("num_hidden_layers");  // the list says it
  config.erase("hybrid_override_pattern");
  config["layers_block_type"] = {"mamba",          "moe",       "linear_attention",
                                 "full_attention", "attention", "mlp"};
  EXPECT_EQ(kinds(read(config)), "lmlaaf");
  config.erase("layers_block_type");
  config["hybrid_override_pattern"] = "M-*E";
  EXPECT_EQ(kinds(read(config)), "lfam");

  config = config_of("granite-4.0-h-350m-tiny");
  config["layer_types"] = {"linear_attention", "full_attention", "mamba", "attention"};
  EXPECT_EQ(kinds(read(config)), "lfaflfaf");

  config = config_of("qwen3-next-80b-a3b-tiny");
  config["mlp_only_layers"] = {2};
  config["decoder_sparse_step"] = 2;
  config["intermediate_size"] = 24;
  EXPECT_EQ(kinds(read(config)), "lflmlfam");
  EXPECT_EQ(read(config).ffn.inner, 24);
  config["mlp_only_layers"] = {1, 3};
  EXPECT_EQ(kinds(read(config)), "lflflfaf");

  config = config_of("minimax-text-01-tiny");
  config["layer_types"] = {"full_attention", "linear_attention"};
  config["num_hidden_layers"] = 2;
  EXPECT_EQ(kinds(read(config)), "amlm");

  config = config_of(
      "ring-mini-linear-2.0-tiny");  // what is left over after the last group is attention
  config["num_hidden_layers"] = 5;
  config["layer_group_size"] = 2;
  config["first_k_dense_replace"] = 0;
  EXPECT_EQ(kinds(read(config)), "lmamlmamam");

  config = config_of("kimi-linear-48b-a3b-tiny");
  config["first_k_dense_replace"] = 2;
  config["moe_layer_freq"] = 3;
  EXPECT_EQ(kinds(read(config)), "lflflfam");
}

TEST(Architectures, ReadsNestedTextConfigs) {
  json config = config_of("qwen3.5-35b-a3b-tiny");
  const json nested = {
      {"model_type", "qwen3_5_moe"}, {"tie_word_embeddings", true}, {"text_config", config}};
  config.erase("tie_word_embeddings");
  const json top_only = {
      {"model_type", "qwen3_5_moe"}, {"tie_word_embeddings", true}, {"text_config", config}};
  EXPECT_FALSE(read(nested).tied);
  EXPECT_TRUE(read(top_only).tied);
  EXPECT_EQ(read(nested).model_type, "qwen3_5_moe_text");
  EXPECT_EQ(kinds(read(nested)), kinds(spec_named("qwen3.5-35b-a3b-tiny")));
}

// Refusals
// -----------------------------------------------------------------------------------------------

const json kYarn = {{"rope_type", "yarn"}, {"factor", 4.0}};

TEST(Architectures, RefuseUnsupportedOptions) {
  expect_refused("qwen3.5-35b-a3b-tiny",
                 {{"attention_bias", true, "attention_bias is not supported"},
                  {"num_experts", 0, "num_experts = 0"},
                  {"num_experts_per_tok", 17, "num_experts_per_tok = 17 is outside 1 … 16"},
                  {"decoder_sparse_step", 2, "key intermediate_size is missing"},
                  {"mlp_only_layers", {"0"}, "mlp_only_layers must hold integers"},
                  {"mlp_only_layers", {int64_t{1} << 40}, "mlp_only_layers must hold integers"},
                  {"norm_topk_prob", 1, "norm_topk_prob must be true or false"},
                  {"rope_scaling", kYarn, "RoPE type \"yarn\" is refused"}});
  expect_refused("qwen3-next-80b-a3b-tiny",
                 {{"attention_bias", true, "attention_bias is not supported"},
                  {"linear_num_value_heads", 3, "is no multiple"},
                  {"hidden_act", "gelu", "hidden_act \"gelu\""},
                  {"rope_scaling", kYarn, "RoPE type \"yarn\" is refused"}});
  expect_refused(
      "ring-mini-linear-2.0-tiny",
      {{"use_bias", true, "use_bias is not supported"},
       {"use_qkv_bias", true, "use_qkv_bias is not supported"},
       {"attention_bias", true, "attention_bias is not supported"},
       {"linear_silu", true, "linear_silu is not supported"},
       {"use_qk_norm", false, "use_qk_norm must be true"},
       {"norm_topk_prob", false, "norm_topk_prob must be true"},
       {"score_function", "softmax", "score_function \"softmax\" is not supported (sigmoid is)"},
       {"hidden_act", "gelu", "hidden_act \"gelu\""},
       {"n_group", 3, "do not fit 16 experts"},
       {"topk_group", 5, "topk_group = 5 is outside 1 … 4"},
       {"num_experts_per_tok", 9, "do not fit 16 experts"},
       {"group_norm_size", 3, "group_norm_size = 3 does not divide 128"},
       {"slope_form", "mlx", "slope_form \"mlx\" is unknown"},
       {"layer_group_size", 6, "layer_group_size = 6 is outside 1 … 5"},
       {"first_k_dense_replace", 6, "first_k_dense_replace = 6 is outside 0 … 5"},
       {"num_hidden_layers", 1, "num_hidden_layers = 1 is outside"},
       {"rope_scaling", kYarn, "RoPE type \"yarn\" is refused"}});
  json linear = config_of("kimi-linear-48b-a3b-tiny")["linear_attn_config"], none = linear;
  linear["kda_layers"] = {1, 5};
  none.erase("kda_layers");
  expect_refused(
      "kimi-linear-48b-a3b-tiny",
      {{"q_lora_rank", 64, "q_lora_rank is not supported"},
       {"mla_use_nope", false, "mla_use_nope must be true"},
       {"attention_bias", true, "attention_bias is not supported"},
       {"hidden_act", "gelu", "hidden_act \"gelu\""},
       {"moe_router_activation_func", "softmax", "moe_router_activation_func \"softmax\""},
       {"num_expert_group", 3, "do not fit 16 experts"},
       {"linear_attn_config", linear, "kda_layers names layer 5 of 4"},
       {"linear_attn_config", none, "kda_layers is missing"},
       {"linear_attn_config", {1}, "linear_attn_config must be an object"}});
  expect_refused("minimax-text-01-tiny",
                 {{"shared_intermediate_size", 8, "shared_intermediate_size is not supported"},
                  {"attention_bias", true, "attention_bias is not supported"},
                  {"hidden_act", "gelu", "hidden_act \"gelu\""},
                  {"layer_types", {"linear_attention"}, "must list num_hidden_layers = 8 layers"},
                  {"rotary_dim", 33, "rotary_dim = 33 is outside 1 … 32"},
                  {"rotary_dim", 5, "5 rotary dims are not even"},
                  {"rope_scaling", {{"type", "linear"}}, "RoPE type \"linear\" is refused"}});
  expect_refused("nemotron-3-nano-30b-a3b-tiny",
                 {{"use_bias", true, "use_bias is not supported"},
                  {"mlp_bias", true, "mlp_bias is not supported"},
                  {"mamba_proj_bias", true, "mamba_proj_bias is not supported"},
                  {"attention_bias", true, "attention_bias is not supported"},
                  {"moe_latent_size", 64, "moe_latent_size is not supported"},
                  {"mlp_hidden_act", "silu", "mlp_hidden_act \"silu\" is not supported (relu2 is)"},
                  {"mamba_hidden_act", "gelu", "mamba_hidden_act \"gelu\""},
                  {"n_group", 3, "do not fit 16 experts"},
                  {"n_groups", 3, "8 Mamba heads are no multiple of 3 groups"},
                  {"hybrid_override_pattern", "MX", "layer type \"X\" is not supported"},
                  {"hybrid_override_pattern", "", "hybrid_override_pattern is missing"},
                  {"hybrid_override_pattern", nullptr, "hybrid_override_pattern is missing"},
                  {"num_hidden_layers", 10, "num_hidden_layers = 10, but 9 layers are listed"},
                  {"layers_block_type", {"mamba", 3}, "layer type \"3\" is not supported"},
                  {"time_step_limit", {2, 1}, "time_step_limit must be two rising numbers"},
                  {"time_step_limit", {0.1}, "time_step_limit must be a list of 2 numbers"}});
  expect_refused("granite-4.0-h-350m-tiny",
                 {{"mamba_proj_bias", true, "mamba_proj_bias is not supported"},
                  {"attention_bias", true, "attention_bias is not supported"},
                  {"hidden_act", "gelu", "hidden_act \"gelu\""},
                  {"logits_scaling", 0, "logits_scaling must be positive"},
                  {"position_embedding_type", "alibi", "position_embedding_type \"alibi\""},
                  {"mamba_n_groups", 3, "8 Mamba heads are no multiple of 3 groups"},
                  {"num_local_experts", -1, "num_local_experts = -1 is outside"},
                  {"residual_multiplier", "0.2", "residual_multiplier must be a number"}});
  json rotated = config_of("granite-4.0-h-350m-tiny");
  rotated["position_embedding_type"] = "rope";
  EXPECT_THROW(read(rotated), Error);  // by which theta?
  rotated["rope_theta"] = 1e4;
  EXPECT_EQ(read(rotated).attention.rotary_dim, 32);
  rotated["rope_scaling"] = kYarn;
  EXPECT_THROW(read(rotated), Error);
  expect_refused("falcon-h1-1.5b-tiny",
                 {{"mamba_proj_bias", true, "mamba_proj_bias is not supported"},
                  {"projectors_bias", true, "projectors_bias is not supported"},
                  {"mlp_bias", true, "mlp_bias is not supported"},
                  {"attention_bias", true, "attention_bias is not supported"},
                  {"hidden_act", "gelu", "hidden_act \"gelu\""},
                  {"mamba_d_ssm", 64, "mamba_d_ssm = 64 is not mamba_n_heads · mamba_d_head = 128"},
                  {"ssm_multipliers", {1, 2, 3, 4}, "ssm_multipliers must be a list of 5 numbers"},
                  {"mlp_multipliers", {1, 2, 3}, "mlp_multipliers must be a list of 2 numbers"},
                  {"ssm_multipliers", {1, 2, 3, 4, "5"}, "ssm_multipliers must hold numbers"},
                  {"rope_scaling", kYarn, "RoPE type \"yarn\" is refused"}});
  expect_refused("olmo-hybrid-7b-tiny",
                 {{"attention_bias", true, "attention_bias is not supported"},
                  {"hidden_act", "gelu", "hidden_act \"gelu\""},
                  {"linear_num_value_heads", 6, "is no multiple"},
                  {"rope_parameters", kYarn, "RoPE type \"yarn\" is refused"}});
}

// Sizes that no model has are errors too, for every size of every architecture.
TEST(Architectures, RefuseMissingAndSillySizes) {
  for (const std::string& name : model_names()) {
    const json config = config_of(name);
    if (config["hidden_size"] > 128) continue;  // the tiny ones stand for all
    for (const char* key : {"vocab_size", "hidden_size", "num_attention_heads"}) {
      json less = config;
      less.erase(key);
      EXPECT_THROW(read(less), Error) << name << " " << key;
      for (const json& value : {json(0), json(-1), json("8"), json(8.5), json(~uint64_t{0})})
        EXPECT_NE(refusal(name, key, value).find(key), std::string::npos)
            << name << " " << key << " " << value;
    }
    for (const auto& [key, value] : config.items()) {  // no key of another kind is taken
      const bool unread = (config.value("num_local_experts", 1) == 0 &&
                           (key == "intermediate_size" || key == "num_experts_per_tok")) ||
                          (config.contains("kv_lora_rank") && key == "num_key_value_heads");
      if (!value.is_number() || unread) continue;
      EXPECT_NE(refusal(name, key.c_str(), json::array({1})), "") << name << " " << key;
    }
  }
}

// Tensors
// -----------------------------------------------------------------------------------------------

std::vector<ModelSpec> every_form() {
  std::vector<ModelSpec> specs;
  for (const std::string& name : model_names())
    if (const ModelSpec spec = spec_named(name); spec.hidden <= 128) specs.push_back(spec);
  const auto also = [&](const char* name, const json& changes) {
    json config = config_of(name);
    config.update(changes);
    specs.push_back(read(config));
  };
  also("granite-4.0-h-350m-tiny",
       {{"num_local_experts", 6}, {"num_experts_per_tok", 2}, {"intermediate_size", 24}});
  also("granite-4.0-h-350m-tiny", {{"mamba_conv_bias", false}, {"tie_word_embeddings", false}});
  also("falcon-h1-1.5b-tiny", {{"mamba_rms_norm", true}, {"mamba_n_groups", 2}});
  also("qwen3-next-80b-a3b-tiny", {{"mlp_only_layers", {1}}, {"intermediate_size", 24}});
  also("qwen3.5-35b-a3b-tiny", {{"mlp_only_layers", {0, 2}}, {"intermediate_size", 24}});
  also("ring-mini-linear-2.0-tiny",
       {{"num_shared_experts", 0}, {"moe_router_enable_expert_bias", false}});
  also("olmo-hybrid-7b-tiny", {{"linear_value_head_dim", 40}});
  return specs;
}

int64_t width_of(const Piece& piece) {
  int64_t width = 1;
  for (size_t axis = 1; axis < piece.shape.size(); ++axis) width *= piece.shape[axis];
  return width;
}
int64_t rows_of(const Piece& piece) {
  return piece.rows.empty() ? piece.shape[0] : static_cast<int64_t>(piece.rows.size());
}

TEST(Tensors, EveryRowOfACheckpointIsUsedOnce) {
  for (const ModelSpec& spec : every_form()) {
    std::set<std::string> names;
    std::map<std::string, std::vector<int64_t>> shapes;
    std::map<std::string, std::vector<int>> used;  // by row
    int64_t total = 0;
    for (const TensorSpec& tensor : tensor_specs(spec)) {
      EXPECT_TRUE(names.insert(tensor.name).second) << spec.name << ": " << tensor.name << " twice";
      ASSERT_FALSE(tensor.sources.empty()) << tensor.name;
      for (const std::vector<Piece>& source : tensor.sources) {
        int64_t size = 0;
        for (const Piece& piece : source) size += rows_of(piece) * width_of(piece);
        EXPECT_EQ(size, tensor.size()) << spec.name << ": " << tensor.name;
      }
      for (const Piece& piece : tensor.sources.front()) {
        const auto [shape, fresh] = shapes.emplace(piece.name, piece.shape);
        EXPECT_EQ(shape->second, piece.shape) << spec.name << ": " << piece.name;
        std::vector<int>& rows = used[piece.name];
        rows.resize(piece.shape[0]);
        for (int64_t i = 0; i < rows_of(piece); ++i) {
          const int64_t row = piece.rows.empty() ? i : piece.rows[i];
          ASSERT_TRUE(0 <= row && row < piece.shape[0])
              << spec.name << ": " << piece.name << " row " << row;
          ++rows[row];
        }
        if (!fresh) continue;
        int64_t size = 1;
        for (const int64_t n : piece.shape) size *= n;
        total += size;
      }
    }
    for (const auto& [name, rows] : used)
      for (size_t row = 0; row < rows.size(); ++row)
        ASSERT_EQ(rows[row], 1) << spec.name << ": " << name << " row " << row;
    EXPECT_EQ(total, parameter_count(spec)) << spec.name;
  }
}

// What distinguishes the architectures' layouts, on a few rows.
TEST(Tensors, InterleavedRowsAreTakenApart) {
  const auto piece_of = [](const ModelSpec& spec, const std::string& name) {
    for (const TensorSpec& tensor : tensor_specs(spec))
      if (tensor.name == name) return tensor.sources.front().front();
    throw Error("no tensor " + name);
  };
  // Qwen3-Next: two key heads of [q 64 | k 64 | v 2·32 | z 2·32].
  const ModelSpec next = spec_named("qwen3-next-80b-a3b-tiny");
  const Piece qkv = piece_of(next, "layers.0.linear.qkv"), z = piece_of(next, "layers.0.linear.z");
  EXPECT_EQ(qkv.rows[0], 0);
  EXPECT_EQ(qkv.rows[64], 256);   // q of the second head
  EXPECT_EQ(qkv.rows[128], 64);   // k of the first
  EXPECT_EQ(qkv.rows[256], 128);  // v of the first two value heads
  EXPECT_EQ(z.rows[0], 192);
  EXPECT_EQ(piece_of(next, "layers.0.linear.beta").rows, (std::vector<int64_t>{0, 1, 4, 5}));
  EXPECT_EQ(piece_of(next, "layers.0.linear.decay").rows, (std::vector<int64_t>{2, 3, 6, 7}));
  // MiniMax: [q | k | v] of each head.
  const Piece heads = piece_of(spec_named("minimax-text-01-tiny"), "layers.0.linear.qkv");
  EXPECT_EQ(heads.rows[32], 96);   // q of the second head
  EXPECT_EQ(heads.rows[128], 32);  // k of the first
  EXPECT_EQ(heads.rows[256], 64);  // v of the first
  // Mamba-2: [z 128 | x 128 | B 64 | C 64 | dt 8] gives [C | B | x].
  const Piece mamba = piece_of(spec_named("nemotron-3-nano-30b-a3b-tiny"), "layers.0.linear.qkv");
  EXPECT_EQ(mamba.shape[0], 128 + 128 + 64 + 64 + 8);
  EXPECT_EQ(mamba.rows[0], 320);
  EXPECT_EQ(mamba.rows[64], 256);
  EXPECT_EQ(mamba.rows[128], 128);
  // Kimi's latent: 4 heads of [k 32 | v 32].
  const Piece latent =
      piece_of(spec_named("kimi-linear-48b-a3b-tiny"), "layers.3.attention.latent_v");
  EXPECT_EQ(latent.rows[0], 32);
  EXPECT_EQ(latent.rows[32], 96);
}

}  // namespace
}  // namespace hypic
