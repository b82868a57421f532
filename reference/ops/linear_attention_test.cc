// How the table of families runs over chains; that each cell is its family is the matter of
// reference/laws.
#include "reference/ops/linear_attention.h"

#include <gtest/gtest.h>

#include "reference/ops/testing.h"
#include "reference/ops/transfer_operator.h"

namespace hypic::reference {
namespace {

struct Cell {
  const char* name;
  Decay decay;
  Update update;
};
void PrintTo(const Cell& cell, std::ostream* out) { *out << cell.name; }

constexpr Cell kCells[] = {{"linear", Decay::none, Update::add},
                           {"scalar", Decay::scalar, Update::add},
                           {"diagonal", Decay::diagonal, Update::add},
                           {"elementwise", Decay::elementwise, Update::add},
                           {"delta", Decay::none, Update::delta},
                           {"scalar_delta", Decay::scalar, Update::delta},
                           {"diagonal_delta", Decay::diagonal, Update::delta},
                           {"scalar_delta_before", Decay::scalar, Update::delta_before}};

constexpr int64_t kHk = 2, kHv = 4, kDk = 6, kDv = 5, kSlots = 4, kOperators = 3;

// A layer with its rows, slots and operators.
template <class T>
struct Layer {
  Layer(Cell cell, int64_t R, uint64_t seed = 1)
      : cell(cell),
        kind(operator_kind(cell.decay, cell.update)),
        q(random<T>({R, kHk, kDk}, seed)),
        k(random<T>({R, kHk, kDk}, seed + 1, 0.4)),
        v(random<T>({R, kHv, kDv}, seed + 2)),
        g(random<T>(g_shape(cell.decay, R), seed + 3, 0.3)),
        A(random<T>({kHv, kDk, kDv}, 77)),
        beta(random<T>({R, kHv}, seed + 4)),
        o({R, kHv, kDv}),
        state({kSlots, kHv, kDk, kDv}),
        log_scale({kOperators, kHv}),
        op_T(T_shape(kind)),
        U({kOperators, kHv, kDk, kDv}) {
    // Log decays are negative; in the elementwise cell the step is positive and A negative.
    for (T& x : g.memory) x = cell.decay == Decay::elementwise ? std::abs(x) : -std::abs(x);
    for (T& x : A.memory) x = -std::abs(x);
    for (T& x : beta.memory) x = 1 / (1 + std::exp(-x));
  }
  static std::vector<int64_t> g_shape(Decay decay, int64_t R) {
    if (decay == Decay::diagonal) return {R, kHv, kDk};
    if (decay == Decay::elementwise) return {R, kHv, kDv};
    return {R, kHv};
  }
  static std::vector<int64_t> T_shape(OperatorKind kind) {
    if (kind == OperatorKind::diagonal) return {kOperators, kHv, kDk};
    return {kOperators, kHv, kDk, kind == OperatorKind::elementwise ? kDv : kDk};
  }

  TransferOperator operators() const {
    TransferOperator pool{kind, {}, {}, U};
    if (has_log_scale(cell.decay, cell.update)) pool.log_scale = log_scale;
    if (kind >= OperatorKind::diagonal) pool.T = op_T;
    return pool;
  }

  // The rows from `first` on.
  void run(const ChainTable& table, int64_t first = 0) {
    const int64_t end = first + table.row_count();
    LinearAttentionArgs args{};
    args.decay = cell.decay;
    args.update = cell.update;
    args.scale = 0.5;
    args.q = q.tensor.rows(first, end);
    args.k = k.tensor.rows(first, end);
    args.v = v.tensor.rows(first, end);
    args.g = g.tensor.rows(first, end);
    args.A = A;
    args.beta = beta.tensor.rows(first, end);
    args.state = state;
    args.operators = operators();
    args.o = o.tensor.rows(first, end);
    args.skip = skip;
    linear_attention<T>(args, table);
  }
  std::vector<double> slot(int64_t s) const { return elements(state.tensor.at(s)); }
  std::vector<double> out(int64_t begin, int64_t end) const {
    return elements(o.tensor.rows(begin, end));
  }
  std::vector<double> parts(int64_t op) const {
    const TransferOperator one = operators().at(op);
    std::vector<double> all = elements(one.U);
    for (const Tensor& part : {one.log_scale, one.T})
      if (part)
        for (const double x : elements(part)) all.push_back(x);
    return all;
  }

  Cell cell;
  OperatorKind kind;
  Owned<T> q, k, v, g, A, beta, o, state, log_scale, op_T, U;
  Tensor skip;
};

class LinearAttentionTest : public testing::TestWithParam<Cell> {};
INSTANTIATE_TEST_SUITE_P(Cells, LinearAttentionTest, testing::ValuesIn(kCells),
                         [](const auto& info) { return info.param.name; });

TEST_P(LinearAttentionTest, AnySplitHasTheSameBits) {
  Layer<double> whole(GetParam(), 12), steps(GetParam(), 12), forwards(GetParam(), 12);
  whole.run(one_chain({.state = 0}, {step(12)}));
  steps.run(one_chain({.state = 0}, {step(0), step(5), step(1), step(6)}));
  for (const int first : {0, 4, 5})
    forwards.run(one_chain({.state = 0, .fresh = first == 0}, {step(first == 0   ? 4
                                                                    : first == 4 ? 1
                                                                                 : 7)}),
                 first);
  EXPECT_TRUE(finite(whole.o));
  EXPECT_EQ(steps.out(0, 12), whole.out(0, 12));
  EXPECT_EQ(forwards.out(0, 12), whole.out(0, 12));
  EXPECT_EQ(steps.slot(0), whole.slot(0));
  EXPECT_EQ(forwards.slot(0), whole.slot(0));
}

TEST_P(LinearAttentionTest, WithoutKeepLeavesTheStateAlone) {
  Layer<double> with(GetParam(), 10), without(GetParam(), 10), whole(GetParam(), 10);
  with.run(one_chain({.state = 0}, {step(4), without_keep(step(3)), step(3)}));
  whole.run(one_chain({.state = 0}, {step(7)}));
  EXPECT_EQ(with.out(0, 7), whole.out(0, 7));  // outputs as if it had been kept
  without.run(one_chain({.state = 0}, {step(4)}));
  without.run(one_chain({.state = 0, .fresh = false}, {step(3)}), 7);
  EXPECT_EQ(with.out(7, 10), without.out(7, 10));
  EXPECT_EQ(with.slot(0), without.slot(0));
}

TEST_P(LinearAttentionTest, SavesTheStateAfterAnItem) {
  Layer<double> layer(GetParam(), 9), prefix(GetParam(), 9);
  layer.run(one_chain({.state = 0},
                      {saving(step(4), 1), saving(without_keep(step(2)), 2), saving(step(3), 3)}));
  prefix.run(one_chain({.state = 0}, {step(4)}));
  EXPECT_EQ(layer.slot(1), prefix.slot(0));
  EXPECT_EQ(layer.slot(2), prefix.slot(0));
  EXPECT_EQ(layer.slot(3), layer.slot(0));
  EXPECT_NE(layer.slot(0), prefix.slot(0));
}

TEST_P(LinearAttentionTest, CapturesInPartsAsWhole) {
  Layer<double> whole(GetParam(), 11), parts(GetParam(), 11);
  whole.run(one_chain({.state = 0}, {step(3), step(8, 1)}));
  parts.run(one_chain({.state = 0}, {step(3), step(2, 1)}));
  parts.run(one_chain({.state = 0, .fresh = false}, {step(1, 1, 2)}), 5);
  parts.run(one_chain({.state = 0, .fresh = false}, {step(5, 1, 3)}), 6);
  EXPECT_EQ(parts.parts(1), whole.parts(1));
  EXPECT_TRUE(std::isnan(whole.U[0]));  // the other slots are not written
  // A span of nothing is the identity.
  Layer<double> none(GetParam(), 3);
  none.run(one_chain({.state = 0}, {step(2), step(0, 0), step(1)}));
  std::fill_n(none.U.memory.begin() + kHv * kDk * kDv, kHv * kDk * kDv, 0.0);
  set_identity<double>(none.operators().at(1));
  EXPECT_EQ(none.parts(0), none.parts(1));
}

// The span's operator on the state before it is the state after it, and no cell's T depends on that
// state.
TEST_P(LinearAttentionTest, TheOperatorIsWhatTheSpanDoes) {
  Layer<double> layer(GetParam(), 11), other(GetParam(), 11);
  layer.run(one_chain({.state = 0}, {saving(step(3), 1), step(8, 1)}));
  apply<double>(layer.operators().at(1), layer.state.tensor.at(1));
  EXPECT_LE(distance(layer.slot(1), layer.slot(0)), 1e-13);
  std::fill(other.state.memory.begin(), other.state.memory.end(), 3.0);
  other.run(one_chain({.state = 0, .fresh = false}, {step(8, 1)}), 3);
  EXPECT_EQ(other.parts(1), layer.parts(1));
}

TEST_P(LinearAttentionTest, ComposeModes) {
  const std::vector<double> before = [&] {
    Layer<double> layer(GetParam(), 11);
    layer.run(one_chain({.state = 0}, {step(3)}));
    return layer.slot(0);
  }();
  for (const Compose compose : {Compose::transfer, Compose::add, Compose::last, Compose::zero}) {
    Layer<double> layer(GetParam(), 11);
    layer.run(one_chain({.state = 1}, {step(8, 2)}), 3);
    layer.run(one_chain({.state = 0}, {step(3), jump(2, 8, compose)}));
    const std::vector<double> U = elements(layer.U.tensor.at(2));
    std::vector<double> expected(U.size());
    for (size_t i = 0; i < U.size(); ++i)
      expected[i] = compose == Compose::add    ? before[i] + U[i]
                    : compose == Compose::last ? U[i]
                                               : 0;
    if (compose == Compose::transfer) {
      Layer<double> straight(GetParam(), 11);
      straight.run(one_chain({.state = 0}, {step(11)}));
      expected = straight.slot(0);
    }
    EXPECT_LE(distance(layer.slot(0), expected), 1e-13) << static_cast<int>(compose);
  }
}

// o += skip · v, whatever the state; in every chain and for rows without keep too.
template <class T>
void check_skip(const Cell& cell) {
  Layer<T> plain(cell, 9), skipping(cell, 9);
  const Owned<T> D = random<T>({kHv}, 8);
  skipping.skip = D;
  const std::vector<ChainItem> items = {step(4), without_keep(step(2)), step(3, 1)};
  plain.run(one_chain({.state = 0}, items));
  skipping.run(one_chain({.state = 0}, items));
  std::vector<double> expected = plain.out(0, 9);
  for (size_t i = 0; i < expected.size(); ++i)
    expected[i] += static_cast<double>(D[i / kDv % kHv]) * plain.v[i];
  EXPECT_LE(distance(skipping.out(0, 9), expected), sizeof(T) == 8 ? 1e-14 : 1e-6);
  EXPECT_EQ(skipping.slot(0), plain.slot(0));
  EXPECT_EQ(skipping.parts(1), plain.parts(1));
}

TEST_P(LinearAttentionTest, SkipsAddTheValues) {
  check_skip<float>(GetParam());
  check_skip<double>(GetParam());
}

// In one forward: the segment alone on level 0, the request that jumps over it on level 1.
TEST_P(LinearAttentionTest, AJumpReadsWhatALowerLevelMade) {
  Layer<double> reused(GetParam(), 11), straight(GetParam(), 11);
  // Rows of the table: the segment's 2 … 6, then the request's 0, 1 and 7 … 10.
  const auto move_rows = [](Owned<double>& x) {
    const int64_t n = x.tensor.size() / 11;
    std::rotate(x.memory.begin(), x.memory.begin() + 2 * n, x.memory.begin() + 7 * n);
  };
  for (auto* x : {&reused.q, &reused.k, &reused.v, &reused.g, &reused.beta}) move_rows(*x);
  ChainTable table;
  add_chain(table, {.level = 0, .state = 1}, {step(5, 0)});
  add_chain(table, {.level = 1, .state = 0}, {step(2), jump(0, 5), step(4)});
  reused.run(table);
  straight.run(one_chain({.state = 0}, {step(11)}));
  EXPECT_LE(distance(reused.out(7, 11), straight.out(7, 11)), 1e-12);
  EXPECT_LE(distance(reused.slot(0), straight.slot(0)), 1e-13);
}

template <class T>
void check_batch(const Cell& cell) {
  Layer<T> both(cell, 12), alone(cell, 12);
  const int64_t head = kHv * kDv * 5;
  std::fill_n(both.v.memory.begin(), head, T(NAN));  // chain 0 is spoilt
  ChainTable table;
  add_chain(table, {.state = 0}, {step(5, 0)});
  add_chain(table, {.state = 2}, {step(4), step(3, 1)});
  both.run(table);
  alone.run(one_chain({.state = 3}, {step(4), step(3, 2)}), 5);
  EXPECT_TRUE(finite(both.o.tensor.rows(5, 12)));
  EXPECT_EQ(both.out(5, 12), alone.out(5, 12));
  EXPECT_EQ(both.slot(2), alone.slot(3));
  EXPECT_EQ(both.parts(1), alone.parts(2));
}

TEST_P(LinearAttentionTest, ChainsOfABatchAreThoseAlone) {
  check_batch<float>(GetParam());
  check_batch<double>(GetParam());
}

// Forwards large enough for threads, against forwards that are not.
TEST(LinearAttention, ThreadsChangeNoBits) {
  Layer<float> whole(kCells[5], 2400), parts(kCells[5], 2400);
  ChainTable table;
  add_chain(table, {.level = 0, .state = 0}, {step(1000, 0)});
  add_chain(table, {.level = 0, .state = 1}, {step(1000, 1)});
  add_chain(table, {.level = 1, .state = 2}, {jump(0, 1000), jump(1, 1000), step(400)});
  whole.run(table);
  for (const int chain : {0, 1})
    for (int row = 0; row < 1000; row += 250)
      parts.run(one_chain({.state = chain, .fresh = row == 0}, {step(250, chain, row)}),
                1000 * chain + row);
  parts.run(one_chain({.state = 2}, {jump(0, 1000), jump(1, 1000), step(400)}), 2000);
  EXPECT_TRUE(finite(whole.o));
  EXPECT_EQ(parts.out(0, 2400), whole.out(0, 2400));
  for (const int s : {0, 1, 2}) EXPECT_EQ(parts.slot(s), whole.slot(s));
  for (const int op : {0, 1}) EXPECT_EQ(parts.parts(op), whole.parts(op));
}

// Rows of q, k, v that are columns of a wider tensor.
TEST(LinearAttention, InputsMayBeStrided) {
  Layer<double> layer(kCells[5], 6), wide(kCells[5], 6);
  const Owned<double> both({6, kHv, 2 * kDv});
  for (int64_t r = 0; r < 6; ++r)
    for (int64_t h = 0; h < kHv; ++h)
      std::copy_n(&layer.v[(r * kHv + h) * kDv], kDv,
                  both.tensor.at(r).at(h).columns(kDv, 2 * kDv).as<double>());
  wide.v.tensor = both.tensor.columns(kDv, 2 * kDv);
  layer.run(one_chain({.state = 0}, {step(6)}));
  wide.run(one_chain({.state = 0}, {step(6)}));
  EXPECT_EQ(wide.out(0, 6), layer.out(0, 6));
}

TEST(LinearAttention, RefusesWhatDoesNotFit) {
  const auto refused = [](auto change) {
    Layer<double> layer(kCells[5], 4);
    change(layer);
    EXPECT_THROW(layer.run(one_chain({.state = 0}, {step(4)})), InternalError);
  };
  const Owned<float> wrong({4, kHv});
  refused([&](auto& layer) { layer.g.tensor = wrong; });
  refused([](auto& layer) { layer.k.tensor = layer.v.tensor; });
  refused([](auto& layer) { layer.g.tensor = layer.g.tensor.columns(0, 3); });
  refused([](auto& layer) { layer.cell.update = Update::nonlinear; });
  refused([](auto& layer) { layer.state.tensor = layer.state.tensor.columns(0, 4); });
  refused([](auto& layer) { layer.skip = layer.g.tensor.at(0).rows(0, kHv - 1); });
  Layer<double> short_table(kCells[5], 4);
  LinearAttentionArgs args{};
  args.decay = Decay::none;
  args.q = short_table.q, args.k = short_table.k, args.v = short_table.v;
  args.state = short_table.state, args.o = short_table.o;
  EXPECT_THROW(linear_attention<double>(args, one_chain({.state = 0}, {step(3)})), InternalError);
}

}  // namespace
}  // namespace hypic::reference
