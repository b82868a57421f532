// The clock of a load.
#pragma once

#include <chrono>

namespace hypic::load {

using Clock = std::chrono::steady_clock;

inline Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

}  // namespace hypic::load
