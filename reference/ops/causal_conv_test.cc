#include "reference/ops/causal_conv.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

constexpr int64_t kC = 3, kSlots = 4, kOperators = 3;
using Rows = std::vector<std::vector<double>>;

struct Conv {
  explicit Conv(int64_t W, int64_t rows, uint64_t seed = 1)
      : W(W),
        w(random<double>({kC, W}, 99)),
        window({kSlots, W - 1, kC}),
        tail({kOperators, W - 1, kC}),
        x(random<double>({rows, kC}, seed)),
        out({rows, kC}) {}

  // The rows of x from `first` on.
  void run(const ChainTable& table, int64_t first = 0,
           Activation activation = Activation::identity) {
    const int64_t end = first + table.row_count();
    causal_conv<double>(
        {x.tensor.rows(first, end), w, activation, window, tail, out.tensor.rows(first, end)},
        table);
  }
  std::vector<double> row(int64_t r) const { return elements(x.tensor.at(r)); }

  // Σ_j w[·, j] x_{t−W+1+j}, zero before the history begins.
  std::vector<double> by_definition(const Rows& history) const {
    std::vector<double> y(kC);
    for (int64_t j = 0; j < W; ++j) {
      const int64_t t = static_cast<int64_t>(history.size()) - W + j;
      for (int64_t c = 0; c < kC && t >= 0; ++c) y[c] += w[c * W + j] * history[t][c];
    }
    return y;
  }
  // Its last W−1 rows.
  std::vector<double> window_of(const Rows& history) const {
    const int64_t n = static_cast<int64_t>(history.size());
    std::vector<double> rows;
    for (int64_t t = n - (W - 1); t < n; ++t)
      for (int64_t c = 0; c < kC; ++c) rows.push_back(t >= 0 ? history[t][c] : 0);
    return rows;
  }

  int64_t W;
  Owned<double> w, window, tail, x, out;
};

void put(const std::vector<double>& row, const Tensor& to) {
  std::copy(row.begin(), row.end(), to.as<double>());
}

TEST(CausalConv, AnyChainIsTheSumOverItsHistory) {
  EXPECT_TRUE(rc::check("outputs, windows and saved windows", [] {
    Conv conv(*rc::gen::inRange(1, 6), 60);
    std::vector<ChainItem> items;
    Rows history;
    const Chain chain{.state = 0, .fresh = *rc::gen::arbitrary<bool>()};
    for (int64_t i = 0; !chain.fresh && i < conv.W - 1; ++i) {
      history.push_back(elements(random<double>({kC}, 50 + i)));
      put(history.back(), conv.window.tensor.at(0).at(i));
    }
    std::vector<double> expected, saved;
    int32_t rows = 0;
    const int count = *rc::gen::inRange(0, 7), save_after = *rc::gen::inRange(0, 7);
    for (int i = 0, jumps = 0; i < count; ++i) {
      if (jumps < kOperators && *rc::gen::arbitrary<bool>()) {
        const int32_t op = jumps++,
                      span = *rc::gen::elementOf(std::vector<int32_t>{0, 1, 2, 3, 10});
        items.push_back(jump(op, span));
        for (int32_t t = 0; t < span; ++t) {
          history.push_back(elements(random<double>({kC}, 1000 * i + t)));
          const int64_t place = conv.W - 1 - (span - t);  // what is in front of it stays NaN
          if (place >= 0) put(history.back(), conv.tail.tensor.at(op).at(place));
        }
      } else {
        const int32_t n = *rc::gen::inRange(0, 6);
        const bool keep = *rc::gen::inRange(0, 3) > 0;
        items.push_back(keep ? step(n) : without_keep(step(n)));
        const Rows before = history;
        for (int32_t t = 0; t < n; ++t) {
          history.push_back(conv.row(rows++));
          for (const double y : conv.by_definition(history)) expected.push_back(y);
        }
        if (!keep) history = before;
      }
      if (i == save_after) {
        items.back().save = 1;
        saved = conv.window_of(history);
      }
    }
    conv.run(one_chain(chain, items));
    RC_ASSERT(distance(elements(conv.out.tensor.rows(0, rows)), expected) <= 1e-14);
    RC_ASSERT(elements(conv.window.tensor.at(0)) == conv.window_of(history));
    if (save_after < count) RC_ASSERT(elements(conv.window.tensor.at(1)) == saved);
  }));
}

TEST(CausalConv, ActivatesTheSum) {
  Conv conv(4, 9), plain(4, 9);
  conv.run(one_chain({.state = 0}, {step(9)}), 0, Activation::silu);
  plain.run(one_chain({.state = 0}, {step(9)}));
  for (int64_t i = 0; i < 9 * kC; ++i)
    EXPECT_NEAR(conv.out[i], plain.out[i] / (1 + std::exp(-plain.out[i])), 1e-15);
}

// Added before the activation; windows and tails stay raw.
TEST(CausalConv, AddsABias) {
  const auto check = [](auto zero) {
    using T = decltype(zero);
    const int64_t R = 7, W = 3;
    const Owned<T> x = random<T>({R, kC}, 1), w = random<T>({kC, W}, 2), bias = random<T>({kC}, 3),
                   out({R, kC}), window({1, W - 1, kC}), tail({1, W - 1, kC});
    causal_conv<T>({x, w, Activation::silu, window, tail, out, bias},
                   one_chain({.state = 0}, {step(3), step(4, 0)}));
    std::vector<double> expected;
    for (int64_t r = 0; r < R; ++r)
      for (int64_t c = 0; c < kC; ++c) {
        double sum = bias[c];
        for (int64_t j = 0; j < W; ++j)
          if (r - W + 1 + j >= 0)
            sum += static_cast<double>(w[c * W + j]) * x[(r - W + 1 + j) * kC + c];
        expected.push_back(sum / (1 + std::exp(-sum)));
      }
    EXPECT_LE(distance(elements(out), expected), sizeof(T) == 8 ? 1e-14 : 1e-6);
    EXPECT_EQ(elements(window.tensor.at(0)), elements(x.tensor.rows(R - W + 1, R)));
    EXPECT_EQ(elements(tail.tensor.at(0)), elements(x.tensor.rows(R - W + 1, R)));
    const ChainTable table = one_chain({.state = 0}, {step(7)});
    const Tensor wrong = random<T>({kC + 1}, 3);
    EXPECT_THROW(causal_conv<T>({x, w, Activation::silu, window, tail, out, wrong}, table),
                 InternalError);
  };
  check(float{});
  check(double{});
}

// The operator's tail holds the last min(W−1, span) raw rows of its span alone, zero in front.
TEST(CausalConv, CapturesTheTailOfTheSpan) {
  for (int32_t span = 0; span <= 6; ++span) {
    Conv conv(4, 2 + span + 2);
    conv.run(one_chain({.state = 0}, {step(2), step(span, 1), step(2)}));
    Rows rows;
    for (int32_t t = 0; t < span; ++t) rows.push_back(conv.row(2 + t));
    EXPECT_EQ(elements(conv.tail.tensor.at(1)), conv.window_of(rows)) << "span " << span;
    EXPECT_TRUE(std::isnan(conv.tail[0]));
  }
}

TEST(CausalConv, CapturesInPartsAsWhole) {
  Conv whole(4, 9);
  whole.run(one_chain({.state = 0}, {step(2), step(7, 1)}));
  for (int32_t first = 0; first <= 3; ++first)
    for (int32_t second = 0; second <= 7 - first; ++second) {
      Conv parts(4, 9);
      int32_t done = 0;
      const auto forward = [&](const std::vector<ChainItem>& items) {
        const ChainTable table = one_chain({.state = 0, .fresh = done == 0}, items, done);
        parts.run(table, done);
        done += table.row_count();
      };
      forward({step(2), step(first, 1)});
      forward({step(second, 1, first)});
      forward({step(7 - first - second, 1, first + second)});
      EXPECT_EQ(elements(parts.out), elements(whole.out)) << first << " + " << second;
      EXPECT_EQ(elements(parts.tail.tensor.at(1)), elements(whole.tail.tensor.at(1)))
          << first << " + " << second;
      EXPECT_EQ(elements(parts.window.tensor.at(0)), elements(whole.window.tensor.at(0)));
    }
}

TEST(CausalConv, ChainsOfABatchAreThoseAlone) {
  Conv both(4, 10), alone(4, 10);
  ChainTable table;
  add_chain(table, {.state = 2}, {step(4, 0)});
  add_chain(table, {.level = 1, .state = 3}, {jump(0, 4), step(6)});
  std::fill_n(both.x.memory.begin(), 4 * kC, NAN);  // a neighbour spoils nothing but jumps over it
  std::copy_n(both.x.memory.begin() + 4 * kC, 6 * kC, alone.x.memory.begin());
  table.items[1] = jump(1, 0);
  both.run(table);
  alone.run(one_chain({.state = 0}, {step(6)}));
  EXPECT_EQ(elements(both.out.tensor.rows(4, 10)), elements(alone.out.tensor.rows(0, 6)));
  EXPECT_EQ(elements(both.window.tensor.at(3)), elements(alone.window.tensor.at(0)));
}

// A chain jumps over the rows of one before it in the same forward.
TEST(CausalConv, JumpsOverWhatThisForwardMakes) {
  Conv reused(4, 8), straight(4, 8);
  ChainTable table;
  add_chain(table, {.level = 0, .state = 0}, {step(5, 0)});
  add_chain(table, {.level = 1, .state = 1}, {jump(0, 5), step(3)});
  reused.run(table);
  straight.run(one_chain({.state = 0}, {step(8)}));
  EXPECT_EQ(elements(reused.out), elements(straight.out));
}

TEST(CausalConv, RefusesWhatDoesNotFit) {
  const Conv c(4, 5);
  const ChainTable table = one_chain({.state = 0}, {step(5)});
  const auto run = [&](const Tensor& x, const Tensor& w, const Tensor& window, const Tensor& out) {
    causal_conv<double>({x, w, Activation::silu, window, c.tail, out}, table);
  };
  EXPECT_NO_THROW(run(c.x, c.w, c.window, c.out));
  EXPECT_THROW(run(c.x, c.w, c.window, c.x), InternalError);
  EXPECT_THROW(run(c.x, Owned<double>({kC, 3}), c.window, c.out), InternalError);
  EXPECT_THROW(run(c.x, c.w, Owned<double>({kSlots, 4, kC}), c.out), InternalError);
  EXPECT_THROW(run(c.x, Owned<float>({kC, 4}), c.window, c.out), InternalError);
  EXPECT_THROW(run(Owned<double>({6, kC}), c.w, c.window, Owned<double>({6, kC})), InternalError);
}

}  // namespace
}  // namespace hypic::reference
