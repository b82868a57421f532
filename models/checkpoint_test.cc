// Checkpoints of every architecture: written, read, in shards, in each dtype; and what is wrong
// with a folder.
#include "core/temporary_folder.h"
#include "models/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "models/model.h"
#include "reference/cpu_backend.h"
#include "reference/ops/testing.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Bytes = std::vector<char>;
using Tensors = std::map<std::string, std::pair<Tensor, Bytes>>;

// The tiny models with a small vocabulary, and forms that the tiny ones leave out.
std::vector<json> every_config() {
  std::vector<json> all;
  for (const std::string& name : model_names()) {
    const ModelSpec spec = spec_named(name);
    if (spec.hidden > 128) continue;
    json config = json::parse(spec.config);
    config["vocab_size"] = 40;
    config["hidden_size"] = 32;
    all.push_back(config);
  }
  EXPECT_EQ(all.size(), 10u);
  const auto also = [&](const char* type, const json& changes) {
    for (size_t i = 0; i < 10; ++i)
      if (all[i]["model_type"] == type) all.emplace_back(all[i]).update(changes);
  };
  also("granitemoehybrid",
       {{"num_local_experts", 6}, {"num_experts_per_tok", 2}, {"intermediate_size", 24}});
  also("falcon_h1", {{"mamba_rms_norm", true}, {"mamba_n_groups", 2}});
  EXPECT_EQ(all.size(), 12u);
  return all;
}

json config_of(const char* model_type) {
  for (const json& config : every_config())
    if (config["model_type"] == model_type) return config;
  throw Error(std::string("no model type ") + model_type);
}

ModelSpec spec_of(const json& config) { return spec_from_config(config.dump(), "test"); }

class Checkpoints : public testing::Test {
 protected:
  Model write(const json& config, DType dtype = DType::f32) {
    Model model = Model::random(*backend, spec_of(config), 11);
    fs::remove_all(folder);
    write_model(model, folder, dtype);
    return model;
  }
  Tensors read_file(const std::string& path) const {
    Tensors tensors;
    const Safetensors file(path);
    for (const auto& [name, tensor] : file.tensors()) {
      const char* bytes = static_cast<const char*>(tensor.data);
      tensors[name] = {tensor, {bytes, bytes + tensor.bytes()}};
    }
    return tensors;
  }
  void write_file(const std::string& path, Tensors& tensors) const {
    std::vector<std::pair<std::string, Tensor>> list;
    for (auto& [name, held] : tensors) {
      list.emplace_back(name, held.first);
      list.back().second.data = held.second.data();
    }
    write_safetensors(path, list);
  }
  void change(const std::function<void(Tensors&)>& edit) const {
    Tensors tensors = read_file(weights);
    edit(tensors);
    write_file(weights, tensors);
  }
  // Shards by turns, and the index that lists them.
  void shard(int count) const {
    const Tensors tensors = read_file(weights);
    std::vector<Tensors> shards(count);
    json map;
    int i = 0;
    for (const auto& [name, held] : tensors) {
      map[name] = str("model-", i % count, ".safetensors");
      shards[i++ % count][name] = held;
    }
    for (int s = 0; s < count; ++s)
      write_file(str(folder, "/model-", s, ".safetensors"), shards[s]);
    write_index({{"metadata", {{"total_size", 1}}}, {"weight_map", map}});
    fs::remove(weights);
  }
  void write_index(const json& content) const { std::ofstream(index) << content; }
  json read_index() const { return json::parse(std::ifstream(index)); }

  void expect_same(const Model& read, const Model& made, const std::string& what) const {
    for (const TensorSpec& tensor : tensor_specs(made.spec())) {
      const Tensor &a = read.weight(tensor.name), &b = made.weight(tensor.name);
      ASSERT_EQ(a.shape_string(), b.shape_string()) << what << ": " << tensor.name;
      ASSERT_TRUE(a.dtype == b.dtype && std::memcmp(a.data, b.data, a.bytes()) == 0)
          << what << ": " << tensor.name;
    }
    EXPECT_EQ(read.spec().slopes, made.spec().slopes);
  }
  // One line that has all of these.
  void expect_refused(const std::vector<std::string>& parts) const {
    try {
      Model::open(*backend, folder);
      ADD_FAILURE() << "accepted; expected: " << parts.back();
    } catch (const Error& error) {
      const std::string message = error.what();
      for (const std::string& part : parts)
        EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected: " << part;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      EXPECT_LT(message.size(), 500u);
    }
  }

  const std::unique_ptr<Backend> backend = reference::make_cpu_backend();
  const TemporaryFolder made_;
  const std::string& folder = made_.path();
  const std::string config = folder + "/config.json", weights = folder + "/model.safetensors",
                    index = weights + ".index.json";
};

// Good checkpoints
// -----------------------------------------------------------------------------------------------

TEST_F(Checkpoints, OfEveryArchitectureRoundTrip) {
  for (const json& config : every_config())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Model made = write(config, dtype);
      const std::string what = str(config["model_type"], " in ", name_of(dtype));
      expect_same(Model::open(*backend, folder), made, what);
      // Each stored tensor has the shape and dtype that its architecture says, and there are no
      // others.
      const CheckpointNames names = checkpoint_names(made.spec());
      const Tensors stored = read_file(weights);
      std::map<std::string, bool> expected;  // by name: float32
      for (const TensorSpec& tensor : tensor_specs(made.spec()))
        for (const Piece& piece : tensor.sources.front()) {
          const std::string prefix =
              piece.name == "lm_head.weight" ? "" : std::string(names.prefixes.front());
          expected[prefix + piece.name] = dtype == DType::f32 || tensor.in_state_dtype();
        }
      ASSERT_EQ(stored.size(), expected.size()) << what;
      for (const auto& [name, wide] : expected) {
        ASSERT_TRUE(stored.count(name)) << what << ": " << name;
        EXPECT_EQ(stored.at(name).first.dtype, wide ? DType::f32 : DType::bf16)
            << what << ": " << name;
      }
    }
}

// The other layouts in which transformers or the hub store a tensor.
TEST_F(Checkpoints, OfEveryArchitectureReadFromOtherLayouts) {
  for (const json& config : every_config()) {
    const Model made = write(config);
    bool any = false;
    change([&](Tensors& tensors) {
      const std::string prefix(checkpoint_names(made.spec()).prefixes.front());
      for (const TensorSpec& tensor : tensor_specs(made.spec())) {
        if (tensor.sources.size() < 2) continue;
        any = true;
        Bytes all;
        for (const Piece& piece : tensor.sources[0]) {
          EXPECT_TRUE(piece.rows.empty());
          const auto node = tensors.extract(prefix + piece.name);
          if (!node.empty())
            all.insert(all.end(), node.mapped().second.begin(), node.mapped().second.end());
        }
        EXPECT_EQ(all.size(), tensor.size() * sizeof(float)) << tensor.name;
        size_t at = 0;
        for (const Piece& piece : tensor.sources[1]) {
          const Tensor view(nullptr, DType::f32, piece.shape);
          tensors[prefix + piece.name] = {view,
                                          Bytes(all.begin() + at, all.begin() + at + view.bytes())};
          at += view.bytes();
        }
      }
    });
    if (any) expect_same(Model::open(*backend, folder), made, config["model_type"]);
  }
}

TEST_F(Checkpoints, AreReadAlikeByBothBackends) {
  const Model made = write(config_of("kimi_linear"), DType::bf16);
  const auto wide = reference::make_cpu64_backend();
  const Model read = Model::open(*wide, folder);
  for (const TensorSpec& tensor : tensor_specs(made.spec()))
    EXPECT_EQ(reference::elements(read.weight(tensor.name)),
              reference::elements(made.weight(tensor.name)));
}

TEST_F(Checkpoints, MayBeSharded) {
  for (const char* type : {"qwen3_5_moe_text", "bailing_moe_linear"})
    for (const int count : {1, 3}) {
      const Model made = write(config_of(type));
      shard(count);
      expect_same(Model::open(*backend, folder), made, str(type, " in ", count, " shards"));
    }
  // Identities tell shards apart, and those of a folder stay.
  const std::string before = Model::open(*backend, folder).identity();
  EXPECT_EQ(Model::open(*backend, folder).identity(), before);
  fs::last_write_time(folder + "/model-1.safetensors",
                      fs::file_time_type::clock::now() + std::chrono::seconds(9));
  EXPECT_NE(Model::open(*backend, folder).identity(), before);
}

// Copies and shards of one are the same; one bit is another.
TEST_F(Checkpoints, AreKnownByWhatTheyHold) {
  const ModelSpec spec = write(config_of("qwen3_5_moe_text")).spec();
  const auto digest = [&](const std::string& from) { return Checkpoint(from, spec).digest(); };
  const Sha256::Digest whole = digest(folder);
  const std::string copy = folder + "-copy";
  fs::copy(folder, copy);
  EXPECT_EQ(digest(copy), whole);
  fs::remove_all(copy);
  shard(3);
  EXPECT_EQ(digest(folder), whole);
  Tensors first = read_file(folder + "/model-0.safetensors");
  first.begin()->second.second.back() ^= 1;
  write_file(folder + "/model-0.safetensors", first);
  EXPECT_NE(digest(folder), whole);
}

TEST_F(Checkpoints, IgnoreWhatTextModelsDoNotUse) {
  const std::map<std::string, std::vector<std::string>> ignored = {
      {"qwen3_5_text",
       {"model.visual.blocks.0.weight", "visual.patch.weight", "mtp.layers.0.weight",
        "model.layers.8.norm.weight"}},
      {"qwen3_5_moe_text",
       {"mtp.fc.weight", "model.visual.merger.bias", "model.language_model.layers.8.x"}},
      {"qwen3_next", {"mtp.fc.weight", "model.layers.4.mlp.gate.weight"}},
      {"bailing_moe_linear",
       {"model.layers.0.attention.slope", "model.layers.5.attention.dense.weight"}},
      {"minimax",
       {"model.layers.0.self_attn.slope_rate", "model.layers.0.self_attn.query_decay",
        "model.layers.0.self_attn.key_decay", "model.layers.0.self_attn.diagonal_decay"}},
      {"nemotron_h",
       {"mtp.layers.0.norm.weight", "backbone.layers.9.norm.weight", "backbone.layers.10.x"}},
      {"falcon_h1", {"model.layers.0.mamba.mup_vector"}}};
  for (const auto& [type, names] : ignored) {
    json config = config_of(type.c_str());
    config["num_nextn_predict_layers"] = 2;
    const Model made = write(config);
    change([&](Tensors& tensors) {
      for (const std::string& name : names)  // of any dtype and shape, even not finite
        tensors[name] = {Tensor(nullptr, DType::f32, {2}), Bytes(8, '\xff')};
    });
    EXPECT_NO_FATAL_FAILURE(expect_same(Model::open(*backend, folder), made, type));
  }
}

TEST_F(Checkpoints, OfQwenMayHaveEitherPrefix) {
  for (const char* type : {"qwen3_5_text", "qwen3_5_moe_text"}) {
    const Model made = write(config_of(type));
    change([](Tensors& tensors) {
      Tensors renamed;
      for (auto& [name, held] : tensors)
        renamed[name.starts_with("model.") ? "model.language_model." + name.substr(6) : name] =
            std::move(held);
      tensors = std::move(renamed);
    });
    expect_same(Model::open(*backend, folder), made, type);
  }
}

TEST_F(Checkpoints, OfTiedModelsMayHaveAHead) {
  const Model made = write(config_of("granitemoehybrid"));
  ASSERT_TRUE(made.spec().tied);
  EXPECT_FALSE(read_file(weights).count("lm_head.weight"));
  change([](Tensors& t) { t["lm_head.weight"] = t["model.embed_tokens.weight"]; });
  const Model read = Model::open(*backend, folder);
  expect_same(read, made, "with a head");
  EXPECT_EQ(read.lm_head().data, read.weight("embed").data);
  change([](Tensors& t) { t["lm_head.weight"].second[0] ^= 1; });  // which is no copy of it
  expect_refused({weights, "tensor lm_head.weight is not the embedding"});
}

// Without the key that announces them, further layers are a config.json of another model.
TEST_F(Checkpoints, OfMoreLayersAreRefused) {
  json config = config_of("falcon_h1");
  write(config);
  const int layers = config["num_hidden_layers"];
  config["num_hidden_layers"] = layers - 1;
  std::ofstream(folder + "/config.json") << config;
  expect_refused({weights, str("tensor model.layers.", layers - 1, "."), "is not part of this model, nor are "});
}

// Narrow dtypes
// -----------------------------------------------------------------------------------------------

TEST(Float8E4M3, AllValues) {
  for (int bits = 0; bits < 256; ++bits) {
    const int sign = bits >> 7, exponent = bits >> 3 & 15, mantissa = bits & 7;
    const float x = static_cast<float>(Float8E4M3{static_cast<uint8_t>(bits)});
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(x)) << bits;
      continue;
    }
    const double expected =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
    EXPECT_EQ(x, sign ? -expected : expected) << bits;
    EXPECT_EQ(std::signbit(x), sign == 1) << bits;
  }
  EXPECT_EQ(static_cast<float>(Float8E4M3{0x7e}), 448);
}

TEST_F(Checkpoints, ReadFloat16) {
  write(config_of("falcon_h1"));
  const std::string name = "model.layers.0.feed_forward.up_proj.weight";
  std::vector<float> expected;
  change([&](Tensors& tensors) {
    auto& [tensor, bytes] = tensors[name];
    tensor.dtype = DType::f16;
    bytes.resize(tensor.bytes());
    for (int64_t i = 0; i < tensor.size(); ++i) {  // ±(1 + m/1024)·2^e, subnormals at e = −15
      const int e = static_cast<int>(i % 31) - 15, m = static_cast<int>(i * 37 % 1024),
                sign = i % 3 == 0;
      const uint16_t half = static_cast<uint16_t>(sign << 15 | (e + 15) << 10 | m);
      std::memcpy(&bytes[2 * i], &half, 2);
      const double x = e == -15 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 10);
      expected.push_back(static_cast<float>(sign ? -x : x));
    }
  });
  const Model read = Model::open(*backend, folder);
  const Tensor& weight = read.weight("layers.0.ffn.up");
  EXPECT_EQ(std::vector<float>(weight.as<float>(), weight.as<float>() + weight.size()), expected);
}

// FP8 with a scale for each block of 128 × 128, over dims that are no multiples; scales multiply.
TEST_F(Checkpoints, ReadFloat8WithBlockScales) {
  json config = config_of("qwen3_5_moe_text");
  config.update({{"hidden_size", 136},
                 {"moe_intermediate_size", 130},
                 {"num_experts", 2},
                 {"num_experts_per_tok", 1},
                 {"num_hidden_layers", 1},
                 {"layer_types", {"linear_attention"}}});
  const Model made = write(config);
  const int64_t I = 130, H = 136;
  std::map<std::string, std::vector<float>> expected;
  change([&](Tensors& tensors) {
    const std::string mlp = "model.layers.0.mlp.experts.";
    tensors.erase(mlp + "gate_up_proj");
    tensors.erase(mlp + "down_proj");
    int seed = 0;
    for (const char* matrix :
         {"0.gate_proj", "0.up_proj", "0.down_proj", "1.gate_proj", "1.up_proj", "1.down_proj"}) {
      const bool down = std::string(matrix).ends_with("down_proj");
      const int64_t rows = down ? H : I, columns = down ? I : H;
      Bytes bytes(rows * columns);
      std::vector<float> scales, &values = expected[matrix];
      for (int i = 0; i < 4; ++i) scales.push_back(0.01f * static_cast<float>(++seed));
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          uint8_t bits = static_cast<uint8_t>((r * 31 + c * 7 + seed) & 0xff);
          if ((bits & 0x7f) == 0x7f) bits = 0x42;  // not NaN
          bytes[r * columns + c] = static_cast<char>(bits);
          const int exponent = bits >> 3 & 15, mantissa = bits & 7;
          const double x =
              exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
          values.push_back(static_cast<float>(bits & 0x80 ? -x : x) *
                           scales[r / 128 * 2 + c / 128]);
        }
      const std::string name = mlp + matrix;
      tensors[name + ".weight"] = {Tensor(nullptr, DType::f8_e4m3, {rows, columns}), bytes};
      const char* raw = reinterpret_cast<const char*>(scales.data());
      tensors[name + ".weight_scale_inv"] = {Tensor(nullptr, DType::f32, {2, 2}),
                                             Bytes(raw, raw + 16)};
    }
  });
  const auto check = [&] {
    const Model read = Model::open(*backend, folder);
    for (int64_t e = 0; e < 2; ++e) {
      const float *up = read.weight("layers.0.moe.up").as<float>() + e * 2 * I * H,
                  *down = read.weight("layers.0.moe.down").as<float>() + e * H * I;
      const auto same = [&](const char* matrix, const float* found, int64_t n) {
        EXPECT_EQ(std::vector<float>(found, found + n), expected[str(e, ".", matrix)])
            << e << matrix;
      };
      same("gate_proj", up, I * H);
      same("up_proj", up + I * H, I * H);
      same("down_proj", down, H * I);
    }
  };
  check();
  shard(3);  // scales in other files than what they scale
  check();
  for (int s = 0; s < 3; ++s) {  // back in one
    Tensors part = read_file(str(folder, "/model-", s, ".safetensors"));
    if (s == 0)
      write_file(weights, part);
    else
      change([&](Tensors& all) { all.insert(part.begin(), part.end()); });
  }
  check();
  const std::string gate = "model.layers.0.mlp.experts.0.gate_proj.weight",
                    plain = "model.layers.0.mlp.experts.0.gate_proj.weight";
  const Tensors good = read_file(weights);
  const auto broken = [&](const std::function<void(Tensors&)>& edit,
                          const std::vector<std::string>& parts) {
    Tensors copy = good;
    edit(copy);
    write_file(weights, copy);
    expect_refused(parts);
  };
  broken([&](Tensors& t) { t.erase(gate + "_scale_inv"); },
         {weights, "tensor " + plain + "_scale_inv, the scales of " + plain + ", is missing"});
  broken(
      [&](Tensors& t) {
        t[gate + "_scale_inv"].first = Tensor(nullptr, DType::f32, {4, 1});
      },
      {weights, plain + "_scale_inv must be float32 [2, 2]"});
  broken(
      [&](Tensors& t) {
        t[gate + "_scale_inv"].first = Tensor(nullptr, DType::bf16, {2, 4});
      },
      {weights, plain + "_scale_inv must be float32 [2, 2]"});
  broken([&](Tensors& t) { t[gate].second[H + 1] = '\x7f'; },
         {weights, "tensor " + plain + " is not finite at element 137"});
  broken([&](Tensors& t) { std::fill_n(t[gate + "_scale_inv"].second.begin(), 4, '\xff'); },
         {weights, "tensor " + plain + " is not finite at element 0"});
  broken(
      [&](Tensors& t) {
        t["model.norm.weight"] = {Tensor(nullptr, DType::f8_e4m3, {H}), Bytes(H, '\x38')};
      },
      {weights, "tensor model.norm.weight is float8_e4m3 and no matrix"});
  broken([&](Tensors& t) { t["model.norm.weight_scale_inv"] = t[gate + "_scale_inv"]; },
         {weights, "tensor model.norm.weight_scale_inv is not part of this model"});
}

// Bad checkpoints
// -----------------------------------------------------------------------------------------------

TEST_F(Checkpoints, NameTheFileAndTheTensorThatIsWrong) {
  write(config_of("kimi_linear"), DType::bf16);
  const std::string name = "model.layers.1.block_sparse_moe.experts.3.w1.weight";
  const Tensors good = read_file(weights);
  const auto broken = [&](const std::function<void(Tensors&)>& edit,
                          const std::vector<std::string>& parts) {
    Tensors copy = good;
    edit(copy);
    write_file(weights, copy);
    expect_refused(parts);
  };
  broken([&](Tensors& t) { t.erase(name); }, {folder, "tensor " + name + " is missing"});
  broken([&](Tensors& t) { t["model.layers.1.mixer.weight"] = t[name]; },
         {weights, "tensor model.layers.1.mixer.weight is not part of this model"});
  broken([&](Tensors& t) { t["vision.weight"] = t[name]; },
         {weights, "tensor vision.weight is not part of"});
  broken([&](Tensors& t) { t[name.substr(6)] = t[name]; },
         {weights, "tensor " + name + " appears a second time"});
  broken(
      [&](Tensors& t) {
        t[name].first = Tensor(nullptr, DType::bf16, {32, 64});
      },
      {weights, "tensor " + name + " has shape [32, 64], config.json asks for [64, 32]"});
  broken([&](Tensors& t) { t[name].first.dtype = DType::u8, t[name].second.resize(64 * 32); },
         {weights, "tensor " + name +
                       " is uint8; float32, float16, bfloat16 and float8_e4m3 are supported"});
  for (const uint16_t bits : {0x7f80, 0xff80, 0x7fc0})  // ±∞, NaN
    broken([&](Tensors& t) { std::memcpy(&t[name].second[2 * 77], &bits, 2); },
           {weights, "tensor " + name + " is not finite at element 77"});
  broken([&](Tensors& t) { t.clear(); }, {folder, "is missing, and 222 more"});
  Tensors copy = good;
  write_file(weights, copy);
  EXPECT_NO_THROW(Model::open(*backend, folder));
  const auto bytes = fs::file_size(weights);
  for (const auto n : {bytes - 1, bytes / 2, uintmax_t{9}, uintmax_t{0}}) {
    fs::resize_file(weights, n);
    expect_refused({weights + ": "});
  }
}

TEST_F(Checkpoints, OfAnotherModelAreRefused) {
  for (const json& config : every_config()) {
    write(config);
    json other = config_of("olmo_hybrid");
    if (config["model_type"] == "olmo_hybrid") other = config_of("falcon_h1");
    std::ofstream(this->config) << other;
    expect_refused({folder, ": tensor "});
  }
}

TEST_F(Checkpoints, InShardsAreAccountedFor) {
  write(config_of("minimax"));
  shard(3);
  const json good = read_index();
  const std::string first = folder + "/model-0.safetensors",
                    second = folder + "/model-1.safetensors";
  // Twice, in two files.
  const Tensors one = read_file(first);
  Tensors two = read_file(second), both = two;
  both.insert(*one.begin());
  write_file(second, both);
  expect_refused({second, one.begin()->first, "is in another file by " + index});
  write_file(second, two);
  // A shard that the index names is not there, or one tensor of it is not.
  fs::rename(second, folder + "/aside");
  expect_refused({second, "No such file"});
  Tensors less = two;
  const std::string lost = less.begin()->first;
  less.erase(lost);
  write_file(second, less);
  expect_refused({index, "tensor " + lost + " is not in model-1.safetensors, which it names"});
  fs::rename(folder + "/aside", second);
  EXPECT_NO_THROW(Model::open(*backend, folder));
  fs::resize_file(second, fs::file_size(second) - 1);
  expect_refused({second});

  for (const char* path :
       {"../other.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ""}) {
    json bad = good;
    bad["weight_map"]["model.norm.weight"] = path;
    write_index(bad);
    expect_refused({index, str("\"", path, "\" is no file of this folder")});
  }
  for (const json& bad :
       {json{{"weight_map", json::object()}}, json{{"weight_map", 3}}, json::object(), json(7)}) {
    write_index(bad);
    expect_refused({index, "has no weight_map from tensors to files"});
  }
  write_index({{"weight_map", {{"model.norm.weight", 3}}}});
  expect_refused({index, "the file of model.norm.weight must be a string, is 3"});
  json many;
  for (int i = 0; i < 5000; ++i) many[str("t", i)] = str("file-", i);
  write_index({{"weight_map", many}});
  expect_refused({index, "names more than 4096 files"});
  for (const char* text : {"", "{", "{\"weight_map\": {\"a\": \"b\"}", "\xff"}) {
    std::ofstream(index) << text;
    expect_refused({index});
  }
  fs::remove(index);
  expect_refused({folder, "holds neither model.safetensors nor model.safetensors.index.json"});
}

}  // namespace
}  // namespace hypic
