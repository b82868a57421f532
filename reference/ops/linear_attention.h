// The table of linear-attention families, decay × update × readout, over chains: token by token, in the
// order of the prompt, so that any split of a sequence gives the same bits.
#pragma once

#include "core/backend.h"

namespace hypic::reference {

// T is the state dtype; q, k, v, o and the per-token factors have it too.
template <class T>
void linear_attention(const LinearAttentionArgs& args, const ChainTable& table);

}  // namespace hypic::reference
