#include "core/family.h"

#include <gtest/gtest.h>

#include <set>

#include "core/check.h"
#include "core/transfer_operator.h"

namespace hypic {
namespace {

TEST(Families, ExpandInOrderWithUniqueNames) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kFamilies.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(kFamilies[i].family), i);
    EXPECT_EQ(&traits(kFamilies[i].family), &kFamilies[i]);
    EXPECT_EQ(&family_named(kFamilies[i].name), &kFamilies[i]);
    EXPECT_TRUE(names.insert(kFamilies[i].name).second) << kFamilies[i].name;
  }
  EXPECT_EQ(kFamilies.size(), 19u);
}

TEST(Families, TraitsAreThoseOfTheirLine) {
  const FamilyTraits& gdn = traits(Family::gated_delta_net);
  EXPECT_EQ(gdn.name, "gated_delta_net");
  EXPECT_EQ(gdn.decay, Decay::scalar);
  EXPECT_EQ(gdn.update, Update::delta);
  EXPECT_EQ(gdn.readout, Readout::plain);
  EXPECT_EQ(gdn.side, Side::key);
  EXPECT_TRUE(gdn.relocatable);
  EXPECT_EQ(traits(Family::gated_oja).side, Side::value);
  EXPECT_FALSE(traits(Family::kda).relocatable);
}

TEST(Families, AnUnknownNameListsTheKnown) {
  try {
    family_named("gated_delta");
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("unknown family \"gated_delta\"; known: linear, retnet, "))
        << message;
    for (const FamilyTraits& family : kFamilies)
      EXPECT_NE(message.find(family.name), std::string::npos) << family.name;
  }
  EXPECT_THROW(family_named(""), Error);
}

TEST(Families, CellsHaveTheirOperator) {
  using enum OperatorKind;
  const std::pair<Decay, OperatorKind> kinds[] = {{Decay::none, identity},
                                                  {Decay::scalar, scalar},
                                                  {Decay::diagonal, diagonal},
                                                  {Decay::elementwise, elementwise}};
  for (const auto& [decay, kind] : kinds) {
    EXPECT_EQ(operator_kind(decay, Update::add), kind);
    EXPECT_EQ(operator_kind(decay, Update::delta), dense);
    EXPECT_EQ(operator_kind(decay, Update::delta_before), dense);
    for (const Update update : {Update::add, Update::delta, Update::delta_before})
      EXPECT_EQ(has_log_scale(decay, update),
                decay == Decay::scalar && update != Update::delta_before);
  }
}

// Diagonal decay turns each pair by its own amount, so relocation is exact only without it, or
// where the decayed axis is not the rotated one.
TEST(Families, RelocatableOnesHaveNoDecayThatMixesWithTheRotation) {
  for (const FamilyTraits& family : kFamilies)
    EXPECT_TRUE(!family.relocatable || family.decay == Decay::none ||
                family.decay == Decay::scalar || family.side == Side::value)
        << family.name;
}

TEST(Families, NamesOfTheAxes) {
  EXPECT_EQ(name_of(Decay::elementwise), "elementwise");
  EXPECT_EQ(name_of(Update::nonlinear), "nonlinear");
  EXPECT_EQ(name_of(Readout::softmax), "softmax");
}

TEST(TransferOperators, AtPicksOneSlotAndLeavesAbsentPartsAbsent) {
  std::vector<float> memory(100);
  TransferOperator pool{
      OperatorKind::scalar, Tensor(memory.data(), {3, 2}), {}, Tensor(memory.data(), {3, 2, 2, 5})};
  const TransferOperator one = pool.at(2);
  EXPECT_EQ(one.log_scale.data, memory.data() + 4);
  EXPECT_EQ(one.U.data, memory.data() + 40);
  EXPECT_EQ(one.U.shape_string(), "[2, 2, 5]");
  EXPECT_FALSE(one.T);
  EXPECT_THROW(pool.at(3), InternalError);
}

TEST(Checks, RequireStreamsItsPartsIntoAnError) {
  EXPECT_NO_THROW(require(true, "never"));
  try {
    require(false, "a ", 1, ' ', 2.5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a 1 2.5");
  }
}

TEST(Checks, CheckNamesFileLineAndExpression) {
  int evaluated = 0;
  EXPECT_NO_THROW(HYPIC_CHECK(++evaluated == 1, "not ", evaluated));
  EXPECT_EQ(evaluated, 1);
  const int line = __LINE__ + 2;
  try {
    HYPIC_CHECK(evaluated == 2, "evaluated ", evaluated);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_EQ(std::string(error.what()), str(__FILE__, ":", line, ": evaluated == 2 evaluated 1"));
  }
  EXPECT_THROW(HYPIC_CHECK(false), InternalError);
}

}  // namespace
}  // namespace hypic
