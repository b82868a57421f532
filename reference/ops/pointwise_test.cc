#include "reference/ops/pointwise.h"

#include <gtest/gtest.h>

#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

Owned<double> values(const std::vector<double>& x, std::vector<int64_t> shape) {
  Owned<double> t(std::move(shape));
  std::copy(x.begin(), x.end(), t.memory.begin());
  return t;
}

TEST(Embedding, PicksRowsAndChecksBounds) {
  const Owned<float> table = random<float>({5, 3}, 1), out({4, 3});
  embedding<float>({integers({4, 0, 0, 2}), table, out});
  for (const auto& [r, token] : {std::pair{0, 4}, {1, 0}, {2, 0}, {3, 2}})
    EXPECT_EQ(elements(out.tensor.at(r)), elements(table.tensor.at(token)));
  EXPECT_THROW(embedding<float>({integers({4, 0, 5, 2}), table, out}), InternalError);
  EXPECT_THROW(embedding<float>({integers({4, 0, -1, 2}), table, out}), InternalError);
  EXPECT_THROW(embedding<float>({integers({4, 0}), table, out}), InternalError);
  EXPECT_THROW(embedding<float>({integers({4, 0, 0, 2}), table, Owned<float>({4, 2})}),
               InternalError);
}

TEST(GatherRows, PicksRowsAndChecksBounds) {
  const Owned<double> x = random<double>({6, 4}, 1), out({2, 3});
  gather_rows<double>({x.tensor.columns(1, 4), integers({5, 1}), out});  // strided rows
  EXPECT_EQ(elements(out.tensor.at(0)), elements(x.tensor.at(5).columns(1, 4)));
  EXPECT_EQ(elements(out.tensor.at(1)), elements(x.tensor.at(1).columns(1, 4)));
  EXPECT_THROW(gather_rows<double>({x.tensor.columns(1, 4), integers({6, 1}), out}), InternalError);
  EXPECT_NO_THROW(gather_rows<double>({x, integers({}), Owned<double>({0, 4})}));
}

TEST(Add, IsInPlace) {
  const Owned<double> x = values({1, 2, 3, 4}, {2, 2}), y = values({10, 20, 30, 40}, {2, 2});
  add<double>({x, y});
  EXPECT_EQ(elements(x), (std::vector<double>{11, 22, 33, 44}));
  EXPECT_EQ(elements(y), (std::vector<double>{10, 20, 30, 40}));
  EXPECT_THROW(add<double>({x, Owned<double>({1, 4})}), InternalError);
  EXPECT_THROW(add<double>({x, Owned<float>({2, 2})}), InternalError);
}

TEST(GateMul, IsItsDefinition) {
  const Owned<double> x = values({2, 2, 2}, {1, 3}), gate = values({0, 1.5, -1000}, {1, 3}),
                      out({1, 3});
  gate_mul<double>({x, gate, Activation::identity, out});
  EXPECT_LE(distance(elements(out), {0, 3, -2000}), 1e-15);
  gate_mul<double>({x, gate, Activation::sigmoid, out});
  EXPECT_LE(distance(elements(out), {1, 2 / (1 + std::exp(-1.5)), 0}), 1e-15);
  gate_mul<double>({x, gate, Activation::silu, out});
  EXPECT_LE(distance(elements(out), {0, 3 / (1 + std::exp(-1.5)), 0}), 1e-15);
}

// As the forward calls it: x dense, the gate the second half of each head of q_proj.
TEST(GateMul, HeadsMayBeStrided) {
  const Owned<float> x = random<float>({3, 4, 5}, 1), both = random<float>({3, 4, 10}, 2),
                     out({3, 4, 5});
  gate_mul<float>({x, both.tensor.columns(5, 10), Activation::sigmoid, out});
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t i = 0; i < 5; ++i) {
        const double gate = both[(r * 4 + h) * 10 + 5 + i], factor = x[(r * 4 + h) * 5 + i];
        EXPECT_NEAR(out[(r * 4 + h) * 5 + i], factor / (1 + std::exp(-gate)), 1e-6);
      }
  const std::vector<double> expected = elements(out), q = elements(both.tensor.columns(0, 5));
  gate_mul<float>({x, both.tensor.columns(5, 10), Activation::sigmoid, x});
  EXPECT_EQ(elements(x), expected);
  EXPECT_EQ(elements(both.tensor.columns(0, 5)), q);
  EXPECT_THROW(gate_mul<float>({x, both, Activation::sigmoid, x}), InternalError);
  EXPECT_THROW(gate_mul<float>({x, x, Activation::sigmoid, Owned<double>({3, 4, 5})}),
               InternalError);
  EXPECT_THROW(gate_mul<float>({x, Owned<float>({3, 5, 4}), Activation::sigmoid, x}),
               InternalError);
}

TEST(DecayGate, IsMinusExpTimesSoftplus) {
  const std::vector<double> inputs = {-1000, -50, -1, 0, 1, 19.99, 20.01, 37, 1000};
  const int64_t n = static_cast<int64_t>(inputs.size());
  const Owned<double> A_log = values({0, 1.5}, {2}), dt_bias = values({0, 0.25}, {2}), out({n, 2});
  Owned<double> x({n, 2});
  std::vector<double> expected;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < 2; ++h) {
      x[i * 2 + h] = inputs[i];
      const long double sum = static_cast<long double>(inputs[i]) + dt_bias[h];
      const long double softplus = sum > 100 ? sum : std::log1p(std::exp(sum));
      expected.push_back(
          static_cast<double>(-std::exp(static_cast<long double>(A_log[h])) * softplus));
    }
  decay_gate<double>({x, A_log, dt_bias, out});
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE(std::abs(out[i] - expected[i]), 1e-14 * std::abs(expected[i]))
        << "x " << inputs[i / 2];

  Owned<float> single({n, 2}), result({n, 2}), A_single({2}), bias_single({2});
  std::copy(x.memory.begin(), x.memory.end(), single.memory.begin());
  std::copy(A_log.memory.begin(), A_log.memory.end(), A_single.memory.begin());
  std::copy(dt_bias.memory.begin(), dt_bias.memory.end(), bias_single.memory.begin());
  decay_gate<float>({single, A_single, bias_single, result});
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_LE(std::abs(result[i] - expected[i]), 1e-5 * std::abs(expected[i]) + 1e-37)
        << "x " << inputs[i / 2];
  EXPECT_THROW(decay_gate<double>({x, Owned<double>({3}), dt_bias, out}), InternalError);
}

TEST(Sigmoid, AtBothEnds) {
  const Owned<double> x = values({-1000, 0, 1000}, {1, 3}), out({1, 3});
  sigmoid<double>({x, out});
  EXPECT_EQ(elements(out), (std::vector<double>{0, 0.5, 1}));
}

TEST(Argmax, TheLowestIndexWinsATie) {
  const Owned<double> x = values(
      {1, 3, 3, 2, /**/ 5, 5, 5, 5, /**/ -4, -3, -2, -1, /**/ -INFINITY, 0, -0.0, -1}, {4, 4});
  const Owned<int32_t> out = integers({-1, -1, -1, -1});
  argmax<double>({x, out});
  EXPECT_EQ(out.memory, (std::vector<int32_t>{1, 0, 3, 1}));
  EXPECT_THROW(argmax<double>({x, integers({0, 0, 0})}), InternalError);
}

}  // namespace
}  // namespace hypic::reference
