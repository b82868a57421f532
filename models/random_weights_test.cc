#include "models/random_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "core/dtype.h"
#include "models/forward.h"
#include "reference/cpu_backend.h"
#include "reference/ops/testing.h"

namespace hypic {
namespace {

const TensorSpec& tensor_of(const std::vector<TensorSpec>& tensors, const std::string& name) {
  for (const TensorSpec& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw Error("no tensor " + name);
}

std::vector<float> fill(const ModelSpec& spec, const TensorSpec& tensor, uint64_t seed) {
  const RandomTensor draw = random_tensor(spec, tensor, seed);
  if (!draw.values.empty()) return draw.values;
  std::vector<float> values(tensor.size(), NAN);
  reference::make_cpu_backend()->random_normal(
      {Tensor(values.data(), {tensor.size()}), draw.stream, draw.mean, draw.deviation});
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
  for (const char* name :
       {"qwen3.5-tiny", "kimi-linear-48b-a3b-tiny", "nemotron-3-nano-30b-a3b-tiny"}) {
    const ModelSpec spec = spec_named(name);
    for (const TensorSpec& tensor : tensor_specs(spec))
      for (const float x : fill(spec, tensor, 1)) {
        ASSERT_TRUE(std::isfinite(x)) << tensor.name;
        const bool gate = tensor.init == Init::A_log || tensor.init == Init::dt_bias;
        ASSERT_TRUE(gate || static_cast<float>(BFloat16::from(x)) == x) << tensor.name << " " << x;
      }
  }
}

TEST(RandomWeights, AreScaledByFanInAndDepth) {
  const ModelSpec spec = spec_named("qwen3.5-tiny");
  const std::vector<TensorSpec> tensors = tensor_specs(spec);
  const auto expect = [&](const char* name, double mean, double scale) {
    const std::vector<float> values = fill(spec, tensor_of(tensors, name), 3);
    EXPECT_NEAR(deviation(values, mean) / scale, 1, 5 / std::sqrt(2.0 * values.size())) << name;
  };
  expect("embed", 0, 1 / std::sqrt(128));
  expect("layers.0.ffn.up", 0, 1 / std::sqrt(128));
  // The sublayers, two a layer, add up to twice the rms of the embedding.
  expect("layers.0.ffn.down", 0, 2 / std::sqrt(256.0 * 2 * 8 * 128));
  expect("layers.0.linear.conv", 0, 0.5);
  expect("layers.0.linear.decay", 0, 0.25 / std::sqrt(128));
  expect("layers.0.linear.norm", 1, 0.1);
  expect("layers.0.norm", 0, 0.1);
}

// One head in each of as many log-equal parts of 64 … 65,536 tokens as there are heads, in every
// architecture whose decays are weights.
TEST(RandomWeights, MemoryLengthsAreSpread) {
  for (const char* name : {"qwen3.5-tiny", "qwen3.5-27b", "qwen3-next-80b-a3b", "olmo-hybrid-7b",
                           "kimi-linear-48b-a3b", "kimi-linear-48b-a3b-tiny",
                           "nemotron-3-nano-30b-a3b", "granite-4.0-h-tiny", "falcon-h1-1.5b"})
    for (const uint64_t seed : {0, 1, 12345}) {
      const ModelSpec spec = spec_named(name);
      const std::vector<TensorSpec> tensors = tensor_specs(spec);
      const bool mamba = spec.linear.family == Family::mamba2;
      std::set<std::vector<int>> orders;
      int checked = 0;
      for (int layer = 0; layer < spec.layer_count() && checked < 6; ++layer) {
        if (!spec.layers[layer].linear) continue;
        ++checked;
        const std::string at = str("layers.", layer, ".linear.");
        const std::vector<float> A_log = fill(spec, tensor_of(tensors, at + "A_log"), seed),
                                 dt_bias = fill(spec, tensor_of(tensors, at + "dt_bias"), seed);
        const int heads = static_cast<int>(A_log.size()),
                  channels = static_cast<int>(dt_bias.size()) / heads;
        EXPECT_EQ(channels, spec.linear.family == Family::kda ? spec.linear.key_dim : 1);
        std::vector<int> parts;
        for (int h = 0; h < heads; ++h) {
          if (!mamba) {
            EXPECT_GE(A_log[h], 0);
            EXPECT_LE(A_log[h], std::log(16.0) + 1e-6);
          }
          double memory = 0;
          for (int c = 0; c < channels; ++c) {
            const double step =
                std::log1p(std::exp(static_cast<double>(dt_bias[h * channels + c])));
            memory = 1 / (std::exp(static_cast<double>(A_log[h])) * step);
            EXPECT_GE(memory, 64 * (1 - 1e-5));
            EXPECT_LE(memory, 65536 * (1 + 1e-5));
            if (!mamba) continue;
            EXPECT_GE(step, 0.01 * (1 - 1e-5));  // above the limit that some models clamp Δ at
            EXPECT_LE(step, 0.1 * (1 + 1e-5));
          }
          parts.push_back(static_cast<int>(std::log(memory / 64) / std::log(1024.0) * heads));
        }
        EXPECT_EQ(std::set<int>(parts.begin(), parts.end()).size(), static_cast<size_t>(heads))
            << name << " " << at;
        orders.insert(parts);
      }
      EXPECT_GT(orders.size(), 1u) << name;  // differs by layer
    }
}

// The experts that the router of each layer chooses over random tokens.
struct Load : Tap {
  void see(const std::string& name, const Tensor& tensor) override {
    if (!name.ends_with(".moe.experts")) return;
    std::vector<int>& counts = by_layer.emplace_back(16);
    for (const double e : reference::elements(tensor)) ++counts.at(static_cast<size_t>(e));
  }
  std::vector<std::vector<int>> by_layer;
};

TEST(RandomWeights, RoutersSpreadTheirLoad) {
  const auto backend = reference::make_cpu_backend();
  const Model model = Model::open(*backend, "random:qwen3.5-35b-a3b-tiny");
  const int rows = 256;
  Pools pools(*backend, model.spec(),
              {.state_slots = 1, .operator_slots = 0, .pages = 16, .page_size = 16});
  ChainTable table = reference::one_chain({.state = 0}, {reference::step(rows)});
  std::mt19937 bits(1);
  for (int32_t& token : table.tokens) token = static_cast<int32_t>(bits() % 2048);
  for (int32_t page = 0; page < 16; ++page) table.pages.push_back(page);
  Load load;
  forward(model, pools, table, {}, {.tap = &load});
  ASSERT_EQ(load.by_layer.size(), 8u);
  double worst = 0;
  for (const std::vector<int>& counts : load.by_layer) {
    const double mean = rows * 4 / 16.0;
    worst = std::max(worst, *std::max_element(counts.begin(), counts.end()) / mean);
    EXPECT_GT(std::count_if(counts.begin(), counts.end(), [](int n) { return n > 0; }), 8);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), rows * 4);
  }
  RecordProperty("max_over_mean_load", std::to_string(worst));
  EXPECT_LT(worst, 4);    // where every token chooses an expert
  EXPECT_GT(worst, 1.2);  // as a trained router, not an even one
}

}  // namespace
}  // namespace hypic
