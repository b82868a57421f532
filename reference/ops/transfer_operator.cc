#include "reference/ops/transfer_operator.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "reference/ops/rope.h"

namespace hypic::reference {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
Eigen::Map<Matrix<T>> matrix(const Tensor& t) {
  HYPIC_CHECK(t.rank == 2 && t.contiguous(), t.shape_string());
  return {t.as<T>(), t[0], t[1]};
}

template <class T>
Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> array(const Tensor& t) {
  HYPIC_CHECK(t.contiguous());
  return {t.as<T>(), t.size()};
}

// M ← T·M, all but the scalar part; M [d_k, d_v] of one head.
template <class T>
void multiply(const TransferOperator& op, int64_t head, Eigen::Map<Matrix<T>> M) {
  switch (op.kind) {
    case OperatorKind::identity:
    case OperatorKind::scalar:
      break;
    case OperatorKind::diagonal:
      M = array<T>(op.T.at(head)).matrix().asDiagonal() * M;
      break;
    case OperatorKind::elementwise:
      M.array() *= matrix<T>(op.T.at(head)).array();
      break;
    case OperatorKind::dense:
      M = (matrix<T>(op.T.at(head)) * M).eval();
      break;
  }
}

template <class T>
T scale_of(const TransferOperator& op, int64_t head) {
  return op.log_scale ? std::exp(op.log_scale.as<T>()[head]) : T{1};
}

}  // namespace

template <class T>
void set_identity(const TransferOperator& op) {
  array<T>(op.U).setZero();
  if (op.log_scale) array<T>(op.log_scale).setZero();
  if (!op.T) return;
  if (op.kind != OperatorKind::dense) {
    array<T>(op.T).setOnes();
    return;
  }
  for (int64_t head = 0; head < op.T[0]; ++head) matrix<T>(op.T.at(head)).setIdentity();
}

template <class T>
void apply(const TransferOperator& op, const Tensor& S) {
  for (int64_t head = 0; head < S[0]; ++head) {
    auto M = matrix<T>(S.at(head));
    multiply<T>(op, head, M);
    M = scale_of<T>(op, head) * M + matrix<T>(op.U.at(head));
  }
}

template <class T>
void compose(const TransferOperator& second, const TransferOperator& first,
             const TransferOperator& out) {
  array<T>(out.U) = array<T>(first.U);
  apply<T>(second, out.U);
  if (out.log_scale)
    array<T>(out.log_scale) = array<T>(first.log_scale) + array<T>(second.log_scale);
  if (!out.T) return;
  if (out.kind != OperatorKind::dense) {
    array<T>(out.T) = array<T>(second.T) * array<T>(first.T);
    return;
  }
  for (int64_t head = 0; head < out.T[0]; ++head)
    matrix<T>(out.T.at(head)) = matrix<T>(second.T.at(head)) * matrix<T>(first.T.at(head));
}

template <class T>
void rotate_state(const Tensor& S, int64_t shift, int rotary_dim, double theta, Side side) {
  const Rotation<T> rotation(shift, rotary_dim, theta);
  const int half = rotary_dim / 2;
  for (int64_t head = 0; head < S[0]; ++head) {
    auto M = matrix<T>(S.at(head));
    HYPIC_CHECK(rotary_dim <= (side == Side::key ? M.rows() : M.cols()));
    for (int i = 0; i < half; ++i) {
      const T c = rotation.cos(i), s = rotation.sin(i);
      if (side == Side::key) {
        const auto x = M.row(i).eval(), y = M.row(i + half).eval();
        M.row(i) = c * x - s * y;
        M.row(i + half) = s * x + c * y;
      } else {
        const auto x = M.col(i).eval(), y = M.col(i + half).eval();
        M.col(i) = c * x - s * y;
        M.col(i + half) = s * x + c * y;
      }
    }
  }
}

template <class T>
void relocate(const TransferOperator& op, int64_t shift, int rotary_dim, double theta, Side side) {
  rotate_state<T>(op.U, shift, rotary_dim, theta, side);
  if (op.kind != OperatorKind::dense || side == Side::value) return;
  rotate_state<T>(op.T, shift, rotary_dim, theta, Side::key);    // R T
  rotate_state<T>(op.T, shift, rotary_dim, theta, Side::value);  // (R T) Rᵀ
}

#define HYPIC_INSTANTIATE(T)                                                                      \
  template void set_identity<T>(const TransferOperator&);                                         \
  template void apply<T>(const TransferOperator&, const Tensor&);                                 \
  template void compose<T>(const TransferOperator&, const TransferOperator&,                      \
                           const TransferOperator&);                                              \
  template void rotate_state<T>(const Tensor&, int64_t, int, double, Side);                       \
  template void relocate<T>(const TransferOperator&, int64_t, int, double, Side);
HYPIC_INSTANTIATE(float)
HYPIC_INSTANTIATE(double)
#undef HYPIC_INSTANTIATE

}  // namespace hypic::reference
