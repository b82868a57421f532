// When requests are sent: absolute times, fixed before the run, so that a slow server cannot slow its load down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "datasets/trace.h"

namespace hypic::load {

enum class Arrivals {
  constant,  // one every 1 / rate
  poisson,   // exponential gaps
  gamma,     // gamma gaps of shape `burstiness`: 1 is Poisson, less comes in clumps (as vLLM's --burstiness)
  burst,     // `burst` at once, then none for burst / rate
};
// Error: another name, with those there are.
Arrivals arrivals_of(const std::string& name);

struct Pattern {
  Arrivals arrivals = Arrivals::poisson;
  double rate = 1;        // requests a second, > 0
  double burstiness = 1;  // > 0
  int64_t burst = 8;      // ≥ 1
  uint64_t seed = 1;
};

// Times in seconds from the start, never falling; the first is 0. The same seed draws the same gaps at every rate,
// in units of 1 / rate.
std::vector<double> schedule(const Pattern& pattern, int64_t requests);

// Those of a trace from request `first` on, from 0 on: the trace's own gaps divided by `speed` > 0.
std::vector<double> schedule(const Trace& trace, int64_t first, int64_t requests, double speed);

}  // namespace hypic::load
