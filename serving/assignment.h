// Which worker computes which missing segment of a request. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace hypic {

// lpt: the longest first, each to the worker that would be done with it first (Graham 1969). round_robin: in turn,
// whatever they cost.
enum class Policy : uint8_t { lpt, round_robin };
std::string_view name_of(Policy policy);
Policy policy_named(std::string_view name);  // Error: unknown, with those there are

// Seconds.
struct AssignmentItem {
  double compute = 0;             // the segment alone
  double transfer = 0;            // its residue to the worker that combines
  std::vector<bool> cached = {};  // by worker: has it, and only sends it; empty: none
};

struct Assignment {
  std::vector<int> worker;     // by item; 0 is the one that combines
  std::vector<double> finish;  // by worker, with what it had to do before
  double makespan() const;
};

// `loads`: seconds of work that each worker has already; of the first, which combines, with what the request itself
// costs it. It computes without a transfer. `turn`: which worker round_robin begins with; moved on.
Assignment assign(const std::vector<AssignmentItem>& items, std::vector<double> loads, Policy policy, size_t& turn);

}  // namespace hypic
