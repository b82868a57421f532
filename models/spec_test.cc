#include "models/spec.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

namespace hypic {
namespace {

using nlohmann::json;

// The language part of a published config.json, Qwen3.5-0.8B with the sizes of models.md.
json text_config() {
  return json::parse(R"({
    "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 1024, "intermediate_size": 3584,
    "num_hidden_layers": 8, "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "max_position_embeddings": 262144,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": false,
    "attention_dropout": 0.0, "attn_output_gate": true, "full_attention_interval": 4, "hidden_act": "silu",
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention",
                    "linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 16, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1, "use_cache": true,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                        "mrope_interleaved": true, "mrope_section": [11, 11, 10]}})");
}

json published_config() {
  return {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"model_type", "qwen3_5"},
          {"image_token_id", 248056},
          {"tie_word_embeddings", true},
          {"text_config", text_config()},
          {"vision_config", {{"model_type", "qwen3_5"}, {"depth", 12}, {"hidden_size", 768}}}};
}

ModelSpec spec_of(const json& config) { return spec_from_config(config.dump(), "config.json"); }

std::string kinds(const ModelSpec& spec) {
  std::string text;
  for (const LayerKind kind : spec.layers) text += kind == LayerKind::linear ? 'l' : 'a';
  return text;
}

void expect_refused(const std::string& config, const std::string& what) {
  try {
    spec_from_config(config, "dir/config.json");
    ADD_FAILURE() << "accepted; expected: " << what;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("dir/config.json:")) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message << "\nexpected: " << what;
    EXPECT_LT(message.size(), 400u);
  }
}

void expect_refused(const char* key, const json& value, const std::string& what) {
  json config = text_config();
  config[key] = value;
  expect_refused(config.dump(), what);
}

TEST(SpecFromConfig, ReadsAPublishedConfig) {
  const ModelSpec spec = spec_of(published_config());
  EXPECT_EQ(spec.model_type, "qwen3_5_text");
  EXPECT_EQ(spec.vocabulary, 248320);
  EXPECT_EQ(spec.hidden, 1024);
  EXPECT_EQ(spec.ffn, 3584);
  EXPECT_EQ(spec.norm_eps, 1e-6);
  EXPECT_TRUE(spec.norm_plus_one);
  EXPECT_TRUE(spec.tied);
  EXPECT_EQ(spec.max_positions, 262144);
  EXPECT_EQ(kinds(spec), "lllallla");
  EXPECT_EQ(spec.attention.q_heads, 8);
  EXPECT_EQ(spec.attention.kv_heads, 2);
  EXPECT_EQ(spec.attention.head_dim, 256);
  EXPECT_EQ(spec.attention.rotary_dim, 64);
  EXPECT_EQ(spec.attention.rope_theta, 1e7);
  EXPECT_TRUE(spec.attention.output_gate);
  EXPECT_EQ(spec.linear.family, Family::gated_delta_net);
  EXPECT_EQ(spec.linear.key_heads, 16);
  EXPECT_EQ(spec.linear.value_heads, 16);
  EXPECT_EQ(spec.linear.key_dim, 128);
  EXPECT_EQ(spec.linear.value_dim, 128);
  EXPECT_EQ(spec.linear.conv_width, 4);
  EXPECT_EQ(spec.linear.gate, Activation::silu);
  EXPECT_EQ(spec.linear.conv_channels(), 6144);
  // The same without the nesting.
  EXPECT_EQ(parameter_count(spec_of(text_config())), parameter_count(spec));
}

TEST(SpecFromConfig, LayersByTypeLegacyNameOrInterval) {
  json config = text_config();
  config["layer_types"] = {"mamba",     "attention", "mamba", "mamba",
                           "attention", "mamba",     "mamba", "attention"};
  EXPECT_EQ(kinds(spec_of(config)), "lallalla");
  config.erase("layer_types");
  EXPECT_EQ(kinds(spec_of(config)), "lllallla");
  config["full_attention_interval"] = 3;
  EXPECT_EQ(kinds(spec_of(config)), "llallall");
  config["full_attention_interval"] = 1;
  EXPECT_EQ(kinds(spec_of(config)), "aaaaaaaa");
  config.erase("full_attention_interval");
  EXPECT_EQ(kinds(spec_of(config)), "lllallla");
  config["layer_types"] = nullptr;
  EXPECT_EQ(kinds(spec_of(config)), "lllallla");
}

TEST(SpecFromConfig, TiesByTheTextPartThenByTheTop) {
  json config = published_config();
  config["tie_word_embeddings"] = false;
  EXPECT_TRUE(spec_of(config).tied);
  config["text_config"].erase("tie_word_embeddings");
  EXPECT_FALSE(spec_of(config).tied);
  config["tie_word_embeddings"] = true;
  EXPECT_TRUE(spec_of(config).tied);
  config.erase("tie_word_embeddings");
  EXPECT_FALSE(spec_of(config).tied);
}

TEST(SpecFromConfig, OptionalKeys) {
  json config = text_config();
  for (const char* key : {"rms_norm_eps", "max_position_embeddings", "attn_output_gate",
                          "attention_bias", "hidden_act", "rope_parameters"})
    config.erase(key);
  const ModelSpec spec = spec_of(config);
  EXPECT_EQ(spec.norm_eps, 1e-6);
  EXPECT_EQ(spec.max_positions, 262144);
  EXPECT_TRUE(spec.attention.output_gate);
  EXPECT_EQ(spec.attention.rope_theta, 1e7);
  EXPECT_EQ(spec.attention.rotary_dim, 64);
  // Older files have the rotation at the top.
  config["rope_theta"] = 5e5;
  config["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(spec_of(config).attention.rope_theta, 5e5);
  EXPECT_EQ(spec_of(config).attention.rotary_dim, 128);
  config["output_gate_type"] = "sigmoid";
  EXPECT_EQ(spec_of(config).linear.gate, Activation::sigmoid);
  config["output_gate_type"] = "swish";
  EXPECT_EQ(spec_of(config).linear.gate, Activation::silu);
  config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {11, 11, 10}}};
  EXPECT_NO_THROW(spec_of(config));
}

TEST(SpecFromConfig, RefusesWhatIsNoConfig) {
  for (const char* text : {"", "{", "nonsense", "\xff\xfe", "{} {}"})
    expect_refused(text, "not valid JSON");
  for (const char* text : {"[]", "7", "null"}) expect_refused(text, "not a JSON object");
  expect_refused("{}", "no model_type");
  expect_refused(R"({"model_type": 3})", "no model_type");
  expect_refused(R"({"model_type": "qwen3_5", "text_config": {}})", "no model_type");
  expect_refused(R"({"model_type": "llama"})",
                 "model type \"llama\" is not supported; supported: qwen3_5_text");
  expect_refused(std::string(1 << 20, '['), "nested deeper than");
}

TEST(SpecFromConfig, RefusesMissingIllTypedAndOutOfRangeSizes) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_key_value_heads", "head_dim",
                          "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                          "linear_value_head_dim", "linear_conv_kernel_dim"}) {
    json config = text_config();
    config.erase(key);
    expect_refused(config.dump(), std::string("key ") + key + " is missing");
    for (const json& value : {json("8"), json(8.5), json(nullptr), json(true), json::array({8})})
      expect_refused(key, value, std::string(key) + " must be an integer");
    for (const json& value :
         {json(0), json(-1), json(1 << 30), json(uint64_t{1} << 63), json(~uint64_t{0})})
      expect_refused(key, value, std::string(key) + " = ");
  }
}

TEST(SpecFromConfig, RefusesIllTypedOptions) {
  for (const char* key : {"tie_word_embeddings", "attn_output_gate", "attention_bias"})
    expect_refused(key, 1, "must be true or false");
  expect_refused("rms_norm_eps", "1e-6", "must be a number");
  for (const char* key : {"hidden_act", "output_gate_type"})
    expect_refused(key, 1, "must be a string");
  for (const double eps : {0.0, -1e-6, 1.0}) expect_refused("rms_norm_eps", eps, "rms_norm_eps = ");
  expect_refused("rope_parameters", {{"rope_theta", "1e7"}}, "rope_theta must be a number");
  expect_refused("max_position_embeddings", 0, "max_position_embeddings = 0");
  json config = text_config();
  config.erase("layer_types");
  config["full_attention_interval"] = 0;
  expect_refused(config.dump(), "full_attention_interval = 0");
}

TEST(SpecFromConfig, RefusesWhatTheForwardDoesNotDo) {
  expect_refused("attention_bias", true, "attention_bias is not supported");
  expect_refused("hidden_act", "gelu", "hidden_act \"gelu\"");
  expect_refused("output_gate_type", "tanh", "output_gate_type \"tanh\"");
  expect_refused("layer_types", json::array({"linear_attention"}),
                 "must list num_hidden_layers = 8 layers");
  expect_refused("layer_types", "linear_attention", "must list num_hidden_layers");
  json types = text_config()["layer_types"];
  types[2] = "sliding_attention";
  expect_refused("layer_types", types, "layer type \"sliding_attention\" is not supported");
  types[2] = 7;
  expect_refused("layer_types", types, "layer type \"7\" is not supported");
  expect_refused("num_key_value_heads", 3,
                 "num_attention_heads = 8 is no multiple of num_key_value_heads = 3");
  expect_refused("linear_num_value_heads", 24,
                 "linear_num_value_heads = 24 is no multiple of linear_num_key_heads = 16");
}

// Frequencies that depend on the length, in each place where a config can say so.
TEST(SpecFromConfig, RefusesLengthDependentRoPE) {
  for (const char* type : {"yarn", "dynamic", "longrope", "linear", "llama3"})
    for (const char* place : {"rope_parameters", "rope_scaling"})
      for (const char* key : {"rope_type", "type"})
        expect_refused(place, {{key, type}, {"factor", 4.0}},
                       std::string("RoPE type \"") + type + "\" is refused");
  expect_refused("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1}},
                 "rope_theta must exceed 1");
  for (const double part : {0.0, -0.25, 1.5})
    expect_refused("rope_parameters", {{"partial_rotary_factor", part}},
                   "partial_rotary_factor lie in (0, 1]");
  json config = text_config();
  config["head_dim"] = 20;
  expect_refused(config.dump(), "5 rotary dims are not even");
}

// A huge value is not repeated in the message, nor does printing it exhaust the stack.
TEST(SpecFromConfig, RefusesDeepValues) {
  const int depth = 1 << 20;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  for (const char* key : {"hidden_size", "rms_norm_eps", "tie_word_embeddings", "hidden_act"}) {
    json without = text_config();
    without.erase(key);
    std::string text = without.dump();
    text.insert(1, std::string("\"") + key + "\":" + deep + ",");
    expect_refused(text, "nested deeper than");
  }
}

TEST(ModelNames, OfThePublishedSizesCountAsAdvertised) {
  const std::pair<const char*, double> published[] = {{"qwen3.5-0.8b", 0.75e9},
                                                      {"qwen3.5-2b", 1.88e9},
                                                      {"qwen3.5-4b", 4.20e9},
                                                      {"qwen3.5-9b", 8.95e9},
                                                      {"qwen3.5-27b", 26.9e9}};
  for (const auto& [name, count] : published)
    EXPECT_NEAR(static_cast<double>(parameter_count(spec_named(name))) / count, 1, 0.01) << name;
  const std::vector<std::string> names = model_names();
  EXPECT_EQ(names.size(), 6u);
  for (const std::string& name : names) EXPECT_EQ(spec_named(name).name, name);
  // The named size and its published config are one spec.
  json config = text_config();
  config["num_hidden_layers"] = 24;
  config.erase("layer_types");
  EXPECT_EQ(parameter_count(spec_of(config)), parameter_count(spec_named("qwen3.5-0.8b")));
}

TEST(ModelNames, AnUnknownOneListsTheKnown) {
  try {
    spec_named("qwen4");
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(
        std::string(error.what()).starts_with("unknown model \"qwen4\"; known: qwen3.5-tiny, "))
        << error.what();
    for (const std::string& name : model_names())
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos);
  }
}

TEST(TensorSpecs, AreThoseOfTheCheckpoint) {
  const ModelSpec spec = spec_of(text_config());
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorSpec& tensor : tensor_specs(spec))
    EXPECT_TRUE(shapes.emplace(tensor.name, tensor.shape).second);
  EXPECT_EQ(shapes.size(),
            2u + 6 * 14 + 2 * 11);  // a linear layer has 14 tensors, an attention layer 11
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes["embed_tokens.weight"], (Shape{248320, 1024}));
  EXPECT_EQ(shapes["norm.weight"], (Shape{1024}));
  EXPECT_EQ(shapes["layers.0.linear_attn.in_proj_qkv.weight"], (Shape{6144, 1024}));
  EXPECT_EQ(shapes["layers.0.linear_attn.conv1d.weight"], (Shape{6144, 1, 4}));
  EXPECT_EQ(shapes["layers.0.linear_attn.A_log"], (Shape{16}));
  EXPECT_EQ(shapes["layers.0.linear_attn.norm.weight"], (Shape{128}));
  EXPECT_EQ(shapes["layers.0.linear_attn.out_proj.weight"], (Shape{1024, 2048}));
  EXPECT_EQ(shapes["layers.3.self_attn.q_proj.weight"], (Shape{4096, 1024}));
  EXPECT_EQ(shapes["layers.3.self_attn.k_proj.weight"], (Shape{512, 1024}));
  EXPECT_EQ(shapes["layers.3.self_attn.o_proj.weight"], (Shape{1024, 2048}));
  EXPECT_EQ(shapes["layers.3.self_attn.q_norm.weight"], (Shape{256}));
  EXPECT_EQ(shapes["layers.7.mlp.down_proj.weight"], (Shape{1024, 3584}));
  EXPECT_FALSE(shapes.count("lm_head.weight"));
  ModelSpec untied = spec;
  untied.tied = false;
  EXPECT_EQ(tensor_specs(untied).back().name, "lm_head.weight");
  EXPECT_EQ(parameter_count(untied) - parameter_count(spec), int64_t{248320} * 1024);
}

}  // namespace
}  // namespace hypic
