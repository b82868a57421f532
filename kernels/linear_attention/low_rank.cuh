// Linear attention by chunks of 64 tokens on the tensor cores, where a token erases along other vectors than it writes
// (LinearAttentionArgs::a and b): rwkv7, gdn2, comba. What linear_attention.cuh computes, for the shapes it takes.
//
// With γ [64][d_k] the cumulative log decay from a chunk's begin, S the state before it, d = β v, and γ' = γ, or for
// Update::delta_before, where b reads the undecayed state, γ' of a row = γ of the row before it:
//
//   (I + L) R = −((exp(γ') ⊙ B) S + G D)     L_ij = Σ_c b_ic a_jc exp(γ'_ic − γ_jc), G_ij with k_j, for j < i
//   O = scale · ((exp(γ) ⊙ Q) S + P_a R + P_k D)    P_a,ij = Σ_c q_ic a_jc exp(γ_ic − γ_jc), P_k,ij with k_j, for j ≤ i
//   S ← exp(γ_C) ⊙ S + (exp(γ_C − γ) ⊙ A)ᵀ R + (exp(γ_C − γ) ⊙ K)ᵀ D
//
// R is linear in S and D, so with M = P_a (I + L)⁻¹ and Z_a = (I + L)⁻ᵀ (exp(γ_C − γ) ⊙ A),
//
//   O = scale · (Q̂ S + (P_k − M G) D)          Q̂ = exp(γ) ⊙ Q − M (exp(γ') ⊙ B)
//   S ← exp(γ_C) ⊙ S − Z_aᵀ ((exp(γ') ⊙ B) S) + Z_kᵀ D     Z_k = exp(γ_C − γ) ⊙ K − Gᵀ Z_a
//
// What cancels does so before anything is rounded. `prepare` makes all of that of every chunk; the walk is left with
// two products by S, and two that add to it. Operators are more columns of the same, as in chunked.cuh.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"

namespace hypic::cuda {

// bf16 operands, Readout::plain, Side::key; decay diagonal with Update::delta_before, or delta and b given, scalar with
// delta_before; d_k of 64 or 128, d_v a multiple of 16, rows of 16-byte pieces, log decays ≤ 0, no skip; where keys carry RoPE a
// table without jumps.
bool low_rank_takes(const LinearAttentionArgs& args, const TableUpload& table);

// Rounded to bf16 on the way: B and Q̂ with decay, Z_a, Z_k, P_k − M G with scale, B S, and S, U and T where they are
// multiplied by B and Q̂. They themselves and all sums are float32, and a jump's product T·S
// is as good. A chain that is a single row takes another way, in float32 throughout. sms: multiprocessors of the
// device; neither they nor the other chains change a bit of a chain's result.
void low_rank(const LinearAttentionArgs& args, const TableUpload& table, int sms, cudaStream_t stream);

}  // namespace hypic::cuda
