// Chains cut into spans, which kernels for jumps and kernels for long steps run along in turn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/chain.h"

namespace hypic::cuda {

// Items of a chain, run along from the chain's state slot and back to it.
struct ChainSpan {
  int32_t item_begin, item_end;
  int32_t state;
  bool fresh;
};

// The i-th spans of some chains: [first, jumps_last) have jumps and no long steps; [jumps_last,
// last), by falling number of rows, have no jumps. Stages run one after another.
struct SpanStage {
  int32_t first, jumps_last, last;
};

// Cuts the given chains of a table where a jump follows on a step of more than max_rows, or such a step on a jump,
// and appends their spans to `all`, stage by stage. A chain has one span at least. Of a chain's last item, after which
// nothing has to go back, more than max_last_rows are such a step.
std::vector<SpanStage> cut_spans(const ChainTable& table, std::span<const int32_t> chains, int32_t max_rows,
                                 int32_t max_last_rows, std::vector<ChainSpan>& all);

}  // namespace hypic::cuda
