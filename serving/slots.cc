#include "serving/slots.h"

#include "core/check.h"

namespace hypic {

Slots::Slots(std::string what, int64_t count) : what_(std::move(what)), owners_(count, 0) {
  for (int64_t i = count; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

int32_t Slots::take() {
  require(!free_.empty(), "no ", what_, " is free: all ", owners_.size(),
          " are in use; raise the pool or flush the cache");
  const int32_t slot = free_.back();
  free_.pop_back();
  owners_[slot] = 1;
  return slot;
}

std::vector<int32_t> Slots::take(int64_t count) {
  require(count <= static_cast<int64_t>(free_.size()), count, " ", what_, "s are asked for, ",
          free_.size(), " of ", owners_.size(), " are free; raise the pool or flush the cache");
  std::vector<int32_t> slots(count);
  for (int32_t& slot : slots) slot = take();
  return slots;
}

void Slots::share(int32_t slot) {
  HYPIC_CHECK(owners_.at(slot) > 0, what_, " ", slot, " is free");
  ++owners_[slot];
}

void Slots::give_back(int32_t slot) {
  HYPIC_CHECK(owners_.at(slot) > 0, what_, " ", slot, " is freed twice");
  if (--owners_[slot] == 0) free_.push_back(slot);
}

void Slots::give_back(const std::vector<int32_t>& slots) {
  for (const int32_t slot : slots) give_back(slot);
}

}  // namespace hypic
