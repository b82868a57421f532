// The operations outside the families: one file each, or one for a few that are alike.
#pragma once

#include <vector>

#include "harness/cases/case.h"

namespace hypic::conformance {

std::vector<Case> causal_conv_cases();
std::vector<Case> attention_cases();
std::vector<Case> rope_cases();
std::vector<Case> norm_cases();
std::vector<Case> pointwise_cases();
std::vector<Case> matmul_cases();
std::vector<Case> moe_cases();
std::vector<Case> sample_cases();
std::vector<Case> random_cases();
std::vector<Case> composite_cases();

inline constexpr std::vector<Case> (*kOpCases[])() = {
    causal_conv_cases, attention_cases, rope_cases,   norm_cases,      pointwise_cases,
    matmul_cases,      moe_cases,       sample_cases, random_cases,    composite_cases,
};

}  // namespace hypic::conformance
