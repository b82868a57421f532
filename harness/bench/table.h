// What was measured, as a report with one table.
#pragma once

#include <vector>

#include "harness/bench/measure.h"
#include "reports/report.h"

namespace hypic::bench {

// name | ms | min | max | GB/s | TFLOP/s | of limit | kernels. Fails where a benchmark did.
Report to_report(const std::vector<Measured>& all, const Ceilings& ceilings,
                 Environment environment);

}  // namespace hypic::bench
