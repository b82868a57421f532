#include "serving/watched_link.h"

#include "core/check.h"

namespace hypic {

void WatchedLink::begin() {
  require(link_ != nullptr, "the link was aborted");
  if (idle()) moved_ = Clock::now();
  ++begun_;
}

void WatchedLink::send(const void* from, int64_t bytes) {
  begin();
  link_->send(from, bytes);
}

void WatchedLink::receive(void* to, int64_t bytes) {
  begin();
  link_->receive(to, bytes);
}

int64_t WatchedLink::done() {
  require(link_ != nullptr, "the link was aborted");
  try {
    const int64_t done = link_->done();
    if (done > done_) moved_ = Clock::now();
    done_ = done;
    const auto patience = connected() ? patience_.progress : patience_.connect;
    require(idle() || Clock::now() - moved_ < patience, connected() ? "nothing moved on the link" : "no link was made",
            " for ", static_cast<double>(patience.count()) / 1000, " s");
  } catch (...) {
    link_.reset();
    throw;
  }
  return done_ - 1;
}

}  // namespace hypic
