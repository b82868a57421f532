// Reported faults of linear-attention kernels (docs/conformance.md) as cases. Without --thorough
// the largest are run in fewer and narrower heads.
#pragma once

#include "harness/cases/family_case.h"

namespace hypic::conformance {

void strong_gates(Context& c, const FamilyReference& family);       //  1
void unit_decay(Context& c, const FamilyReference& family);         //  2
void nearly_equal_keys(Context& c, const FamilyReference& family);  //  3
void exponent_clamp(Context& c, const FamilyReference& family);     //  4
void partial_chunk(Context& c, const FamilyReference& family);      //  5
void state_layout(Context& c, const FamilyReference& family);       //  6
void empty_chains(Context& c, const FamilyReference& family);       //  7
void ragged_tails(Context& c, const FamilyReference& family);       //  8
void head_sizes(Context& c, const FamilyReference& family);         //  9
void determinism(Context& c, const FamilyReference& family);        // 10
void chunked_prefill(Context& c, const FamilyReference& family);    // 13
void large_state(Context& c, const FamilyReference& family);        // 15

}  // namespace hypic::conformance
