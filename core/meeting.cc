#include "core/meeting.h"

#include <algorithm>

#include "core/backend.h"

namespace hypic {

void Meeting::require_all(int rank) const {
  const auto lost = std::find(left_.begin(), left_.end(), true);
  if (lost != left_.end())
    throw RankLost(str("rank ", rank, " waits for rank ", lost - left_.begin(), ", which has failed"));
}

void Meeting::meet(int rank, const std::function<void()>& act) {
  std::unique_lock lock(mutex_);
  require_all(rank);
  const uint64_t before = meetings_;
  if (++waiting_ == left_.size()) {
    act();
    waiting_ = 0;
    ++meetings_;
    met_.notify_all();
    return;
  }
  met_.wait(lock, [&] { return meetings_ != before || std::find(left_.begin(), left_.end(), true) != left_.end(); });
  if (meetings_ == before) require_all(rank);  // else all have met, whatever befell one of them since
}

void Meeting::leave(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  left_[rank] = true;
  met_.notify_all();
}

void Meeting::rejoin(int rank) {
  const std::lock_guard lock(mutex_);
  left_[rank] = false;
  waiting_ = 0;
}

}  // namespace hypic
