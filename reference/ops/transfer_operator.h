// Transfer operators on the CPU: identity, apply, compose, relocate. T is float or double; every tensor of
// an operator has that dtype. Source: HYPIC, arXiv 2607.01299, section 4.
#pragma once

#include "core/transfer_operator.h"

namespace hypic::reference {

// The operator of the empty span: T = I, log_scale = 0, U = 0.
template <class T>
void set_identity(const TransferOperator& op);

// S ← T·S + U, in place; S [H, d_k, d_v].
template <class T>
void apply(const TransferOperator& op, const Tensor& S);

// out ← second ∘ first: T₂T₁, T₂U₁ + U₂. `out` is neither of the two.
template <class T>
void compose(const TransferOperator& second, const TransferOperator& first,
             const TransferOperator& out);

// R_Δ S in place on S's key axis: key dims (i, i + rotary_dim/2) of [H, d_k, d_v] by shift·theta^(−2i/rotary_dim).
// Side::value: S is the table's transposed state [H, d_v, d_k], its last axis is rotated.
template <class T>
void rotate_state(const Tensor& S, int64_t shift, int rotary_dim, double theta, Side side);

// The operator of the same span `shift` positions later, its keys carrying RoPE: U ↦ R U and, for a dense T
// on the key side, T ↦ R T Rᵀ. Exact for the families that families.def calls relocatable.
template <class T>
void relocate(const TransferOperator& op, int64_t shift, int rotary_dim, double theta, Side side);

}  // namespace hypic::reference
