// What a run has brought so far, for who watches it.
#pragma once

#include <cstdint>
#include <string>

#include "harness/load/client.h"

namespace hypic::load {

class Tally {
 public:
  // Of requests of which the last is due at `last_due`; each is given up `timeout` after its time. Seconds from the
  // start of the run.
  Tally(int64_t requests, double last_due, double timeout)
      : requests_(requests), last_due_(last_due), timeout_(timeout) {}

  void add(const Record& record);
  int64_t ended() const { return answered_ + failed_; }
  std::string text() const;  // "90 answered, 10 failed of 200"
  // Seconds until all have ended, if the last takes as long as the slowest so far; where none has ended yet, or that
  // time is over, if it is given up. Pure.
  double left(double now) const;

 private:
  const int64_t requests_;
  const double last_due_, timeout_;
  int64_t answered_ = 0, failed_ = 0;  // failed: errors and time-outs
  double slowest_ = 0;
};

}  // namespace hypic::load
