// Linear attention by chunks of 64 tokens on the tensor cores: what linear_attention.cuh computes, for the shapes
// that it takes.
//
// The rows of a step are cut into chunks. Within one, with γ the cumulative log decay from its begin and S the
// state before it, the delta rule (arXiv 2406.06484, 2412.06464) is
//
//   (I + L) X = Y    L_ij = β_i (k_i·k_j) exp(γ_i − γ_j) for j < i    Y = β (V − exp(γ) K S)
//   O = scale · (exp(γ) Q S + ((Q Kᵀ) ⊙ exp(γ_i − γ_j))_{j ≤ i} X)
//   S ← exp(γ_C) S + Σ_i exp(γ_C − γ_i) k_i x_iᵀ
//
// L is D (I + L') D⁻¹ − I with D = diag(exp(γ)) and L' without decay. So with A = (I + L')⁻¹, which no decay
// touches, and M = (Q Kᵀ)_{j ≤ i} A and Z = Aᵀ K,
//
//   O = scale · (exp(γ) Q S + (M ⊙ exp(γ_i − γ_j)) Y)
//   S ← exp(γ_C) S + Σ_j exp(γ_C − γ_j) z_j y_jᵀ
//
// where nothing is divided by a decay, every exponent is ≤ 0, and no inverse stands in the way from S to S. Errors
// of Y are corrected by later tokens, as those of V would be; M and Z are rounded after what cancels in them has.
// For Update::add, A = I: Y = β V, M = (Q Kᵀ)_{j ≤ i}, Z = K.
//
// With a decay a key dim, A has the decays in it, and there are K and Q with them: see chunked_diagonal.cuh.
//
// `prepare` makes M and Z of all chunks at once; then `walk` goes along the spans of chains that have no jumps, `jumps`
// along the others (ChainSpan). The columns of S are independent of each other; so are those of an operator: U's run
// as S does, but from zero, T's from the identity with V = 0 and no decay, which stands apart in log_scale.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

// bf16 operands, Readout::plain, Side::key, decay none, scalar or diagonal, update add or delta with a and b by
// default, d_k of 64 or 128, d_v a multiple of 16, rows of 16-byte pieces; with Update::add RoPE on no, half or all key
// dims, with delta on none, which no model has. Decay diagonal: log decays ≤ 0, no RoPE.
bool chunked_takes(const LinearAttentionArgs& args);

// Rounded to bf16 on the way: M with scale and decay, Z, Y, Y · exp(γ_C − γ), and S, U and T where they are
// multiplied by K and Q; with a decay a key dim also K and Q with it. They themselves and all sums are float32, and
// a jump's product T·S is as good as float32. A chain that is a single row takes another way, in float32 throughout.
// sms: multiprocessors of the device; neither they nor the other chains change a bit of a chain's result.
void chunked(const LinearAttentionArgs& args, const TableUpload& table, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
