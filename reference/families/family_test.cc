// The definitions against each other: most families are special cases of others.
#include "reference/families/family.h"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/laws.h"

namespace hypic::reference {
namespace {

constexpr Dims kDims{.T = 20, .Hk = 1, .Hv = 2, .dk = 6, .dv = 8};

struct Result {
  Array S, o;
};

Result run(const FamilyReference& family, const Inputs& inputs, Array S, const Dims& dims = kDims) {
  Result result{std::move(S), Array({dims.T, dims.Hv, dims.dv})};
  family.run(inputs, 0, dims.T, result.S, result.o);
  return result;
}

void expect_near(const Array& a, const Array& b, double bound = 1e-12) {
  ASSERT_EQ(a.shape, b.shape);
  for (size_t i = 0; i < a.data.size(); ++i) ASSERT_NEAR(a.data[i], b.data[i], bound) << i;
}

void expect_same(const Result& a, const Result& b) {
  expect_near(a.S, b.S);
  expect_near(a.o, b.o);
}

// One value of each head and token for every one of n dims.
Array widened(const Array& x, int64_t n) {
  Array out({x[0], x[1], n});
  for (int64_t t = 0; t < x[0]; ++t)
    for (int64_t h = 0; h < x[1]; ++h) out.set_row(Vector(x(t, h), n), t, h);
  return out;
}

class Families : public testing::Test {
 protected:
  const std::unique_ptr<FamilyReference> gdn = make_gated_delta_net(), kda = make_kda();
  const Inputs gdn_inputs = make_inputs(*gdn, kDims, Style::random, 1);
  const Inputs kda_inputs = make_inputs(*kda, kDims, Style::random, 2);
  const Array S = make_state(*gdn, kDims, 3);
};

TEST_F(Families, LightningIsRetNet) {
  Inputs inputs = make_inputs(*make_retnet(), kDims, Style::random, 4);
  const Result retnet = run(*make_retnet(), inputs, S);
  inputs["s"] = map_elements(inputs["gamma"], [](double x) { return -std::log(x); });
  expect_same(run(*make_lightning(), inputs, S), retnet);
}

TEST_F(Families, Mamba2IsMamba1WithScalarDecays) {
  Inputs inputs = make_inputs(*make_mamba2(), kDims, Style::random, 5);
  const Result mamba2 = run(*make_mamba2(), inputs, S);
  const Array A = inputs["A"], D = inputs["D"];
  inputs["delta"] = widened(inputs["delta"], kDims.dv);
  inputs["A"] = Array({kDims.Hv, kDims.dk, kDims.dv});
  inputs["D"] = Array({kDims.Hv, kDims.dv});
  for (int64_t h = 0; h < kDims.Hv; ++h) {
    inputs["D"].set_row(Vector(D(h), kDims.dv), h);
    for (int64_t n = 0; n < kDims.dk; ++n) inputs["A"].set_row(Vector(A(h), kDims.dv), h, n);
  }
  expect_same(run(*make_mamba1(), inputs, S), mamba2);
}

TEST_F(Families, GlaWithTheKeyOneMinusFIsHgrn2) {
  Dims dims = kDims;
  dims.Hk = dims.Hv;
  Inputs inputs = make_inputs(*make_hgrn2(), dims, Style::random, 6);
  const Result hgrn2 = run(*make_hgrn2(), inputs, S, dims);
  inputs["k"] = map_elements(inputs["f"], [](double f) { return 1 - f; });
  inputs["g"] = map_elements(inputs["f"], [](double f) { return std::log(f); });
  expect_same(run(*make_gla(), inputs, S, dims), hgrn2);
}

TEST_F(Families, KdaWithOneGateAHeadIsGatedDeltaNet) {
  Inputs inputs = gdn_inputs;
  const Result want = run(*gdn, inputs, S);
  inputs["g"] = widened(inputs["g"], kDims.dk);
  expect_same(run(*kda, inputs, S), want);
}

TEST_F(Families, Gdn2WithEqualGatesIsKda) {
  Inputs inputs = kda_inputs;
  inputs["b"] = widened(inputs["beta"], kDims.dk);
  inputs["w"] = widened(inputs["beta"], kDims.dv);
  expect_same(run(*make_gdn2(), inputs, S), run(*kda, kda_inputs, S));
}

TEST_F(Families, GatedDeltaProductOfOneStepIsGatedDeltaNet) {
  const auto product = make_gated_delta_product();
  Inputs inputs = make_inputs(*product, kDims, Style::random, 7);
  const Result want = run(*product, inputs, S);
  for (const char* name : {"k", "v", "beta"}) {
    Array& x = inputs.at(name);
    x.shape.erase(x.shape.begin() + 1);
  }
  expect_same(run(*gdn, inputs, S), want);
}

TEST_F(Families, ExactlyTheFirstStepOfAProductDecays) {
  Dims dims = kDims;
  dims.extra = 3;
  const auto product = make_gated_delta_product();
  const Inputs inputs = make_inputs(*product, dims, Style::random, 8);
  // The same micro-steps as tokens of gated_delta_net, whose first has the gate.
  const TableInputs table = product->to_table(inputs);
  Dims micro = dims;
  micro.T = dims.T * 3;
  const Inputs steps = {
      {"q", table.q}, {"k", table.k}, {"v", table.v}, {"g", table.g}, {"beta", table.beta}};
  expect_near(run(*product, inputs, S, dims).S, run(*gdn, steps, S, micro).S);
}

TEST_F(Families, CombaWithoutDecayAndFeedbackIsDeltaNet) {
  Inputs inputs = make_inputs(*make_comba(), kDims, Style::no_decay, 9);
  inputs["c"] = Array({1}, 1e3);  // σ(c) = 1
  inputs["D"] = Array({1}, 0.0);
  expect_same(run(*make_comba(), inputs, S), run(*make_delta_net(), inputs, S));
}

TEST_F(Families, CombaReadsTheUndecayedState) {
  Inputs inputs = gdn_inputs;
  inputs["c"] = Array({1}, 1e3);
  inputs["D"] = Array({1}, 0.0);
  const Array comba = run(*make_comba(), inputs, S).S, other = run(*gdn, inputs, S).S;
  double difference = 0;
  for (size_t i = 0; i < comba.data.size(); ++i)
    difference = std::max(difference, std::abs(comba.data[i] - other.data[i]));
  EXPECT_GT(difference, 1e-2);
}

TEST_F(Families, Rwkv7WithAConstantRateIsCombaLike) {
  // a = β everywhere and k = β κ: both are w S − β κ (κᵀS) + β κ vᵀ with one decay a head.
  const double beta = 0.7;
  Inputs comba = make_inputs(*make_comba(), kDims, Style::random, 10);
  comba["beta"] = Array({kDims.T, kDims.Hv}, beta);
  comba["c"] = Array({1}, 1e3);
  comba["D"] = Array({1}, 0.0);
  Inputs rwkv7;
  rwkv7["kappa"] = comba["k"];
  rwkv7["k"] = map_elements(comba["k"], [&](double x) { return beta * x; });
  rwkv7["v"] = comba["v"];
  rwkv7["r"] = comba["q"];
  rwkv7["a"] = Array({kDims.T, kDims.Hv, kDims.dk}, beta);
  rwkv7["w"] = widened(map_elements(comba["g"], [](double g) { return std::exp(g); }), kDims.dk);
  expect_near(run(*make_rwkv7(), rwkv7, S).S, run(*make_comba(), comba, S).S);
}

TEST_F(Families, Rwkv6ReadsBeforeTheUpdate) {
  // With the bonus u = 1 and no decay the current token counts as in gla, but for the scale.
  Inputs inputs = make_inputs(*make_rwkv6(), kDims, Style::no_decay, 11);
  inputs["u"] = Array({kDims.Hv, kDims.dk}, 1.0);
  Inputs gla = inputs;
  gla["q"] = map_elements(inputs["r"], [](double x) { return x * std::sqrt(kDims.dk); });
  gla["g"] = Array(inputs["w"].shape, 0.0);
  expect_same(run(*make_rwkv6(), inputs, S), run(*make_gla(), gla, S));
}

TEST_F(Families, GatedOjaIsKdaOnTheTransposedState) {
  Dims dims = kDims, exchanged = kDims;
  dims.Hk = exchanged.Hk = dims.Hv;
  std::swap(exchanged.dk, exchanged.dv);
  const auto oja = make_gated_oja();
  Inputs inputs = make_inputs(*oja, dims, Style::random, 12);
  const Array want = run(*oja, inputs, S, dims).S;
  Inputs other = inputs;
  std::swap(other["k"], other["v"]);
  other["q"] = other["k"];  // the state alone is compared
  expect_near(transposed(run(*kda, other, transposed(S), exchanged).S), want);
}

TEST_F(Families, GsaIsTwoGlaStates) {
  Dims dims = kDims, keys = kDims, values = kDims;
  dims.Hk = keys.Hk = values.Hk = kDims.Hv;
  dims.extra = keys.dk = values.dk = 5;
  keys.dv = dims.dk;
  const auto gsa = make_gsa();
  const Inputs inputs = make_inputs(*gsa, dims, Style::random, 13);
  const Array& alpha = inputs.at("alpha");
  Inputs gla = {{"q", Array(alpha.shape)},
                {"k", map_elements(alpha, [](double x) { return 1 - x; })},
                {"g", map_elements(alpha, [](double x) { return std::log(x); })},
                {"v", inputs.at("k")}};
  const Array K = run(*make_gla(), gla, Array({2, 5, dims.dk}), keys).S;
  gla["v"] = inputs.at("v");
  const Array V = run(*make_gla(), gla, Array({2, 5, dims.dv}), values).S;
  const Array both = run(*gsa, inputs, Array({2, 5, dims.dk + dims.dv}), dims).S;
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 5; ++i) {
      for (int64_t j = 0; j < dims.dk; ++j) EXPECT_NEAR(both(h, i, j), K(h, i, j), 1e-12);
      for (int64_t j = 0; j < dims.dv; ++j) EXPECT_NEAR(both(h, i, dims.dk + j), V(h, i, j), 1e-12);
    }
}

TEST_F(Families, LinearAttentionIsAWeightedMeanOfValues) {
  const auto linear = make_linear();
  Inputs inputs = make_inputs(*linear, kDims, Style::random, 14);
  inputs["v"] = Array({kDims.T, kDims.Hv, kDims.dv}, 3.0);
  const Result result = run(*linear, inputs, Array(linear->state_shape(kDims)));
  for (const double x : result.o.data) EXPECT_NEAR(x, 3, 1e-9);
}

TEST_F(Families, MlstmSurvivesGatesBeyondTheRangeOfExp) {
  const auto mlstm = make_mlstm();
  Inputs inputs = make_inputs(*mlstm, kDims, Style::random, 15);
  const Array zero(mlstm->state_shape(kDims));
  for (double& i : inputs["i"].data) i += 400;  // n is so large that its own size cancels
  const Array far = run(*mlstm, inputs, zero).o;
  for (double& i : inputs["i"].data) i += 400;
  expect_near(run(*mlstm, inputs, zero).o, far,
              1e-9);  // a logarithm of 800 is itself rounded by 1e-13
}

TEST_F(Families, MlstmIsGlaOverItsNormaliser) {
  const auto mlstm = make_mlstm();
  Inputs inputs = make_inputs(*mlstm, kDims, Style::random, 16);
  inputs["i"] = Array({kDims.T, kDims.Hv}, 0.0);
  const Array Cn = run(*mlstm, inputs, Array(mlstm->state_shape(kDims))).S;
  Inputs gla = inputs;
  gla["g"] = widened(inputs["log_f"], kDims.dk);
  const Array C = run(*make_gla(), gla, Array({kDims.Hv, kDims.dk, kDims.dv})).S;
  for (int64_t h = 0; h < kDims.Hv; ++h)
    for (int64_t i = 0; i < kDims.dk; ++i)
      for (int64_t j = 0; j < kDims.dv; ++j)
        EXPECT_NEAR(Cn(h, i, j), C(h, i, j) / std::sqrt(kDims.dk), 1e-12);
}

TEST_F(Families, TttLinearWithoutNormIsTheDeltaRuleTowardsVMinusK) {
  const auto ttt = make_ttt_linear_without_norm();
  const Dims dims = ttt->fit(kDims);
  Inputs inputs = make_inputs(*ttt, dims, Style::random, 17);
  Inputs delta = inputs;
  delta["beta"] = inputs["eta"];
  for (int64_t t = 0; t < dims.T; ++t)
    for (int64_t h = 0; h < dims.Hv; ++h)
      delta["v"].set_row(inputs["v"].row(t, h) - inputs["k"].row(t, 0), t, h);
  const Array S0 = make_state(*ttt, dims, 18);
  expect_near(run(*ttt, inputs, S0, dims).S, run(*make_delta_net(), delta, S0, dims).S);
}

TEST_F(Families, TttLinearStepsDownTheGradientOfItsLoss) {
  const auto ttt = make_ttt_linear();
  Dims dims = ttt->fit(kDims);
  dims.T = 1;
  dims.Hv = 1;
  Inputs inputs = make_inputs(*ttt, dims, Style::random, 19);
  inputs["q"] = inputs["k"];
  const Array W = make_state(*ttt, dims, 20);
  // With η = 0 the output is f(k; W): differences of the loss ½‖f − v‖² give its gradient.
  const double eta = inputs["eta"](0, 0), step = 1e-5;
  inputs["eta"](0, 0) = 0;
  const auto loss = [&](const Array& at) {
    const Vector error = run(*ttt, inputs, at, dims).o.row(0, 0) - inputs["v"].row(0, 0);
    return dot(error, error) / 2;
  };
  Array want = W;
  for (size_t i = 0; i < W.data.size(); ++i) {
    Array up = W, down = W;
    up.data[i] += step;
    down.data[i] -= step;
    want.data[i] -= eta * (loss(up) - loss(down)) / (2 * step);
  }
  inputs["eta"](0, 0) = eta;
  const Array got = run(*ttt, inputs, W, dims).S;
  for (size_t i = 0; i < W.data.size(); ++i) EXPECT_NEAR(got.data[i], want.data[i], 1e-7);
}

// spec/kernels.md section D, cases 6, 14 and 15 in their smallest form.
TEST_F(Families, TheStateIsKeysByValues) {
  const Dims dims{.T = 8, .Hk = 1, .Hv = 1, .dk = 5, .dv = 80};
  Inputs inputs = make_inputs(*gdn, dims, Style::no_decay, 21);
  for (const char* name : {"q", "k"})
    for (double& x : inputs.at(name).data) x = 0;
  Array state({1, 5, 80});
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t j = 0; j < 80; ++j) state(0, i, j) = i + 1000.0 * j;
  const Result result = run(*gdn, inputs, state, dims);
  EXPECT_EQ(result.S(0, 3, 77), 77003);
  for (const double x : result.o.data) EXPECT_EQ(x, 0);
}

TEST_F(Families, AWriteOfOneReplacesTheValueOfAKey) {
  const Dims dims{.T = 2, .Hk = 1, .Hv = 1, .dk = 4, .dv = 3};
  Inputs inputs = make_inputs(*gdn, dims, Style::equal_keys, 22);
  for (double& beta : inputs["beta"].data) beta = 1;
  for (double& g : inputs["g"].data) g = 0;
  inputs["q"] = map_elements(inputs["k"], [](double x) { return 2 * x; });  // the scale is ½
  const Array o = run(*gdn, inputs, Array({1, 4, 3}), dims).o;
  for (int64_t j = 0; j < 3; ++j) EXPECT_NEAR(o(1, 0, j), inputs["v"](1, 0, j), 1e-12);
}

}  // namespace
}  // namespace hypic::reference
