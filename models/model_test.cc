#include "models/model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "core/safetensors.h"
#include "core/temporary_folder.h"
#include "models/forward.h"
#include "reference/cpu_backend.h"
#include "reference/ops/testing.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Qwen3.5 with one layer of each kind.
json small_config() {
  return json::parse(R"({
    "model_type": "qwen3_5_text", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
    "tie_word_embeddings": true, "output_gate_type": "swish",
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4,
    "linear_value_head_dim": 6, "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}})");
}

ModelSpec spec_of(const json& config) { return spec_from_config(config.dump(), "small"); }
ModelSpec small_spec() { return spec_of(small_config()); }

std::vector<double> logits_of(const Model& model) {
  Pools pools(model.backend(), model.spec(),
              {.state_slots = 1, .operator_slots = 0, .pages = 1, .page_size = 16});
  ChainTable table = reference::one_chain({.state = 0}, {reference::step(9)});
  table.pages = {0};
  std::iota(table.tokens.begin(), table.tokens.end(), 3);
  table.logit_rows = {0, 8};
  const Buffer logits(model.backend(), model.backend().compute_dtype(),
                      {2, model.spec().vocabulary});
  forward(model, pools, table, logits);
  return reference::elements(logits);
}

using Tensors = std::map<std::string, std::pair<Tensor, std::vector<char>>>;

class ModelFolder : public testing::Test {
 protected:
  ModelFolder() { write_model(Model::random(*backend, small_spec(), 3), folder, DType::f32); }

  // Rewrites model.safetensors after a change of its tensors.
  void change(const std::function<void(Tensors&)>& edit) {
    Tensors tensors;
    {
      const Safetensors file(weights);
      for (const auto& [name, tensor] : file.tensors()) {
        const char* bytes = static_cast<const char*>(tensor.data);
        tensors[name] = {tensor, {bytes, bytes + tensor.bytes()}};
      }
    }
    edit(tensors);
    std::vector<std::pair<std::string, Tensor>> list;
    for (auto& [name, held] : tensors) {
      list.emplace_back(name, held.first);
      list.back().second.data = held.second.data();
    }
    write_safetensors(weights, list);
  }
  void change_config(const std::function<void(json&)>& edit) {
    json read = json::parse(std::ifstream(config));
    edit(read);
    std::ofstream(config) << read;
  }
  static void rename(Tensors& tensors, const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    node.key() = to;
    tensors.insert(std::move(node));
  }
  void expect_refused(const std::string& name, const std::string& what) const {
    try {
      Model::open(*backend, name);
      ADD_FAILURE() << "accepted; expected: " << what;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(what), std::string::npos) << message << "\nexpected: " << what;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
  void expect_refused(const std::string& what) const { expect_refused(folder, what); }

  const std::unique_ptr<Backend> backend = reference::make_cpu_backend();
  const TemporaryFolder made_;
  const std::string& folder = made_.path();
  const std::string config = folder + "/config.json", weights = folder + "/model.safetensors";
};

TEST_F(ModelFolder, RoundTripsInBothDtypesOnBothBackends) {
  for (const bool wide : {false, true})
    for (const bool tied : {false, true})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const auto cpu = wide ? reference::make_cpu64_backend() : reference::make_cpu_backend();
        json changed = small_config();
        changed["tie_word_embeddings"] = tied;
        changed["output_gate_type"] = tied ? "sigmoid" : "swish";
        const Model made = Model::random(*cpu, spec_of(changed), 5);
        write_model(made, folder, dtype);
        const Model read = Model::open(*cpu, folder);
        EXPECT_EQ(logits_of(read), logits_of(made)) << wide << tied << name_of(dtype);
        EXPECT_EQ(read.spec().name, fs::path(folder).filename());
      }
  const Safetensors file(weights);  // the last one, in bfloat16
  EXPECT_EQ(file.tensors().at("model.embed_tokens.weight").dtype, DType::bf16);
  EXPECT_EQ(file.tensors().at("model.layers.0.linear_attn.A_log").dtype, DType::f32);
  EXPECT_THROW(write_model(Model::random(*backend, small_spec(), 5), folder, DType::f16), Error);
}

TEST_F(ModelFolder, AcceptsThePrefixesOfTheHub) {
  const std::vector<double> logits = logits_of(Model::open(*backend, folder));
  change([](Tensors& tensors) {
    Tensors renamed;
    for (auto& [name, held] : tensors)
      renamed["model.language_model." + name.substr(strlen("model."))] = std::move(held);
    tensors = std::move(renamed);
    // What text models do not use.
    for (const char* name :
         {"model.visual.blocks.0.weight", "visual.patch.weight", "mtp.layers.0.weight"})
      tensors[name] = tensors.begin()->second;
  });
  EXPECT_EQ(logits_of(Model::open(*backend, folder)), logits);
  change([](Tensors& tensors) {
    Tensors renamed;
    for (auto& [name, held] : tensors)
      if (name.starts_with("model.language_model."))
        renamed[name.substr(strlen("model.language_model."))] = std::move(held);
    tensors = std::move(renamed);
  });
  EXPECT_EQ(logits_of(Model::open(*backend, folder)), logits);
}

TEST_F(ModelFolder, AcceptsAHeadBesideTiedEmbeddings) {
  const std::vector<double> logits = logits_of(Model::open(*backend, folder));
  change(
      [](Tensors& tensors) { tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]; });
  EXPECT_EQ(logits_of(Model::open(*backend, folder)), logits);
}

TEST_F(ModelFolder, ReadsFloat16) {
  change([](Tensors& tensors) {
    auto& [tensor, bytes] = tensors["model.norm.weight"];
    tensor.dtype = DType::f16;
    bytes.resize(tensor.bytes());
    const uint16_t half[] = {0x3800, 0xbc00};  // 0.5, −1
    for (int i = 0; i < 16; ++i) std::memcpy(&bytes[i * 2], &half[i % 2], 2);
  });
  const Model model = Model::open(*backend, folder);
  const Tensor& weight = model.weight("norm");
  EXPECT_EQ(weight.as<float>()[0], 0.5f);
  EXPECT_EQ(weight.as<float>()[15], -1.0f);
}

TEST_F(ModelFolder, RefusesNames) {
  expect_refused("random:nothing", "unknown model \"nothing\"; known: qwen3.5-tiny");
  expect_refused("random:", "unknown model \"\"");
  for (const char* seed : {":", ":x", ":-1", ":1.5", ":1:2", ": 1", ":18446744073709551616"})
    expect_refused(std::string("random:qwen3.5-tiny") + seed,
                   "the seed after the second colon must be a non-negative integer");
  expect_refused("", "no such folder; a model is random:NAME[:SEED] or a folder");
  expect_refused(folder + "/absent", "no such folder");
  expect_refused(weights, "no such folder");
  expect_refused(std::string(5000, 'x'), "no such folder");  // longer than a path may be
}

TEST_F(ModelFolder, RefusesBrokenConfigs) {
  std::ofstream(config) << "{ \"model_type\": ";
  expect_refused(config + ":1: not valid JSON");
  std::ofstream(config) << R"({"model_type": "llama"})";
  expect_refused(config + ": model type \"llama\"");
  fs::resize_file(config, (16 << 20) + 1);
  expect_refused(config + ": too large");
  fs::remove(config);
  expect_refused(config + ": no such file");
  fs::create_directory(config);
  expect_refused(config + ": not a regular file");
}

TEST_F(ModelFolder, RefusesTensorsThatDoNotFitTheConfig) {
  const std::string name = "layers.0.mlp.up_proj.weight";
  change([&](Tensors& t) { t.erase("model." + name); });
  expect_refused(folder + ": tensor model." + name + " is missing; config.json asks for it");
  change([&](Tensors& t) { t["model." + name] = t["model.layers.0.mlp.gate_proj.weight"]; });
  EXPECT_NO_THROW(Model::open(*backend, folder));

  change([&](Tensors& t) { t["model.layers.1.mlp.side_proj.weight"] = t["model." + name]; });
  expect_refused(weights + ": tensor model.layers.1.mlp.side_proj.weight is not part of this model");
  change([&](Tensors& t) {
    rename(t, "model.layers.1.mlp.side_proj.weight", "model.language_model." + name);
  });
  expect_refused(weights + ": tensor model." + name + " appears a second time, under another prefix");
  change([&](Tensors& t) { t.erase("model.language_model." + name); });

  const auto reshape = [&](std::initializer_list<int64_t> shape) {
    change([&](Tensors& t) {
      t["model." + name].first = Tensor(static_cast<float*>(nullptr), shape);
    });
  };
  reshape({16, 24});
  expect_refused("tensor model." + name + " has shape [16, 24], config.json asks for [24, 16]");
  reshape({24 * 16});
  expect_refused("has shape [384]");
  reshape({24, 16});
  change([&](Tensors& t) { t["model." + name].first.dtype = DType::i32; });
  expect_refused("is int32; float32, float16, bfloat16 and float8_e4m3 are supported");
  change([&](Tensors& t) { t["model." + name].first.dtype = DType::f32; });

  change_config([](json& config) { config["intermediate_size"] = 25; });
  expect_refused("config.json asks for [25, 16]");
  change_config([](json& config) {
    config["intermediate_size"] = 24;
    config["tie_word_embeddings"] = false;
  });
  expect_refused("tensor lm_head.weight is missing");
}

TEST_F(ModelFolder, RefusesDamagedFiles) {
  const auto bytes = fs::file_size(weights);
  for (const auto n :
       {bytes - 1, bytes / 2, uintmax_t{100}, uintmax_t{8}, uintmax_t{3}, uintmax_t{0}}) {
    fs::resize_file(weights, n);
    expect_refused(weights + ": ");
  }
  fs::remove(weights);
  expect_refused(folder + ": holds neither model.safetensors nor");
}

TEST_F(ModelFolder, RefusesWhatDoesNotFitTheMemory) {
  expect_refused("random:qwen3.5-397b-a17b", "the small twin of a named model is NAME-tiny");
  expect_refused("random:qwen3.5-397b-a17b",
                 "qwen3.5-397b-a17b: out of memory: the weights take 1476");
  EXPECT_NO_THROW(spec_of(small_config()));
  EXPECT_EQ(hypic::spec_of("random:qwen3.5-397b-a17b").name, "qwen3.5-397b-a17b");  // needs none
}

// What cache keys carry.
TEST_F(ModelFolder, IdentitiesTellModelsApart) {
  const auto random = [&](const char* name) { return Model::open(*backend, name).identity(); };
  EXPECT_EQ(random("random:qwen3.5-tiny"), random("random:qwen3.5-tiny:0"));
  EXPECT_EQ(random("random:qwen3.5-tiny:7"), "random:qwen3.5-tiny:7");
  const std::string before = Model::open(*backend, folder).identity();
  EXPECT_EQ(Model::open(*backend, folder + "/").identity(), before);
  change_config([](json& config) { config["rms_norm_eps"] = 1e-5; });
  EXPECT_NE(Model::open(*backend, folder).identity(), before);
}

TEST_F(ModelFolder, WeightsAreInTheDtypeOfTheBackend) {
  const auto wide = reference::make_cpu64_backend();
  const Model a = Model::open(*backend, folder), b = Model::open(*wide, folder);
  for (const TensorSpec& tensor : tensor_specs(small_spec())) {
    EXPECT_EQ(a.weight(tensor.name).dtype, DType::f32);
    EXPECT_EQ(b.weight(tensor.name).dtype, DType::f64);
    EXPECT_EQ(reference::elements(a.weight(tensor.name)),
              reference::elements(b.weight(tensor.name)))
        << tensor.name;
  }
  EXPECT_EQ(a.lm_head().data, a.weight("embed").data);
  EXPECT_THROW(a.weight("lm_head"), InternalError);
}

// Every architecture's stacks: parts are weights by their own names, and what is no part adds nothing.
TEST(Stacks, HoldTheirPartsAsRowsOfOneMatrix) {
  const auto backend = reference::make_cpu_backend();
  std::set<std::string> names;
  for (const std::string& name : model_names()) {
    if (parameter_count(spec_named(name)) > 10'000'000) continue;
    const Model model = Model::open(*backend, "random:" + name);
    for (const StackSpec& spec : stack_specs(model.spec())) {
      names.insert(spec.name.substr(spec.name.find('.', spec.name.find('.') + 1) + 1));
      const Stack& stack = model.stack(spec.name);
      ASSERT_EQ(stack.parts.size(), spec.parts.size());
      EXPECT_EQ(stack.weights[0] % 8, 0);
      int64_t end = 0;
      const auto expect_zero = [&](int64_t begin, int64_t stop) {
        for (const double x : reference::elements(stack.weights.rows(begin, stop))) EXPECT_EQ(x, 0) << spec.name;
      };
      for (size_t i = 0; i < spec.parts.size(); ++i) {
        const auto& part = stack.parts[i];
        EXPECT_EQ(part.begin % 8, 0);
        expect_zero(end, part.begin);
        const Tensor &weight = model.weight(spec.parts[i]), rows = stack.weights.rows(part.begin, part.end);
        EXPECT_EQ(weight.data, rows.data);
        EXPECT_EQ(weight.shape, rows.shape);
        end = part.end;
      }
      expect_zero(end, stack.weights[0]);
    }
  }
  EXPECT_EQ(names, (std::set<std::string>{"attention.in", "ffn.in", "linear.in", "moe.shared.in"}));
  const Model model = Model::open(*backend, "random:qwen3.5-tiny");
  EXPECT_THROW(model.stack("layers.0.attention.in"), InternalError);  // a linear layer
}

}  // namespace
}  // namespace hypic
