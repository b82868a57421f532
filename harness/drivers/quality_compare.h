// Two runs of the quality driver, such as on two backends, output by output.
#pragma once

#include <vector>

#include "harness/drivers/quality_rows.h"
#include "reports/report.h"

namespace hypic::quality {

// What must be the same of two right backends: this share of the outputs.
inline constexpr double kSameOutputs = 0.99;

// Rows of the same model, cell, item and mode side by side; what only one run has is not compared. Two outputs differ
// from some token on: there both models have seen the same, and their logits must have moved by the sum of both gaps.
// That is explained where each of the two logits moved by no more than it may on another backend (Row::allowed).
// Values: compared, same (share), explained and unexplained (outputs). PASS where at least kSameOutputs are the same
// and the others explained, else FAIL. Error: nothing to compare.
Result compare(const std::vector<Row>& a, const std::vector<Row>& b);

}  // namespace hypic::quality
