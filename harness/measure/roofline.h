// The time that a prefill takes at best: what its plan has to move and to compute, against a
// device's ceilings. Counted from the model's sizes and the chain tables that ran, the same
// whichever kernels run. Operation by operation, for a device that moves and computes at once still
// does one after the other: limit = Σ max(bytes / copy, operations / peak). Activations, norms,
// convolutions and the embedding are not counted.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/chain.h"
#include "core/dtype.h"
#include "harness/bench/cost.h"
#include "models/spec.h"

namespace hypic {

struct RooflineSettings {
  DType compute = DType::bf16;  // weights, K, V
  DType state = DType::f32;     // states, T, U
  bench::Ceilings ceilings;
  // By table: experts that some row goes to, the mean over layers; empty: as many as when each row
  // draws its own evenly.
  std::vector<double> touched;
};

struct Roofline {
  bench::Cost cost;
  double seconds = 0;
  std::map<std::string, double>
      by_operation;  // seconds: matmul, experts, linear_attention, attention
};

// Of forwards over these tables, every weight read once in each.
Roofline roofline(const ModelSpec& spec, const std::vector<ChainTable>& tables,
                  const RooflineSettings& settings);

// How many of the experts `rows` rows reach, each drawing `active` different ones evenly.
double expected_touched(const MoeSpec& moe, int64_t rows);

}  // namespace hypic
