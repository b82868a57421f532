// The definitions against flash-linear-attention and transformers, whose outputs tools/golden-fla.py and
// tools/golden-ssm.py wrote in float32.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "core/safetensors.h"
#include "reference/families/family.h"

namespace hypic::reference {
namespace {

Array to_array(const Tensor& tensor) {
  Array array;
  array.shape.assign(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
  for (int64_t i = 0; i < tensor.size(); ++i) array.data.push_back(tensor.as<float>()[i]);
  return array;
}

double relative(const Array& x, const Array& y) {
  EXPECT_EQ(x.data.size(), y.data.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.data.size(); ++i) {
    difference += (x.data[i] - y.data[i]) * (x.data[i] - y.data[i]);
    norm += y.data[i] * y.data[i];
  }
  return std::sqrt(difference / norm);
}

TEST(Golden, EveryDefinitionAgreesWithAnotherImplementation) {
  std::set<std::string> compared;
  for (const char* folder : {"reference/testdata/fla", "reference/testdata/transformers"})
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().stem();
      const Safetensors file(entry.path());
      Inputs inputs;
      for (const auto& [letter, tensor] : file.tensors()) inputs[letter] = to_array(tensor);
      Array S = inputs.at("S0"), o = inputs.at("o");
      const Array expected_o = o;
      const auto family = make_family(family_named(name).family);
      family->run(inputs, 0, o.shape[0], S, o);
      // Both sides of the difference are float32 sums of some tens of terms on theirs.
      EXPECT_LE(relative(o, expected_o), 2e-6) << name << ", outputs";
      EXPECT_LE(relative(S, inputs.at("S")), 2e-6) << name << ", state";
      compared.insert(name);
    }
  for (const FamilyTraits& family : kFamilies)
    // fla has ttt_linear in its mini-batch form with a bias only.
    EXPECT_EQ(compared.count(std::string(family.name)), family.family == Family::ttt_linear ? 0u : 1u)
        << family.name;
}

}  // namespace
}  // namespace hypic::reference
