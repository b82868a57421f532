#include "serving/slots.h"

#include <algorithm>

#include "core/check.h"

namespace hypic {

Slots::Slots(std::string what, int64_t count) : what_(std::move(what)), owners_(count, 0) {
  for (int64_t i = count; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

int32_t Slots::take() { return take(1)[0]; }

std::vector<int32_t> Slots::take(int64_t count) {
  if (count > available())
    throw OutOfMemory(str(count, " more ", what_, count == 1 ? " is" : "s are", " needed, ",
                          available(), " of ", owners_.size(),
                          " are free and the others are in use; raise the pool or run fewer "
                          "requests at once"));
  std::vector<int32_t> slots(std::max<int64_t>(count, 0));
  for (int32_t& slot : slots) {
    slot = free_.back();
    free_.pop_back();
    owners_[slot] = 1;
  }
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

void Slots::check() const {
  std::vector<bool> free(owners_.size());
  for (const int32_t slot : free_) {
    HYPIC_CHECK(owners_.at(slot) == 0, what_, " ", slot, " is free and owned");
    HYPIC_CHECK(!free[slot], what_, " ", slot, " is free twice");
    free[slot] = true;
  }
  for (size_t slot = 0; slot < owners_.size(); ++slot)
    HYPIC_CHECK(owners_[slot] > 0 || free[slot], what_, " ", slot, " is lost");
}

}  // namespace hypic
