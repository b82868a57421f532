#include "models/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/dtype.h"

namespace hypic {
namespace {

const TensorSpec& tensor_of(const std::vector<TensorSpec>& tensors, const std::string& name) {
  for (const TensorSpec& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw Error("no tensor " + name);
}

std::vector<float> fill(const ModelSpec& spec, const TensorSpec& tensor, uint64_t seed) {
  int64_t size = 1;
  for (const int64_t n : tensor.shape) size *= n;
  std::vector<float> values(size, NAN);
  fill_random(spec, tensor, seed, values.data());
  return values;
}

double deviation(const std::vector<float>& x, double mean) {
  double square = 0;
  for (const float e : x) square += (e - mean) * (e - mean);
  return std::sqrt(square / x.size());
}

TEST(RandomWeights, DependOnSpecNameAndSeedOnly) {
  const ModelSpec spec = spec_named("qwen3.5-tiny");
  std::set<std::vector<float>> seen;
  for (const TensorSpec& tensor : tensor_specs(spec)) {
    const std::vector<float> values = fill(spec, tensor, 7);
    EXPECT_EQ(fill(spec, tensor, 7), values) << tensor.name;
    EXPECT_NE(fill(spec, tensor, 8), values) << tensor.name;
    EXPECT_TRUE(seen.insert(values).second) << tensor.name << " repeats another tensor";
  }
}

TEST(RandomWeights, AreExactInBFloat16) {
  const ModelSpec spec = spec_named("qwen3.5-tiny");
  for (const TensorSpec& tensor : tensor_specs(spec))
    for (const float x : fill(spec, tensor, 1)) {
      ASSERT_TRUE(std::isfinite(x)) << tensor.name;
      const bool gate = tensor.init == Init::A_log || tensor.init == Init::dt_bias;
      ASSERT_TRUE(gate || static_cast<float>(BFloat16::from(x)) == x) << tensor.name << " " << x;
    }
}

TEST(RandomWeights, AreScaledByFanInAndDepth) {
  const ModelSpec spec = spec_named("qwen3.5-tiny");
  const std::vector<TensorSpec> tensors = tensor_specs(spec);
  const auto expect = [&](const char* name, double mean, double scale) {
    const std::vector<float> values = fill(spec, tensor_of(tensors, name), 3);
    EXPECT_NEAR(deviation(values, mean) / scale, 1, 5 / std::sqrt(2.0 * values.size())) << name;
  };
  expect("embed_tokens.weight", 0, 1 / std::sqrt(128));
  expect("layers.0.mlp.up_proj.weight", 0, 1 / std::sqrt(128));
  // The sublayers, two a layer, add up to twice the rms of the embedding.
  expect("layers.0.mlp.down_proj.weight", 0, 2 / std::sqrt(256.0 * 2 * 8 * 128));
  expect("layers.0.linear_attn.conv1d.weight", 0, 0.5);
  expect("layers.0.linear_attn.in_proj_a.weight", 0, 0.25 / std::sqrt(128));
  expect("layers.0.linear_attn.norm.weight", 1, 0.1);
  expect("layers.0.input_layernorm.weight", 0, 0.1);
}

// One head in each of as many log-equal parts of 64 … 65,536 tokens as there are heads.
TEST(RandomWeights, MemoryLengthsAreSpread) {
  for (const char* name : {"qwen3.5-tiny", "qwen3.5-27b"})
    for (const uint64_t seed : {0, 1, 12345}) {
      const ModelSpec spec = spec_named(name);
      const std::vector<TensorSpec> tensors = tensor_specs(spec);
      std::set<std::vector<int>> orders;
      for (const int layer : {0, 1, 2, 4, 5, 6}) {
        const std::string at = str("layers.", layer, ".linear_attn.");
        const std::vector<float> A_log = fill(spec, tensor_of(tensors, at + "A_log"), seed),
                                 dt_bias = fill(spec, tensor_of(tensors, at + "dt_bias"), seed);
        const int heads = static_cast<int>(A_log.size());
        std::vector<int> parts;
        for (int h = 0; h < heads; ++h) {
          EXPECT_GE(A_log[h], 0);
          EXPECT_LE(A_log[h], std::log(16.0) + 1e-6);
          const double memory = 1 / (std::exp(static_cast<double>(A_log[h])) *
                                     std::log1p(std::exp(static_cast<double>(dt_bias[h]))));
          EXPECT_GE(memory, 64 * (1 - 1e-5));
          EXPECT_LE(memory, 65536 * (1 + 1e-5));
          parts.push_back(static_cast<int>(std::log(memory / 64) / std::log(1024.0) * heads));
        }
        EXPECT_EQ(std::set<int>(parts.begin(), parts.end()).size(), static_cast<size_t>(heads))
            << name << " " << at;
        orders.insert(parts);
      }
      EXPECT_GT(orders.size(), 1u);  // differs by layer
    }
}

}  // namespace
}  // namespace hypic
