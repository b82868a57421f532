#include "models/spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"

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
  for (const Layer& layer : spec.layers) {
    EXPECT_TRUE(layer == kLinearLayer || layer == kAttentionLayer);
    text += layer.linear ? 'l' : 'a';
  }
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
  EXPECT_EQ(spec.ffn.inner, 3584);
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
  EXPECT_EQ(spec.attention.qk_norm, QkNorm::heads);
  EXPECT_EQ(spec.linear.family, Family::gated_delta_net);
  EXPECT_EQ(spec.linear.key_heads, 16);
  EXPECT_EQ(spec.linear.value_heads, 16);
  EXPECT_EQ(spec.linear.key_dim, 128);
  EXPECT_EQ(spec.linear.value_dim, 128);
  EXPECT_EQ(spec.linear.conv_width, 4);
  EXPECT_EQ(spec.linear.gate, Activation::silu);
  EXPECT_EQ(spec.linear.qk_norm, QkNorm::l2);
  EXPECT_EQ(spec.linear.scale, 1 / std::sqrt(128.0));
  EXPECT_EQ(spec.linear.conv_channels(), 6144);
  EXPECT_EQ(spec.linear_layers(), 6);
  EXPECT_EQ(spec.attention_layers(), 2);
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
  for (const char* key :
       {"rms_norm_eps", "max_position_embeddings", "attn_output_gate", "attention_bias",
        "hidden_act", "rope_parameters", "head_dim", "num_key_value_heads"})
    config.erase(key);
  expect_refused(config.dump(), "rope_theta is missing");
  config["rope_theta"] = 0;
  expect_refused(config.dump(), "rope_theta must exceed 1, is 0,");
  config["rope_theta"] = 1e7;
  const ModelSpec spec = spec_of(config);
  EXPECT_EQ(spec.norm_eps, 1e-6);
  EXPECT_EQ(spec.max_positions, 262144);
  EXPECT_TRUE(spec.attention.output_gate);
  EXPECT_EQ(spec.attention.rope_theta, 1e7);
  EXPECT_EQ(spec.attention.head_dim, 256);  // whatever hidden / heads is
  EXPECT_EQ(spec.attention.kv_heads, 8);
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

// Python writes an infinity bare, transformers' newer releases as an object.
TEST(SpecFromConfig, AcceptsInfinityHoweverItIsWritten) {
  const std::string config = json::parse(spec_named("granite-4.0-h-350m-tiny").config).dump();
  for (const char* limit : {"[0.5, Infinity]", R"([0.5, {"__float__": "Infinity"}])"}) {
    std::string text = config;
    text.insert(1, std::string("\"time_step_limit\": ") + limit +
                       R"(, "note": "Infinity, \"Infinity\" and", )");
    const ModelSpec spec = spec_from_config(text, "config.json");
    EXPECT_EQ(spec.linear.step_min, 0.5);
    EXPECT_EQ(spec.linear.step_max, INFINITY);
    EXPECT_EQ(spec.config, text);
  }
  // A string may end in a backslash.
  std::string text = config;
  text.insert(1, R"("folder": "C:\\", "note": "Infinity", )");
  EXPECT_NO_THROW(spec_from_config(text, "config.json"));
  text = config;
  text.insert(1, R"("rms_norm_eps": Infinity, "note": 1, )");
  EXPECT_THROW(spec_from_config(text, "config.json"), Error);
  for (const char* limit : {"[-Infinity, 1]", "[0, NaN]", "[0, Infinity1]"}) {
    text = config;
    text.insert(1, std::string("\"time_step_limit\": ") + limit + ", ");
    EXPECT_THROW(spec_from_config(text, "config.json"), Error) << limit;
  }
}

TEST(SpecFromConfig, RefusesWhatIsNoConfig) {
  for (const char* text : {"", "{", "nonsense", "\xff\xfe", "{} {}"})
    expect_refused(text, "not valid JSON");
  for (const char* text : {"[]", "7", "null"}) expect_refused(text, "not a JSON object");
  expect_refused("{}", "no model_type");
  expect_refused(R"({"model_type": 3})", "no model_type");
  expect_refused(R"({"model_type": "qwen3_5", "text_config": {}})", "no model_type");
  std::string types;
  for (const std::string& type : model_types()) types += (types.empty() ? "" : ", ") + type;
  expect_refused(R"({"model_type": "llama"})",
                 "model type \"llama\" is not supported; supported: " + types);
  expect_refused(std::string(1 << 20, '['), "nested deeper than");
}

TEST(SpecFromConfig, RefusesMissingIllTypedAndOutOfRangeSizes) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_key_value_heads", "head_dim",
                          "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                          "linear_value_head_dim", "linear_conv_kernel_dim"}) {
    if (key != std::string("num_key_value_heads") && key != std::string("head_dim")) {
      json config = text_config();
      config.erase(key);
      expect_refused(config.dump(), std::string("key ") + key + " is missing");
      expect_refused(key, nullptr, std::string("key ") + key + " is missing");
    }
    for (const json& value : {json("8"), json(8.5), json(true), json::array({8})})
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
  expect_refused("layer_types", "linear_attention", "layer_types must be a list");
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
    expect_refused("rope_parameters", {{"rope_theta", 1e7}, {"partial_rotary_factor", part}},
                   "partial_rotary_factor lie in (0, 1]");
  // Parameters by kind of layer, or in a place that releases read differently.
  expect_refused("rope_parameters", {{"full_attention", {{"rope_type", "yarn"}}}}, "are not supported");
  expect_refused("rope_scaling", {{"rope_theta", 77}}, "put them into rope_parameters");
  json config = text_config();
  config["head_dim"] = 20;
  expect_refused(config.dump(), "5 rotary dims are not even");
}

// Keys that would change what is computed, in any architecture; and what nothing has read.
TEST(SpecFromConfig, AccountsForEveryKey) {
  json config = text_config();
  config["sliding_window"] = 16;
  expect_refused(config.dump(), "sliding_window is not supported");
  config["use_sliding_window"] = false;
  EXPECT_NO_THROW(spec_of(config));
  config["quantization_config"] = {{"quant_method", "awq"}};
  expect_refused(config.dump(), "quantization_config is not supported");
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {32, 32}}};
  expect_refused(config.dump(), "quantization_config is not supported");
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_EQ(spec_of(config).unread, std::vector<std::string>());
  config["rms_norm_epsilon"] = 1e-5;  // a typing error
  EXPECT_EQ(spec_of(config).unread, std::vector<std::string>{"rms_norm_epsilon"});
}

// What a published file says of parts that its model does not have is read and changes nothing. transformers repeats
// kimi_linear's linear_attn_config under other names, which nothing here reads.
TEST(SpecFromConfig, KeysThatChangeNothingAreNotUnread) {
  const std::set<std::string> repeated = {"layer_types", "linear_conv_kernel_dim", "linear_head_dim",
                                          "linear_num_heads", "mlp_layer_types"};
  for (const auto& folder : std::filesystem::directory_iterator("models/testdata/transformers")) {
    const std::string path = folder.path() / "config.json";
    const ModelSpec spec = spec_from_config(read_file(path, 1 << 20), path);
    for (const std::string& key : spec.unread)
      EXPECT_TRUE(spec.model_type == "kimi_linear" && repeated.contains(key)) << path << ": " << key;
  }
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
  const std::pair<const char*, double> published[] = {
      {"qwen3.5-0.8b", 0.75e9},         {"qwen3.5-2b", 1.88e9},
      {"qwen3.5-4b", 4.20e9},           {"qwen3.5-9b", 8.95e9},
      {"qwen3.5-27b", 26.9e9},          {"qwen3.5-35b-a3b", 34.66e9},
      {"qwen3.5-122b-a10b", 122.1e9},   {"qwen3.5-397b-a17b", 396.3e9},
      {"ring-mini-linear-2.0", 16.4e9}, {"ring-flash-linear-2.0", 104.2e9}};
  for (const auto& [name, count] : published)
    EXPECT_NEAR(static_cast<double>(parameter_count(spec_named(name))) / count, 1, 0.004) << name;
  // By name only.
  const std::pair<const char*, double> named[] = {
      {"qwen3-next-80b-a3b", 80e9}, {"kimi-linear-48b-a3b", 48e9}, {"minimax-text-01", 456e9},
      {"granite-4.0-h-tiny", 7e9},  {"granite-4.0-h-350m", 350e6}, {"falcon-h1-1.5b", 1.5e9}};
  for (const auto& [name, count] : named)
    EXPECT_NEAR(static_cast<double>(parameter_count(spec_named(name))) / count, 1, 0.03) << name;
  // The named size and its published config are one spec.
  json config = text_config();
  config["num_hidden_layers"] = 24;
  config.erase("layer_types");
  EXPECT_EQ(parameter_count(spec_of(config)), parameter_count(spec_named("qwen3.5-0.8b")));
}

TEST(ModelNames, EachFullOneHasATinyTwin) {
  const std::vector<std::string> names = model_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  std::set<std::string> types;
  for (const std::string& name : names) {
    const ModelSpec spec = spec_named(name);
    EXPECT_EQ(spec.name, name);
    types.insert(spec.model_type);
    if (parameter_count(spec) < 10'000'000) continue;  // one of the tiny ones itself
    const ModelSpec tiny = spec_named(name + "-tiny");
    EXPECT_EQ(tiny.name, name + "-tiny");
    EXPECT_EQ(tiny.model_type, spec.model_type);
    EXPECT_LT(parameter_count(tiny), 10'000'000);
  }
  EXPECT_EQ(types.size(), 10u);
  for (const std::string& type : types)
    EXPECT_EQ(std::ranges::count(model_types(), type), 1) << type;
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
  EXPECT_THROW(spec_named("qwen3.5-tiny-tiny"), Error);
  EXPECT_THROW(spec_named(""), Error);
}

TEST(TensorSpecs, AreThoseOfTheModel) {
  const ModelSpec spec = spec_of(text_config());
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const TensorSpec& tensor : tensor_specs(spec))
    EXPECT_TRUE(shapes.emplace(tensor.name, tensor.shape).second);
  EXPECT_EQ(shapes.size(),
            2u + 6 * 14 + 2 * 11);  // a linear layer has 14 tensors, an attention layer 11
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes["embed"], (Shape{248320, 1024}));
  EXPECT_EQ(shapes["norm"], (Shape{1024}));
  EXPECT_EQ(shapes["layers.0.linear.qkv"], (Shape{6144, 1024}));
  EXPECT_EQ(shapes["layers.0.linear.conv"], (Shape{6144, 4}));
  EXPECT_EQ(shapes["layers.0.linear.A_log"], (Shape{16}));
  EXPECT_EQ(shapes["layers.0.linear.norm"], (Shape{128}));
  EXPECT_EQ(shapes["layers.0.linear.out"], (Shape{1024, 2048}));
  EXPECT_EQ(shapes["layers.3.attention.q"], (Shape{4096, 1024}));
  EXPECT_EQ(shapes["layers.3.attention.k"], (Shape{512, 1024}));
  EXPECT_EQ(shapes["layers.3.attention.o"], (Shape{1024, 2048}));
  EXPECT_EQ(shapes["layers.3.attention.q_norm"], (Shape{256}));
  EXPECT_EQ(shapes["layers.7.ffn.down"], (Shape{1024, 3584}));
  EXPECT_FALSE(shapes.count("lm_head"));
  ModelSpec untied = spec;
  untied.tied = false;
  EXPECT_EQ(tensor_specs(untied).back().name, "lm_head");
  EXPECT_EQ(parameter_count(untied) - parameter_count(spec), int64_t{248320} * 1024);
}

}  // namespace
}  // namespace hypic
