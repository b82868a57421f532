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

TEST(Embedding, Scales) {
  const auto check = [](auto zero) {
    using T = decltype(zero);
    const Owned<T> table = random<T>({5, 3}, 1), out({2, 3});
    embedding<T>({integers({4, 1}), table, out, 12});
    for (const auto& [r, token] : {std::pair{0, 4}, {1, 1}})
      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(out[r * 3 + i], 12 * table[token * 3 + i]);
  };
  check(float{});
  check(double{});
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

TEST(Add, Scales) {
  const Owned<double> x = values({1, 2, 3, 4}, {2, 2}), y = values({10, 20, 30, 40}, {2, 2});
  add<double>({x, y, 3.5, -0.25});
  EXPECT_EQ(elements(x), (std::vector<double>{1, 2, 3, 4}));
  add<double>({x, y, 0, 1});
  EXPECT_EQ(elements(x), elements(y));
}

// The gate of a shared expert is one number a row; without x, the activation alone.
TEST(GateMul, OneGateForARowOrNoFactor) {
  const auto check = [](auto zero) {
    using T = decltype(zero);
    const double tolerance = sizeof(T) == 8 ? 1e-15 : 1e-6;
    const Owned<T> x = random<T>({3, 5}, 1), one = random<T>({3, 1}, 2),
                   gate = random<T>({3, 5}, 3, 3), out({3, 5});
    gate_mul<T>({x, one, Activation::sigmoid, out});
    std::vector<double> expected;
    for (int64_t i = 0; i < 15; ++i)
      expected.push_back(x[i] / (1 + std::exp(-static_cast<double>(one[i / 5]))));
    EXPECT_LE(distance(elements(out), expected), tolerance);
    for (const Activation activation :
         {Activation::identity, Activation::silu, Activation::sigmoid, Activation::relu2}) {
      const Owned<T> plain({3, 5});
      gate_mul<T>({{}, gate, activation, plain});
      expected.clear();
      for (int64_t i = 0; i < 15; ++i) {
        const double g = gate[i], sigmoid = 1 / (1 + std::exp(-g));
        expected.push_back(activation == Activation::identity  ? g
                           : activation == Activation::silu    ? g * sigmoid
                           : activation == Activation::sigmoid ? sigmoid
                                                               : std::pow(std::max(g, 0.0), 2));
      }
      EXPECT_LE(distance(elements(plain), expected), tolerance) << static_cast<int>(activation);
    }
    const std::vector<double> relu2 = expected;
    gate_mul<T>({{}, gate, Activation::relu2, gate});  // in place
    EXPECT_LE(distance(elements(gate), relu2), tolerance);
    EXPECT_THROW(gate_mul<T>({{}, one, Activation::sigmoid, out}), InternalError);
    EXPECT_THROW(gate_mul<T>({x, random<T>({2, 1}, 2), Activation::sigmoid, out}), InternalError);
    EXPECT_THROW(gate_mul<T>({x, random<T>({3, 2}, 2), Activation::sigmoid, out}), InternalError);
  };
  check(float{});
  check(double{});
}

// [H] and [H, D]: a head's A for all of its channels; Δ clamped and handed out.
TEST(DecayGate, ByHeadOrChannelWithStepsAndLimits) {
  const auto check = [](auto zero) {
    using T = decltype(zero);
    for (const int64_t D : {0, 1, 3})  // 0: [R, H]
      for (const bool limits : {false, true}) {
        const int64_t R = 4, H = 3, C = std::max<int64_t>(D, 1);
        const std::vector<int64_t> shape = D ? std::vector{R, H, D} : std::vector{R, H};
        const Owned<T> x = random<T>(shape, 1, 3), A_log = random<T>({H}, 2),
                       bias = random<T>(D ? std::vector{H, D} : std::vector{H}, 3), out(shape),
                       step(shape);
        DecayGateArgs args{x, A_log, bias, out, step};
        if (limits) args.step_min = 0.5, args.step_max = 1.5;
        decay_gate<T>(args);
        std::vector<double> steps, expected;
        int clamped = 0;
        for (int64_t i = 0; i < R * H * C; ++i) {
          double delta = std::log1p(std::exp(static_cast<double>(x[i]) + bias[i % (H * C)]));
          clamped += delta < 0.5 || delta > 1.5;
          if (limits) delta = std::min(std::max(delta, 0.5), 1.5);
          steps.push_back(delta);
          expected.push_back(-std::exp(static_cast<double>(A_log[i / C % H])) * delta);
        }
        EXPECT_GT(clamped, 0);
        EXPECT_LE(distance(elements(step), steps), sizeof(T) == 8 ? 1e-14 : 1e-6) << "D " << D;
        EXPECT_LE(distance(elements(out), expected), sizeof(T) == 8 ? 1e-14 : 1e-6) << "D " << D;
      }
    // What is broken before stays so: no limit hides it.
    const Owned<T> broken({1, 2}), A_log = random<T>({2}, 1), bias = random<T>({2}, 2);
    const Owned<T> out = random<T>({1, 2}, 3), step = random<T>({1, 2}, 4);
    decay_gate<T>({broken, A_log, bias, out, step, 0.5, 1.5});
    for (int64_t i = 0; i < 2; ++i) EXPECT_TRUE(std::isnan(out[i]) && std::isnan(step[i]));
  };
  check(float{});
  check(double{});
  const Owned<double> x = random<double>({2, 3, 4}, 1), out({2, 3, 4}),
                      A_log = random<double>({3}, 2);
  EXPECT_THROW(decay_gate<double>({x, A_log, random<double>({3}, 3), out}), InternalError);
  EXPECT_THROW(decay_gate<double>({x, random<double>({4}, 2), random<double>({3, 4}, 3), out}),
               InternalError);
  EXPECT_THROW(
      decay_gate<double>({x, A_log, random<double>({3, 4}, 3), out, Owned<double>({2, 3})}),
      InternalError);
  const Owned<double> none({0, 3, 4});
  EXPECT_NO_THROW(decay_gate<double>({none, A_log, random<double>({3, 4}, 3), none, none}));
}

TEST(Sigmoid, Scales) {
  const Owned<double> x = values({-1, 0, 2}, {1, 3}), out({1, 3});
  sigmoid<double>({x, out, 2});
  EXPECT_LE(distance(elements(out), {2 / (1 + std::exp(1.0)), 1, 2 / (1 + std::exp(-2.0))}), 1e-15);
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

}  // namespace
}  // namespace hypic::reference
