#include "reference/laws.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <memory>
#include <tuple>

namespace hypic {

void PrintTo(const FamilyTraits& traits, std::ostream* out) { *out << traits.name; }
void PrintTo(Family family, std::ostream* out) { *out << traits(family).name; }

namespace reference {

void PrintTo(Style style, std::ostream* out) { *out << name_of(style); }

namespace {

void expect_laws(const FamilyReference& family, const Dims& dims, Style style, uint64_t seed) {
  for (const Law& law : check_laws(family, dims, style, seed))
    EXPECT_TRUE(law.holds()) << family.traits().name << ", " << name_of(style) << ", T " << dims.T
                             << ", d " << dims.dk << " x " << dims.dv << ": " << law.name << " "
                             << law.error << (law.differs ? " <= " : " > ") << law.bound;
}

class Laws : public testing::TestWithParam<std::tuple<FamilyTraits, Style>> {};

TEST_P(Laws, Hold) {
  const auto& [traits, style] = GetParam();
  const auto family = make_family(traits.family);
  for (const int64_t T : {0, 1, 3, 63, 64, 65})
    expect_laws(*family, {.T = T, .Hk = 1, .Hv = 2, .dk = 8, .dv = 12, .extra = 3}, style, T + 1);
  expect_laws(*family, {.T = 65, .Hk = 2, .Hv = 2, .dk = 16, .dv = 8, .extra = 2}, style, 7);
}

INSTANTIATE_TEST_SUITE_P(Families, Laws,
                         testing::Combine(testing::ValuesIn(kFamilies), testing::ValuesIn(kStyles)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

TEST(LawsProperty, HoldForAnyShapeLengthAndSeed) {
  EXPECT_TRUE(rc::check([] {
    const auto family =
        make_family(static_cast<Family>(*rc::gen::inRange<size_t>(0, kFamilies.size())));
    const int64_t Hk = *rc::gen::inRange(1, 3);
    const Dims dims{.T = *rc::gen::inRange(0, 40),
                    .Hk = Hk,
                    .Hv = Hk * *rc::gen::inRange(1, 4),
                    .dk = *rc::gen::inRange(2, 11),
                    .dv = *rc::gen::inRange(1, 11),
                    .extra = *rc::gen::inRange(1, 5)};
    const Style style = *rc::gen::elementOf(kStyles);
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    for (const Law& law : check_laws(*family, dims, style, seed)) {
      if (law.differs) continue;  // a difference needs a shape that can show it
      RC_LOG() << family->traits().name << " " << name_of(style) << " " << law.name << " "
               << law.error;
      RC_ASSERT(law.holds());
    }
  }));
}

// Each law can fail
// ----------------------------------------------------------------------------------------

constexpr Dims kDims{.T = 40, .Hk = 1, .Hv = 2, .dk = 8, .dv = 12, .extra = 2};

std::vector<std::string> broken_laws(const FamilyReference& family, const TableOps& ops) {
  std::vector<std::string> names;
  for (const Law& law : check_laws(family, kDims, Style::random, 6, ops))
    if (!law.holds()) names.push_back(law.name);
  return names;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What a change of the arguments of linear_attention breaks.
std::vector<std::string> broken_by(Family family,
                                   std::function<void(LinearAttentionArgs&)> change) {
  TableOps ops;
  ops.linear_attention = [&](LinearAttentionArgs args, const ChainTable& table) {
    change(args);
    linear_attention<double>(args, table);
  };
  return broken_laws(*make_family(family), ops);
}

TEST(LawsNotice, NothingInTheRightImplementation) {
  for (const FamilyTraits& traits : kFamilies)
    EXPECT_EQ(broken_laws(*make_family(traits.family), {}), std::vector<std::string>{})
        << traits.name;
}

TEST(LawsNotice, WrongCompositionOrder) {
  TableOps ops;
  ops.compose = [](const TransferOperator& second, const TransferOperator& first,
                   const TransferOperator& out) { compose<double>(first, second, out); };
  for (const Family family : {Family::retnet, Family::gla, Family::mamba1, Family::gated_delta_net})
    EXPECT_TRUE(contains(broken_laws(*make_family(family), ops), "compose = joined span"));
}

TEST(LawsNotice, CompositionWithoutTheLaterTransition) {
  TableOps ops;
  ops.compose = [](const TransferOperator& second, const TransferOperator& first,
                   const TransferOperator& out) {
    compose<double>(second, first, out);
    for (int64_t i = 0; i < out.U.size(); ++i)
      out.U.as<double>()[i] = second.U.as<double>()[i] + first.U.as<double>()[i];
  };
  EXPECT_TRUE(contains(broken_laws(*make_kda(), ops), "compose = joined span"));
  EXPECT_FALSE(contains(broken_laws(*make_linear(), ops), "compose = joined span"));
}

TEST(LawsNotice, AnIdentityThatIsNot) {
  TableOps ops;
  ops.set_identity = [](const TransferOperator& op) {
    set_identity<double>(op);
    op.U.as<double>()[0] = 1e-9;
  };
  EXPECT_TRUE(contains(broken_laws(*make_retnet(), ops), "empty span = identity"));
}

TEST(LawsNotice, ApplyWithoutU) {
  TableOps ops;
  ops.apply = [](const TransferOperator& op, const Tensor& S) {
    std::vector<double> zeros(op.U.size());
    TransferOperator without = op;
    without.U = Tensor(zeros.data(), {op.U[0], op.U[1], op.U[2]});
    apply<double>(without, S);
  };
  EXPECT_TRUE(contains(broken_laws(*make_gla(), ops), "apply"));
}

TEST(LawsNotice, WrongRelocation) {
  TableOps backwards, without_T;
  backwards.relocate = [](const TransferOperator& op, int64_t shift, int rotary_dim, double theta,
                          Side side) { relocate<double>(op, -shift, rotary_dim, theta, side); };
  without_T.relocate = [](const TransferOperator& op, int64_t shift, int rotary_dim, double theta,
                          Side side) {
    rotate_state<double>(op.U, shift, rotary_dim, theta, side);
  };
  for (const Family family : {Family::lightning, Family::delta_net, Family::gated_oja})
    EXPECT_TRUE(contains(broken_laws(*make_family(family), backwards), "relocation of operators"));
  EXPECT_TRUE(contains(broken_laws(*make_gated_delta_net(), without_T), "relocation of operators"));
  EXPECT_FALSE(contains(broken_laws(*make_lightning(), without_T), "relocation of operators"));
}

TEST(LawsNotice, AJumpThatDoesNotRelocate) {
  const auto broken =
      broken_by(Family::lightning, [](LinearAttentionArgs& args) { args.rotary_dim = 0; });
  EXPECT_EQ(broken, std::vector<std::string>{"reuse chain, moved"});
}

TEST(LawsNotice, ReadingBeforeInsteadOfAfterTheDecay) {
  const auto other = [](LinearAttentionArgs& args) {
    args.update = args.update == Update::delta ? Update::delta_before : Update::delta;
  };
  for (const Family family : {Family::kda, Family::gdn2, Family::rwkv7, Family::gated_oja})
    EXPECT_TRUE(contains(broken_by(family, other), "table = definition, state"))
        << traits(family).name;
}

TEST(LawsNotice, TheBonusReadAfterTheUpdate) {
  const auto broken =
      broken_by(Family::rwkv6, [](LinearAttentionArgs& args) { args.readout = Readout::plain; });
  EXPECT_TRUE(contains(broken, "table = definition, outputs"));
  EXPECT_FALSE(contains(broken, "table = definition, state"));
}

TEST(LawsNotice, AScaleForgotten) {
  EXPECT_TRUE(contains(broken_by(Family::gla, [](LinearAttentionArgs& args) { args.scale = 1; }),
                       "table = definition, outputs"));
}

TEST(LawsNotice, KeysAndWritesExchanged) {
  const auto broken =
      broken_by(Family::rwkv7, [](LinearAttentionArgs& args) { std::swap(args.a, args.b); });
  EXPECT_TRUE(contains(broken, "table = definition, state"));
  EXPECT_TRUE(contains(broken, "operator of the whole"));
}

// The operator covers the head seam, which the reusing chain computes as well (spec/hypic.md
// section 10, B1).
TEST(LawsNotice, ASeamCountedTwice) {
  TableOps ops;
  ops.linear_attention = [](const LinearAttentionArgs& args, ChainTable table) {
    for (const Chain& chain : table.chains) {
      if (chain.item_end - chain.item_begin < 2) continue;
      ChainItem &seam = table.items[chain.item_begin], &step = table.items[chain.item_begin + 1];
      if (seam.op != kNone || step.kind != ChainItem::Kind::step || step.op == kNone) continue;
      seam.op = step.op;
      step.span = seam.end - seam.begin;
    }
    linear_attention<double>(args, table);
  };
  const auto broken = broken_laws(*make_gated_delta_net(), ops);
  EXPECT_TRUE(contains(broken, "reuse chain"));
  EXPECT_TRUE(contains(broken, "apply"));
  EXPECT_FALSE(contains(broken, "table = definition, state"));
}

// A definition whose every call leaves a trace of its own.
class Leaky final : public FamilyReference {
 public:
  Leaky() : FamilyReference(Family::retnet), family_(make_retnet()) {}
  std::vector<InputSpec> inputs(const Dims& dims) const override { return family_->inputs(dims); }
  void run(const Inputs& inputs, int64_t begin, int64_t end, Array& S, Array& o) const override {
    S.data[0] *= 1 + 1e-9;
    family_->run(inputs, begin, end, S, o);
  }
  TableInputs to_table(const Inputs& inputs) const override { return family_->to_table(inputs); }

 private:
  std::unique_ptr<FamilyReference> family_;
};

TEST(LawsNotice, ADefinitionThatDependsOnItsCalls) {
  const auto broken = broken_laws(Leaky(), {});
  EXPECT_TRUE(contains(broken, "split of the definition"));
  EXPECT_TRUE(contains(broken, "table = definition, state"));
}

// Single numbers
// -------------------------------------------------------------------------------------------

TEST(Affinity, OnlyTheLayerNormBreaksTttLinear) {
  const auto with = make_ttt_linear(), without = make_ttt_linear_without_norm();
  const Dims dims = with->fit(kDims);
  const Inputs inputs = make_inputs(*with, dims, Style::random, 3);
  EXPECT_GT(affinity_defect(*with, dims, inputs, 4), 1e-2);
  EXPECT_LE(affinity_defect(*without, dims, inputs, 4), 1e-12);
}

TEST(Addition, RetNetLosesOneMinusGammaToTheLength) {
  const double gamma = 1 - 0x1p-10;
  const std::pair<int64_t, double> published[] = {{256, .221}, {512, .394}, {1024, .632}};
  for (const auto& [L, value] : published) {
    EXPECT_NEAR(retnet_addition_error(gamma, L), 1 - std::pow(gamma, L), 1e-12);
    EXPECT_NEAR(retnet_addition_error(gamma, L), value, 5e-4);
  }
}

TEST(Conv, AnySplitWithTailsIsTheWhole) {
  for (int64_t W = 1; W <= 5; ++W)
    for (int64_t T = 0; T <= 10; ++T)
      for (uint64_t seed = 0; seed < 5; ++seed)
        EXPECT_LE(conv_split_error(T, 3, W, seed), 1e-12) << T << " " << W;
}

// The table in float32 over 32k tokens on slow heads.
class Float32 : public testing::TestWithParam<Family> {};

TEST_P(Float32, StaysCloseToFloat64) {
  const auto family = make_family(GetParam());
  const Dims dims{.T = 32768, .Hk = 1, .Hv = 4, .dk = 4, .dv = 6};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    EXPECT_LE(float32_error(*family, dims, Style::slow, seed), 1e-5) << seed;
    EXPECT_LE(float32_error(*family, dims, Style::repeated, seed), 5e-4) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(SlowHeads, Float32, testing::Values(Family::retnet, Family::gla),
                         [](const auto& info) { return std::string(traits(info.param).name); });

}  // namespace
}  // namespace reference
}  // namespace hypic
