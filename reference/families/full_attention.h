// Softmax attention of one layer by definition, in float64: grouped queries, partial rotary
// embedding in NeoX pairs, an RMS norm on q and k, a sigmoid output gate.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "reference/families/array.h"

namespace hypic::reference {

struct FullAttention {
  double scale;        // of the logits
  int rotary_dim = 0;  // 0: no rotation
  double theta = 1e4;
  double eps = 1e-6;
  bool plus_one = false;  // the norms multiply by 1 + weight
};

struct FullAttentionInputs {
  Array q;                           // [Rq, Hq, D], query head h reads key head h / (Hq / Hkv)
  Array k, v;                        // [Rk, Hkv, D]
  std::vector<int64_t> q_positions;  // [Rq], of the rotation
  std::vector<int64_t> k_positions;  // [Rk]
  Array q_weight, k_weight;          // [D]; empty: no norm
  Array gate;                        // [Rq, Hq, D], before its sigmoid; empty: no gate
  // Whether query row i sees key row j; empty: key rows are query rows and j ≤ i.
  std::function<bool(int64_t i, int64_t j)> sees;
};

// out [Rq, Hq, D]; zero where a row sees nothing.
Array full_attention(const FullAttention& layer, const FullAttentionInputs& in);

}  // namespace hypic::reference
