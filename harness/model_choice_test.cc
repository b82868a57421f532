#include "harness/model_choice.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/check.h"

namespace hypic {
namespace {

ModelChoice read(const nlohmann::json& json, Ranks ranks = Ranks::several, const DriverContext& context = {}) {
  Parameters parameters(json, "case.parameters");
  ModelChoice choice = read_model_choice(parameters, context, ranks);
  parameters.refuse_others();
  return choice;
}

std::string refusal(const nlohmann::json& json, Ranks ranks = Ranks::several) {
  try {
    read(json, ranks);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ModelChoice, RanksHaveADeviceEach) {
  EXPECT_TRUE(read({}).devices.empty());
  EXPECT_EQ(read({{"tensor_parallel", 2}}).devices, (std::vector{0, 1}));
  EXPECT_EQ(read({{"tensor_parallel", 2}, {"devices", {0, 0}}}).devices, (std::vector{0, 0}));
  EXPECT_EQ(read({{"devices", {3}}}).devices, std::vector{3});
  EXPECT_EQ(read({{"tensor_parallel", 2}}).on(), "cpu, 2 tensor-parallel ranks");
  EXPECT_EQ(read({}, Ranks::several, {.devices = {4, 5}}).devices, (std::vector{4, 5}));
  EXPECT_EQ(refusal({{"tensor_parallel", 2}, {"devices", {0}}}),
            "case.parameters.devices: must name a device for each of 2 ranks, names 1");
  EXPECT_EQ(refusal({{"tensor_parallel", 3}}),
            "qwen3.5-tiny: 3 ranks cannot share 4 value heads of linear attention: not a multiple; choose another number "
            "for --tensor-parallel");
  EXPECT_NE(refusal({{"tensor_parallel", 2}}, Ranks::one), "");
}

TEST(ModelChoice, MoreGpusThanThereAreAreWhatTheMachineLacks) {
  EXPECT_THROW(require_gpus({.backend = "cuda", .devices = {0, 63}}), MachineLacks);
  EXPECT_NO_THROW(require_gpus({.backend = "cpu", .devices = {0, 63}}));
  EXPECT_THROW(OpenModel({kDefaultModel, "cuda", {62, 63}}), MachineLacks);
}

TEST(OpenModel, SharesAModelAmongRanks) {
  const OpenModel open({kDefaultModel, "cpu", {0, 0}});
  EXPECT_EQ(open.model().peers().size(), 1u);
  EXPECT_EQ(open.model().spec().ranks, 2);
  ModelShelf shelf;
  const Model* const two = &shelf.open({kDefaultModel, "cpu", {0, 1}});
  EXPECT_EQ(two->spec().ranks, 2);
  EXPECT_EQ(&shelf.open({kDefaultModel, "cpu", {0, 1}}), two);
  EXPECT_EQ(shelf.open({kDefaultModel, "cpu"}).spec().ranks, 1);
}

}  // namespace
}  // namespace hypic
