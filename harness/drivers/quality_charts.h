// Charts of a quality case over what its modes and cells vary.
#pragma once

#include <string>
#include <vector>

#include "harness/drivers/quality_items.h"
#include "reports/report.h"

namespace hypic::quality {

// Loss, KL and, where there are states, their mean error over layers: of each cell over the tokens of a segment that
// modes recompute, head seams and two-sided ones apart; of each task over the number of its documents and over their
// length. Each chart only where something varies. `values`: those of the case.
std::vector<Chart> charts_over(const std::vector<Cell>& cells, const std::vector<std::string>& modes,
                               const std::vector<Value>& values);

}  // namespace hypic::quality
