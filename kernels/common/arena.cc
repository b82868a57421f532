#include "kernels/common/arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hypic::cuda {

Arena::Arena(Obtain obtain, Release release) : obtain_(std::move(obtain)), release_(std::move(release)) {}

Arena::~Arena() {
  for (const auto& [begin, slab] : slabs_) release_(begin);
}

void* Arena::take(size_t bytes) {
  bytes = std::max((bytes + kAlignment - 1) / kAlignment, size_t{1}) * kAlignment;
  const auto take_from = [&](Slab& slab, Places::iterator place) {
    const auto [begin, size] = *place;
    taken_[begin] = {&slab, bytes};
    slab.free.erase(place);
    if (size > bytes) slab.free[begin + bytes] = size - bytes;
    return begin;
  };
  for (const auto& [begin, slab] : slabs_)
    for (auto place = slab->free.begin(); place != slab->free.end(); ++place)
      if (place->second >= bytes) return take_from(*slab, place);
  const size_t size = std::max({bytes, bytes_, kMinSlab});  // at least as much again: few slabs
  auto* const begin = static_cast<char*>(obtain_(size));
  Slab& slab = *(slabs_[begin] = std::make_unique<Slab>(Slab{begin, {{begin, size}}}));
  bytes_ += size;
  return take_from(slab, slab.free.begin());
}

bool Arena::give_back(void* memory) noexcept {
  const auto found = taken_.find(static_cast<char*>(memory));
  if (found == taken_.end()) return false;
  auto [begin, taken] = *found;
  taken_.erase(found);
  Places& free = taken.slab->free;
  auto next = free.lower_bound(begin);
  if (next != free.end() && next->first == begin + taken.bytes) {
    taken.bytes += next->second;
    next = free.erase(next);
  }
  if (next != free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += taken.bytes;
      return true;
    }
  }
  free[begin] = taken.bytes;
  return true;
}

}  // namespace hypic::cuda
