// The clock of a load.
#pragma once

#include <algorithm>
#include <chrono>

namespace hypic::load {

using Clock = std::chrono::steady_clock;

// At most 1e9: what is later never comes, and can be added to any time.
inline Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(s, 1e9)));
}

}  // namespace hypic::load
