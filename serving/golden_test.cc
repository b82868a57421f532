// Whole models against independent implementations: checkpoints and float32 logits that
// tools/golden-transformers.py and, for Ring, tools/golden-ring.py wrote. Prefilled whole, in chunks, and token by token.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "core/safetensors.h"
#include "reference/cpu_backend.h"
#include "serving/engine.h"

namespace hypic {
namespace {

const std::string kFolder = "models/testdata/transformers/";

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, LogitsAreThoseOfTransformers) {
  const std::string folder = kFolder + GetParam();
  const Safetensors golden(folder + "/golden.safetensors");
  const Tensor tokens = golden.tensors().at("tokens");
  const Tokens prompt(tokens.as<int32_t>(), tokens.as<int32_t>() + tokens.size());
  for (const bool wide : {true, false}) {
    const auto backend = wide ? reference::make_cpu64_backend() : reference::make_cpu_backend();
    const Model model = Model::open(*backend, folder);
    for (const int32_t max_rows : {1000, 48, 1}) {
      Engine engine(model, {.pools = {.state_slots = 2, .operator_slots = 1, .pages = 16}, .max_rows = max_rows});
      for (const auto& [name, expected] : golden.tensors()) {
        const size_t dot = name.find('.');  // logits.N, chunked.N, decoded.N
        if (dot == name.npos || name.starts_with("bfloat16")) continue;  // those tell noise
        const int length = std::stoi(name.substr(dot + 1));
        const Tokens prefix(prompt.begin(), prompt.begin() + length);
        const auto logits = engine.run({{{prefix}, 1}}, mode_named("full")).responses[0].logits;
        double worst = 0;
        for (int64_t i = 0; i < expected.size(); ++i)
          worst = std::max(worst, std::abs(logits[i] - expected.as<float>()[i]));
        EXPECT_LE(worst, 1e-4) << backend->name() << ", " << length << " tokens, max_rows " << max_rows;
      }
    }
  }
}

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder))
    names.push_back(entry.path().filename());
  return names;
}

// A model without an oracle is not supported.
TEST(Goldens, EveryArchitectureHasOne) {
  std::set<std::string> types;
  for (const std::string& name : architectures()) types.insert(spec_of(kFolder + name).model_type);
  for (const std::string& name : model_names())
    EXPECT_EQ(types.count(spec_named(name).model_type), 1u) << spec_named(name).model_type << " has no golden in "
                                                           << kFolder;
}

INSTANTIATE_TEST_SUITE_P(Transformers, Golden, testing::ValuesIn(architectures()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hypic
