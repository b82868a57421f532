// Softmax attention over a chain's own tokens and the residues that a row sees, and the paged K, V store.
#pragma once

#include "core/backend.h"

namespace hypic::reference {

template <class T>
void append_kv(const AppendKvArgs& args, const ChainTable& table);

template <class T>
void attention(const AttentionArgs& args, const ChainTable& table);

}  // namespace hypic::reference
