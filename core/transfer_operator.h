// What a span of tokens does to a state: S ↦ T·S + U (HYPIC, arXiv 2607.01299, section 4).
// T is the product of the span's transitions A_t, the latest leftmost; U is the state that the span
// leaves from zero. The scalar part of T is kept apart as a logarithm, so that it neither underflows nor
// costs precision: T_full = exp(log_scale) · T.
#pragma once

#include "core/family.h"
#include "core/tensor.h"

namespace hypic {

// identity, scalar: no T (a scalar lives in log_scale) · diagonal T [H, d] · elementwise T [H, d_k, d_v] ·
// dense T [H, d, d]; d is d_k, or d_v for Side::value with the table's transposed state.
enum class OperatorKind { identity, scalar, diagonal, elementwise, dense };

constexpr OperatorKind operator_kind(Decay decay, Update update) {
  if (update != Update::add) return OperatorKind::dense;
  switch (decay) {
    case Decay::none: return OperatorKind::identity;
    case Decay::scalar: return OperatorKind::scalar;
    case Decay::diagonal: return OperatorKind::diagonal;
    case Decay::elementwise: return OperatorKind::elementwise;
  }
  return OperatorKind::dense;
}

// Whether the scalar part of a cell's T is kept in log_scale. Not for D − a bᵀ: dividing a bᵀ by a small D
// would overflow.
constexpr bool has_log_scale(Decay decay, Update update) {
  return decay == Decay::scalar && update != Update::delta_before;
}

// A view of one operator, or of a pool of them with a leading slot axis; `at(slot)` picks one.
// Memory is the caller's. Absent parts are empty tensors.
struct TransferOperator {
  OperatorKind kind = OperatorKind::identity;
  Tensor log_scale;  // [H]            natural logarithm, ≤ 0 for a decay
  Tensor T;          // by kind, above
  Tensor U;          // [H, d_k, d_v]

  TransferOperator at(int64_t slot) const {
    TransferOperator one{kind, {}, {}, U.at(slot)};
    if (log_scale) one.log_scale = log_scale.at(slot);
    if (T) one.T = T.at(slot);
    return one;
  }
};

}  // namespace hypic
