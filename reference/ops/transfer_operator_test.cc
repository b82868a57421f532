#include "reference/ops/transfer_operator.h"

#include <gtest/gtest.h>

#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

constexpr OperatorKind kKinds[] = {OperatorKind::identity, OperatorKind::scalar,
                                   OperatorKind::diagonal, OperatorKind::elementwise,
                                   OperatorKind::dense};
constexpr double kTheta = 100;

// An operator with memory of its own. Every part is there that its kind may have; scaled: log_scale
// too.
template <class T>
struct Op {
  Op(OperatorKind kind, int64_t H, int64_t dk, int64_t dv, uint64_t seed, bool scaled = true)
      : log_scale(random<T>({H}, seed, 0.5)),
        U(random<T>({H, dk, dv}, seed + 1)),
        T_(random<T>(shape(kind, H, dk, dv), seed + 2)) {
    op.kind = kind;
    op.U = U;
    if (scaled && kind != OperatorKind::identity) op.log_scale = log_scale;
    if (kind >= OperatorKind::diagonal) op.T = T_;
  }
  static std::vector<int64_t> shape(OperatorKind kind, int64_t H, int64_t dk, int64_t dv) {
    if (kind == OperatorKind::diagonal) return {H, dk};
    return {H, dk, kind == OperatorKind::elementwise ? dv : dk};
  }

  Owned<T> log_scale, U, T_;
  TransferOperator op;
};

std::vector<double> parts_of(const TransferOperator& op) {
  std::vector<double> all = elements(op.U);
  for (const Tensor& part : {op.log_scale, op.T})
    if (part)
      for (const double x : elements(part)) all.push_back(x);
  return all;
}

// T·S + U in loops.
std::vector<double> applied(const Op<double>& op, const Owned<double>& S) {
  const int64_t H = S.tensor[0], dk = S.tensor[1], dv = S.tensor[2];
  std::vector<double> out = elements(op.U);
  for (int64_t h = 0; h < H; ++h)
    for (int64_t i = 0; i < dk; ++i)
      for (int64_t j = 0; j < dv; ++j)
        for (int64_t n = 0; n < dk; ++n) {
          double t = n == i;
          if (op.op.kind == OperatorKind::diagonal) t *= op.T_[h * dk + i];
          if (op.op.kind == OperatorKind::elementwise) t *= op.T_[(h * dk + i) * dv + j];
          if (op.op.kind == OperatorKind::dense) t = op.T_[(h * dk + i) * dk + n];
          if (op.op.log_scale) t *= std::exp(op.log_scale[h]);
          out[(h * dk + i) * dv + j] += t * S[(h * dk + n) * dv + j];
        }
  return out;
}

TEST(TransferOperators, ApplyIsTTimesSPlusU) {
  for (const OperatorKind kind : kKinds)
    for (const bool scaled : {false, true}) {
      const Op<double> op(kind, 2, 4, 3, 1, scaled);
      const Owned<double> S = random<double>({2, 4, 3}, 9);
      const std::vector<double> expected = applied(op, S);
      apply<double>(op.op, S);
      EXPECT_LE(distance(elements(S), expected), 1e-14) << static_cast<int>(kind) << scaled;
    }
}

TEST(TransferOperators, ComposeIsOneAfterTheOther) {
  for (const OperatorKind kind : kKinds) {
    const Op<double> first(kind, 2, 4, 3, 1), second(kind, 2, 4, 3, 11), both(kind, 2, 4, 3, 21);
    compose<double>(second.op, first.op, both.op);
    const Owned<double> S = random<double>({2, 4, 3}, 9), R = S;
    apply<double>(first.op, S);
    apply<double>(second.op, S);
    apply<double>(both.op, R);
    EXPECT_LE(distance(elements(R), elements(S)), 1e-13) << static_cast<int>(kind);
  }
}

template <class T>
void check_associativity(double bound) {
  for (const OperatorKind kind : kKinds) {
    const Op<T> a(kind, 2, 5, 3, 1), b(kind, 2, 5, 3, 11), c(kind, 2, 5, 3, 21);
    const Op<T> ab(kind, 2, 5, 3, 0), bc(kind, 2, 5, 3, 0), left(kind, 2, 5, 3, 0),
        right(kind, 2, 5, 3, 3);
    compose<T>(b.op, a.op, ab.op);
    compose<T>(c.op, ab.op, left.op);
    compose<T>(c.op, b.op, bc.op);
    compose<T>(bc.op, a.op, right.op);
    EXPECT_LE(distance(parts_of(left.op), parts_of(right.op)), bound) << static_cast<int>(kind);
  }
}

TEST(TransferOperators, ComposeIsAssociative) {
  check_associativity<double>(1e-14);
  check_associativity<float>(1e-5);
}

TEST(TransferOperators, TheIdentityIsNeutral) {
  for (const OperatorKind kind : kKinds) {
    const Op<double> op(kind, 2, 4, 3, 1), identity(kind, 2, 4, 3, 11), left(kind, 2, 4, 3, 21),
        right(kind, 2, 4, 3, 31);
    std::fill(identity.U.tensor.as<double>(), identity.U.tensor.as<double>() + 24, NAN);
    set_identity<double>(identity.op);
    const Owned<double> S = random<double>({2, 4, 3}, 9);
    const std::vector<double> before = elements(S);
    apply<double>(identity.op, S);
    EXPECT_EQ(elements(S), before) << static_cast<int>(kind);
    compose<double>(identity.op, op.op, left.op);
    compose<double>(op.op, identity.op, right.op);
    EXPECT_EQ(parts_of(left.op), parts_of(op.op)) << static_cast<int>(kind);
    EXPECT_EQ(parts_of(right.op), parts_of(op.op)) << static_cast<int>(kind);
  }
}

TEST(TransferOperators, RelocationGoesBack) {
  for (const OperatorKind kind :
       {OperatorKind::identity, OperatorKind::scalar, OperatorKind::dense})
    for (const Side side : {Side::key, Side::value}) {
      const Op<double> op(kind, 2, 6, 8, 1);
      const std::vector<double> before = parts_of(op.op);
      relocate<double>(op.op, 31, 6, kTheta, side);
      EXPECT_GT(distance(parts_of(op.op), before), 1e-2);
      relocate<double>(op.op, -31, 6, kTheta, side);
      EXPECT_LE(distance(parts_of(op.op), before), 1e-13) << static_cast<int>(kind);
      relocate<double>(op.op, 0, 6, kTheta, side);
      EXPECT_LE(distance(parts_of(op.op), before), 1e-13);
    }
}

// The moved operator on the moved state is the state moved: R(TS + U) = (R T Rᵀ)(R S) + R U.
TEST(TransferOperators, RelocationMovesWhatItApplies) {
  for (const int rotary_dim : {2, 4, 6}) {
    const Op<double> op(OperatorKind::dense, 2, 6, 4, 1);
    const Owned<double> S = random<double>({2, 6, 4}, 9), moved = S;
    apply<double>(op.op, S);
    rotate_state<double>(S, 12, rotary_dim, kTheta, Side::key);
    rotate_state<double>(moved, 12, rotary_dim, kTheta, Side::key);
    relocate<double>(op.op, 12, rotary_dim, kTheta, Side::key);
    apply<double>(op.op, moved);
    EXPECT_LE(distance(elements(moved), elements(S)), 1e-13);
  }
}

TEST(TransferOperators, RotationOfAStateOfOneKeyIsThatOfTheKey) {
  Owned<double> S({1, 4, 1});
  const double key[] = {0.3, -1, 2, 0.7};
  std::copy(key, key + 4, S.memory.begin());
  rotate_state<double>(S, 3, 4, kTheta, Side::key);
  for (int i = 0; i < 2; ++i) {
    const double angle = 3 * std::pow(kTheta, -i / 2.0);
    EXPECT_NEAR(S[i], std::cos(angle) * key[i] - std::sin(angle) * key[i + 2], 1e-14);
    EXPECT_NEAR(S[i + 2], std::sin(angle) * key[i] + std::cos(angle) * key[i + 2], 1e-14);
  }
  EXPECT_THROW(rotate_state<double>(S, 3, 6, kTheta, Side::key), InternalError);
  EXPECT_THROW(rotate_state<double>(S, 3, 2, kTheta, Side::value), InternalError);
}

TEST(TransferOperators, NothingOfNoHeads) {
  for (const OperatorKind kind : kKinds)
    for (const auto& [H, dv] : {std::pair{0, 3}, {2, 0}}) {
      const Op<double> a(kind, H, 4, dv, 1), b(kind, H, 4, dv, 2), out(kind, H, 4, dv, 3);
      const Owned<double> S({H, 4, dv});
      set_identity<double>(a.op);
      compose<double>(a.op, b.op, out.op);
      apply<double>(out.op, S);
      relocate<double>(out.op, 5, dv == 0 ? 4 : 2, kTheta, Side::key);
      EXPECT_EQ(out.U.tensor.size(), 0);
    }
}

}  // namespace
}  // namespace hypic::reference
