#include "reference/ops/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

using Score = RouteArgs::Score;

template <class T>
Owned<T> values(const std::vector<double>& x, std::vector<int64_t> shape) {
  Owned<T> t(std::move(shape));
  std::transform(x.begin(), x.end(), t.memory.begin(), [](double e) { return static_cast<T>(e); });
  return t;
}

// Outputs of a route, poisoned before.
template <class T>
struct Routed {
  Routed(int64_t R, int64_t k) : experts({R, k}), weights({R, k}) {
    std::fill(experts.memory.begin(), experts.memory.end(), -7);
  }
  Owned<int32_t> experts;
  Owned<T> weights;
};

template <class T>
Routed<T> routed(RouteArgs args, int64_t k) {
  Routed<T> out(args.logits[0], k);
  args.experts = out.experts, args.weights = out.weights;
  route<T>(args);
  return out;
}

// By definition, one row, by repeated search.
struct PlainRoute {
  std::vector<int> experts;
  std::vector<double> weights;
};

PlainRoute plain_route(const std::vector<double>& logits, const std::vector<double>& bias,
                       const RouteArgs& args, int k) {
  const int E = static_cast<int>(logits.size());
  std::vector<double> scores;
  double sum = 0;
  for (const double l : logits) sum += std::exp(l);
  for (const double l : logits)
    scores.push_back(args.score == Score::softmax ? std::exp(l) / sum : 1 / (1 + std::exp(-l)));
  std::vector<double> choice = scores;
  for (int e = 0; e < E && !bias.empty(); ++e) choice[e] += bias[e];
  const int width = E / args.groups;
  std::vector<bool> open(E, args.kept_groups == args.groups);
  for (int kept = 0; kept < args.kept_groups && args.kept_groups < args.groups; ++kept) {
    int best = -1;
    double most = 0;
    for (int g = 0; g < args.groups; ++g) {
      if (open[g * width]) continue;
      std::vector<double> group(choice.begin() + g * width, choice.begin() + (g + 1) * width);
      std::sort(group.rbegin(), group.rend());
      const double total = group[0] + (width > 1 ? group[1] : 0);
      if (best < 0 || total > most) best = g, most = total;
    }
    for (int i = 0; i < width; ++i) open[best * width + i] = true;
  }
  PlainRoute out;
  double total = 0;
  for (int j = 0; j < k; ++j) {
    int best = -1;
    for (int e = 0; e < E; ++e)
      if (open[e] && (best < 0 || choice[e] > choice[best])) best = e;
    open[best] = false;
    out.experts.push_back(best);
    out.weights.push_back(scores[best]);
    total += scores[best];
  }
  for (double& w : out.weights) w *= args.scale / (args.renormalise ? total : 1);
  return out;
}

template <class T>
void check_routes() {
  std::mt19937 bits(
      1);  // the same cases in every run: float32 may see a tie where float64 sees none
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(bits() % (high - low + 1));
  };
  for (int trial = 0; trial < 500; ++trial) {
    const int groups = between(1, 4), width = between(1, 4), E = groups * width, R = between(0, 3);
    RouteArgs args{};
    args.groups = groups;
    args.kept_groups = between(1, groups);
    const int k = between(1, width * args.kept_groups);
    args.score = bits() % 2 ? Score::softmax : Score::sigmoid;
    args.renormalise = bits() % 2;
    args.scale = bits() % 2 ? 1 : 2.5;
    const Owned<T> logits = random<T>({R, E}, trial, 2), bias = random<T>({E}, 7, 0.3);
    args.logits = logits;
    const bool biased = bits() % 2;
    if (biased) args.bias = bias;
    const Routed<T> out = routed<T>(args, k);
    for (int r = 0; r < R; ++r) {
      const PlainRoute plain = plain_route(
          elements(logits.tensor.at(r)), biased ? elements(bias) : std::vector<double>{}, args, k);
      const std::vector<double> chosen = elements(out.experts.tensor.at(r));
      EXPECT_EQ(std::vector<int>(chosen.begin(), chosen.end()), plain.experts) << "trial " << trial;
      EXPECT_LE(distance(elements(out.weights.tensor.at(r)), plain.weights),
                sizeof(T) == 8 ? 1e-14 : 1e-5);
    }
  }
}

TEST(Route, IsItsDefinition) {
  check_routes<float>();
  check_routes<double>();
}

TEST(Route, ABiasChangesTheChoiceAndNotTheWeights) {
  const Owned<double> logits = values<double>({2, 1, 0, -1}, {1, 4}),
                      bias = values<double>({0, 0, 0, 5}, {4});
  RouteArgs args{.logits = logits, .score = Score::sigmoid, .renormalise = false};
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const Routed<double> plain = routed<double>(args, 2);
  EXPECT_EQ(elements(plain.experts), (std::vector<double>{0, 1}));
  EXPECT_LE(distance(elements(plain.weights), {sigmoid(2), sigmoid(1)}), 1e-15);
  args.bias = bias;
  const Routed<double> biased = routed<double>(args, 2);
  EXPECT_EQ(elements(biased.experts), (std::vector<double>{3, 0}));
  EXPECT_LE(distance(elements(biased.weights), {sigmoid(-1), sigmoid(2)}), 1e-15);
  args.renormalise = true;
  args.scale = 2.5;
  const double sum = sigmoid(-1) + sigmoid(2);
  EXPECT_LE(distance(elements(routed<double>(args, 2).weights),
                     {2.5 * sigmoid(-1) / sum, 2.5 * sigmoid(2) / sum}),
            1e-15);
}

TEST(Route, TheLowestIndexWinsATie) {
  const Owned<float> logits = values<float>({0, 1, 1, 1, 0, 1, /**/ 0, 0, 0, 0, 0, 0}, {2, 6});
  for (const Score score : {Score::softmax, Score::sigmoid}) {
    RouteArgs args{.logits = logits, .score = score, .renormalise = true};
    EXPECT_EQ(elements(routed<float>(args, 4).experts),
              (std::vector<double>{1, 2, 3, 5, 0, 1, 2, 3}));
    args.groups = 3, args.kept_groups = 2;  // {0 1} {1 1} {0 1}, and three alike
    EXPECT_EQ(elements(routed<float>(args, 4).experts),
              (std::vector<double>{1, 2, 3, 0, 0, 1, 2, 3}));
  }
}

// The best expert of all may be in a group that falls.
TEST(Route, GroupsAreJudgedByTheirTwoBest) {
  const Owned<double> logits = values<double>({3, -9, -9, /**/ 1, 1, -9, /**/ 0, 0, 0}, {1, 9});
  RouteArgs args{.logits = logits,
                 .score = Score::sigmoid,
                 .groups = 3,
                 .kept_groups = 1,
                 .renormalise = false};
  EXPECT_EQ(elements(routed<double>(args, 3).experts), (std::vector<double>{3, 4, 5}));
  args.kept_groups = 2;
  EXPECT_EQ(elements(routed<double>(args, 3).experts), (std::vector<double>{3, 4, 6}));
  args.kept_groups = 3;
  EXPECT_EQ(elements(routed<double>(args, 3).experts), (std::vector<double>{0, 3, 4}));
}

TEST(Route, SoftmaxOfLargeLogitsIsFinite) {
  const Owned<float> logits = values<float>({1000, 999, -1000, 0}, {1, 4});
  const Routed<float> out =
      routed<float>({.logits = logits, .score = Score::softmax, .renormalise = false}, 4);
  EXPECT_LE(
      distance(elements(out.weights), {1 / (1 + std::exp(-1.0)), 1 / (1 + std::exp(1.0)), 0, 0}),
      1e-6);
  const Owned<float> low =
      values<float>({-200, -200}, {1, 2});  // sigmoid underflows: nothing to divide by
  EXPECT_TRUE(finite(
      routed<float>({.logits = low, .score = Score::sigmoid, .renormalise = true}, 2).weights));
}

TEST(Route, RefusesWhatDoesNotFit) {
  const Owned<float> logits = random<float>({2, 6}, 1);
  const RouteArgs args{.logits = logits, .score = Score::softmax, .renormalise = true};
  const auto refused = [&](RouteArgs changed, int64_t k) {
    EXPECT_THROW(routed<float>(changed, k), InternalError);
  };
  EXPECT_NO_THROW(routed<float>(args, 6));
  refused(args, 0);
  refused(args, 7);
  RouteArgs grouped = args;
  grouped.groups = 4;
  refused(grouped, 1);
  grouped.groups = 3, grouped.kept_groups = 4;
  refused(grouped, 1);
  grouped.kept_groups = 0;
  refused(grouped, 1);
  grouped.kept_groups = 1;
  refused(grouped, 3);
  const Owned<float> bias = random<float>({5}, 1);
  RouteArgs biased = args;
  biased.bias = bias;
  refused(biased, 1);
  const Owned<double> wide = random<double>({2, 6}, 1);
  RouteArgs other = args;
  other.logits = wide;
  refused(other, 1);
}

// Σ_j w_j · down_e(act(gate_e x) ⊙ up_e x), by loops in float64.
template <class T>
std::vector<double> plain_experts(const Owned<T>& x, const Owned<int32_t>& chosen,
                                  const Owned<T>& weights, const Owned<T>& up, const Owned<T>& down,
                                  bool gated, Activation activation) {
  const int64_t R = x.tensor[0], N = x.tensor[1], k = chosen.tensor[1], I = down.tensor[2],
                U = up.tensor[1];
  std::vector<double> out(R * N);
  for (int64_t r = 0; r < R; ++r)
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = chosen[r * k + j];
      const auto product = [&](int64_t row) {
        double sum = 0;
        for (int64_t n = 0; n < N; ++n)
          sum += static_cast<double>(up[(e * U + row) * N + n]) * x[r * N + n];
        return sum;
      };
      for (int64_t i = 0; i < I; ++i) {
        const double first = product(i);
        double inner = activation == Activation::silu ? first / (1 + std::exp(-first))
                                                      : std::pow(std::max(first, 0.0), 2);
        if (gated) inner *= product(I + i);
        for (int64_t n = 0; n < N; ++n)
          out[r * N + n] +=
              static_cast<double>(weights[r * k + j]) * inner * down[(e * N + n) * I + i];
      }
    }
  return out;
}

template <class T>
void check_experts() {
  const int64_t R = 7, N = 9, E = 5, I = 6;
  for (const bool gated : {true, false})
    for (const int64_t k : {int64_t{1}, int64_t{3}, E}) {
      const Activation activation = gated ? Activation::silu : Activation::relu2;
      const Owned<T> x = random<T>({R, N}, 1), weights = random<T>({R, k}, 2),
                     up = random<T>({E, gated ? 2 * I : I, N}, 3), down = random<T>({E, N, I}, 4),
                     out({R, N});
      Owned<int32_t> chosen({R, k});
      for (int64_t i = 0; i < R * k; ++i) chosen[i] = static_cast<int32_t>((i / k * 2 + i % k) % E);
      std::fill_n(chosen.memory.begin() + k, k, 4);  // a row may name an expert again and again
      experts<T>({x, chosen, weights, up, down, gated, activation, out});
      EXPECT_LE(
          distance(elements(out), plain_experts(x, chosen, weights, up, down, gated, activation)),
          sizeof(T) == 8 ? 1e-13 : 1e-5)
          << (gated ? "gated" : "ungated") << ", k " << k;
      // A row has the same bits alone.
      const Owned<T> alone({1, N});
      experts<T>({x.tensor.rows(5, 6), chosen.tensor.rows(5, 6), weights.tensor.rows(5, 6), up,
                  down, gated, activation, alone});
      EXPECT_EQ(elements(alone.tensor.at(0)), elements(out.tensor.at(5)));
    }
}

TEST(Experts, AreTheirSum) {
  check_experts<float>();
  check_experts<double>();
}

TEST(Experts, RefuseWhatDoesNotFit) {
  const Owned<float> x = random<float>({2, 4}, 1), weights = random<float>({2, 1}, 2),
                     up = random<float>({3, 6, 4}, 3), down = random<float>({3, 4, 3}, 4),
                     out({2, 4});
  const auto run = [&](const std::vector<int32_t>& which, bool gated, const Tensor& to) {
    Owned<int32_t> chosen({2, 1});
    chosen.memory = which;
    chosen.tensor.data = chosen.memory.data();
    experts<float>({x, chosen, weights, up, down, gated, Activation::silu, to});
  };
  EXPECT_NO_THROW(run({0, 2}, true, out));
  EXPECT_THROW(run({0, 2}, false, out), InternalError);  // up has gates
  EXPECT_THROW(run({0, 3}, true, out), InternalError);
  EXPECT_THROW(run({-1, 0}, true, out), InternalError);
  EXPECT_THROW(run({0, 2}, true, x), InternalError);  // not in place
  EXPECT_THROW(run({0, 2}, true, Owned<double>({2, 4})), InternalError);
}

}  // namespace
}  // namespace hypic::reference
