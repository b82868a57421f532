// Runs one benchmark: set up, look at its outputs, and only then time it.
#pragma once

#include <string>
#include <vector>

#include "harness/bench/job.h"
#include "kernels/replay.h"

namespace hypic::bench {

struct Measured {
  std::string name;
  std::vector<double> seconds;  // of each replay, rising; empty where it failed
  Cost cost;
  std::string kernels;  // what Backend::launches says of one run: "attention/mma, rope/plain × 2"
  std::string failure;  // why there is no time
};

double median(const std::vector<double>& sorted);

// Never throws: what goes wrong is the failure.
Measured measure(const Bench& bench, Backend& backend, const ReplayOptions& options);

// Error where one of the two fails.
Ceilings measure_ceilings(Backend& backend, const Sizes& sizes, const ReplayOptions& options);

}  // namespace hypic::bench
