#include "serving/byte_arena.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"

namespace hypic {

ByteArena::ByteArena(uint8_t* memory, int64_t bytes) : memory_(memory), capacity_(rounded_up(bytes)) {
  if (capacity_ > 0) free_[0] = capacity_;
}

ByteArena::Range ByteArena::take(int64_t bytes, End end) {
  const int64_t needed = rounded_up(bytes);
  const std::lock_guard lock(mutex_);
  if (needed == 0) return {};
  const auto holds = [&](const auto& stretch) { return stretch.second >= needed; };
  auto stretch = free_.end();
  if (end == End::lower) {
    stretch = std::find_if(free_.begin(), free_.end(), holds);
  } else if (const auto last = std::find_if(free_.rbegin(), free_.rend(), holds); last != free_.rend()) {
    stretch = std::prev(last.base());
  }
  if (stretch == free_.end()) return {};
  const auto [first, size] = *stretch;
  const int64_t rest = size - needed, offset = end == End::lower ? first : first + rest;
  free_.erase(stretch);
  if (rest > 0) free_[end == End::lower ? first + needed : first] = rest;
  in_use_ += needed;
  return {this, offset, bytes};
}

void ByteArena::give_back(int64_t offset, int64_t bytes) {
  const int64_t returned = rounded_up(bytes);
  const std::lock_guard lock(mutex_);
  in_use_ -= returned;
  const auto next = free_.upper_bound(offset);
  auto stretch = free_.emplace_hint(next, offset, returned);
  if (next != free_.end() && offset + returned == next->first) {
    stretch->second += next->second;
    free_.erase(next);
  }
  if (stretch == free_.begin()) return;
  const auto before = std::prev(stretch);
  if (before->first + before->second != offset) return;
  before->second += stretch->second;
  free_.erase(stretch);
}

int64_t ByteArena::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

void ByteArena::check() const {
  const std::lock_guard lock(mutex_);
  int64_t free = 0, end = -1;
  for (const auto& [offset, bytes] : free_) {
    HYPIC_CHECK(bytes > 0 && offset > end && offset + bytes <= capacity_, "free memory at ", offset);
    end = offset + bytes;
    free += bytes;
  }
  HYPIC_CHECK(free + in_use_ == capacity_, free, " bytes are free, ", in_use_, " in use, of ", capacity_);
}

}  // namespace hypic
