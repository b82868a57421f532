// A link whose other end must do its part in time, or it is aborted.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/pair_link.h"

namespace hypic {

struct LinkPatience {
  std::chrono::milliseconds connect{30'000};  // until both ends are connected
  std::chrono::milliseconds progress{2'000};  // from one thing that is done to the next, while something is under way
};

// For one thread at a time.
class WatchedLink {
 public:
  WatchedLink(std::unique_ptr<PairLink> link, const LinkPatience& patience)
      : link_(std::move(link)), patience_(patience) {}

  void send(const void* from, int64_t bytes);
  void receive(void* to, int64_t bytes);
  // Moves on: how many of these are done. Error: it is broken, or its time is over; it has been aborted then.
  int64_t done();
  bool connected() const { return done_ > 0; }
  bool idle() const { return done_ == begun_; }  // as of the last done()

 private:
  using Clock = std::chrono::steady_clock;
  void begin();

  std::unique_ptr<PairLink> link_;  // null: aborted
  const LinkPatience patience_;
  int64_t begun_ = 1, done_ = 0;  // the connection is the first
  Clock::time_point moved_ = Clock::now();
};

}  // namespace hypic
