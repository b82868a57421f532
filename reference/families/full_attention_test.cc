#include "reference/families/full_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace hypic::reference {
namespace {

class FullAttentionTest : public testing::Test {
 protected:
  static constexpr int64_t R = 7, Hq = 4, Hkv = 2, D = 8;

  FullAttentionTest() {
    in.q = random({R, Hq, D});
    in.k = random({R, Hkv, D});
    in.v = random({R, Hkv, D});
    in.q_positions.resize(R);
    std::iota(in.q_positions.begin(), in.q_positions.end(), 0);
    in.k_positions = in.q_positions;
  }

  Array random(std::vector<int64_t> shape) {
    Array x(std::move(shape));
    for (double& element : x.data) element = normal_(bits_);
    return x;
  }

  static double difference(const Array& a, const Array& b) {
    double worst = 0;
    for (size_t i = 0; i < a.data.size(); ++i)
      worst = std::max(worst, std::abs(a.data[i] - b.data[i]));
    return worst;
  }

  FullAttention layer{.scale = 1 / std::sqrt(8.0)};
  FullAttentionInputs in;

 private:
  std::mt19937_64 bits_{1};
  std::normal_distribution<double> normal_;
};

TEST_F(FullAttentionTest, TwoRowsByHand) {
  FullAttentionInputs two;
  two.q = Array({2, 1, 1}, 1.0);
  two.k = two.v = Array({2, 1, 1});
  two.k.data = {0, std::log(3.0)};  // weights 1/4 and 3/4 at scale 1
  two.v.data = {10, 20};
  const Array out = full_attention({.scale = 1}, two);
  EXPECT_NEAR(out(0, 0, 0), 10, 1e-12);
  EXPECT_NEAR(out(1, 0, 0), 17.5, 1e-12);
}

TEST_F(FullAttentionTest, QueryHeadsShareTheKeyHeadOfTheirGroup) {
  const Array before = full_attention(layer, in);
  for (int64_t r = 0; r < R; ++r) in.v.set_row(Vector(0.0, D), r, 1);
  const Array after = full_attention(layer, in);
  for (int64_t r = 0; r < R; ++r)
    for (int64_t j = 0; j < D; ++j) {
      EXPECT_EQ(after(r, 1, j), before(r, 1, j));
      EXPECT_EQ(after(r, 2, j), 0);
    }
}

TEST_F(FullAttentionTest, OnlyDistancesMatter) {
  layer.rotary_dim = 4;
  const Array here = full_attention(layer, in);
  for (auto* positions : {&in.q_positions, &in.k_positions})
    for (int64_t& position : *positions) position += 1000;
  EXPECT_LE(difference(full_attention(layer, in), here), 1e-11);
  for (int64_t& position : in.k_positions) position += 1;
  EXPECT_GT(difference(full_attention(layer, in), here), 1e-3);
}

TEST_F(FullAttentionTest, RotatesNeoXPairsOfTheLeadingDimsOnly) {
  // q = e₀ at position p, k = e₂ at 0: the pair (0, 2) of four rotary dims turns q's e₀ towards e₂.
  FullAttentionInputs pair;
  pair.q = pair.k = pair.v = Array({2, 1, 8});
  pair.q(1, 0, 0) = pair.k(0, 0, 2) = pair.v(0, 0, 0) = 1;
  pair.q_positions = {0, 1};
  pair.k_positions = {0, 1};
  const double logit = std::sin(1.0);
  const Array out = full_attention({.scale = 1, .rotary_dim = 4}, pair);
  EXPECT_NEAR(out(1, 0, 0), std::exp(logit) / (std::exp(logit) + 1), 1e-12);
}

TEST_F(FullAttentionTest, NormMakesTheLengthOfQAndKIrrelevant) {
  in.q_weight = in.k_weight = Array({D}, 0.2);
  layer.plus_one = true;
  layer.eps = 0;
  const Array before = full_attention(layer, in);
  for (double& x : in.q.data) x *= 5;
  EXPECT_LE(difference(full_attention(layer, in), before), 1e-12);
  layer.plus_one = false;
  for (double& w : in.q_weight.data) w += 1;
  for (double& w : in.k_weight.data) w += 1;
  EXPECT_LE(difference(full_attention(layer, in), before), 1e-12);
}

TEST_F(FullAttentionTest, TheGateIsASigmoid) {
  const Array open = full_attention(layer, in);
  in.gate = Array(in.q.shape, 0.0);
  const Array half = full_attention(layer, in);
  for (size_t i = 0; i < open.data.size(); ++i) EXPECT_NEAR(half.data[i], open.data[i] / 2, 1e-15);
}

TEST_F(FullAttentionTest, ARowThatSeesNothingIsZero) {
  in.sees = [](int64_t i, int64_t j) { return i > 0 && j < i; };
  const Array out = full_attention(layer, in);
  for (int64_t h = 0; h < Hq; ++h)
    for (int64_t j = 0; j < D; ++j) {
      EXPECT_EQ(out(0, h, j), 0);
      EXPECT_NEAR(out(1, h, j), in.v(0, h / 2, j), 1e-12);
    }
}

TEST_F(FullAttentionTest, CausalIsTheDefault) {
  const Array before = full_attention(layer, in);
  in.k.set_row(Vector(100.0, D), R - 1, 0);
  const Array after = full_attention(layer, in);
  for (int64_t r = 0; r + 1 < R; ++r) EXPECT_EQ(after(r, 0, 0), before(r, 0, 0));
  EXPECT_NE(after(R - 1, 0, 0), before(R - 1, 0, 0));
}

}  // namespace
}  // namespace hypic::reference
