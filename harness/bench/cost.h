// What an operation has to move and to compute, and the time that this takes at best. Counted from
// its tensors and chain table, the same whichever kernel runs; docs/benchmarks.md has the formulas.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/backend.h"

namespace hypic::bench {

struct Cost {
  double bytes = 0;       // every input read once, every output written once
  double operations = 0;  // of products; 0: none to speak of
};

// What the device reached in the same run.
struct Ceilings {
  double bytes_per_second = 0;
  double operations_per_second = 0;
};

double limit_seconds(const Cost& cost, const Ceilings& ceilings);

// Of the tensors that are there; what an axis of stride 0 repeats counts once.
double bytes_of(std::initializer_list<Tensor> tensors);

// In chunks of 64 tokens, as products of whole squares.
Cost linear_attention_cost(const LinearAttentionArgs& args, const ChainTable& table);
// Keys that a row does not see are not counted.
Cost attention_cost(const AttentionArgs& args, const ChainTable& table);
Cost causal_conv_cost(const CausalConvArgs& args, const ChainTable& table);
// `touched`: experts that any row goes to.
Cost experts_cost(const ExpertsArgs& args, int64_t touched);
Cost matmul_cost(const MatmulArgs& args);

}  // namespace hypic::bench
