#include "serving/host_memory.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"

namespace hypic {
namespace {

constexpr int64_t kAlignment = 64;

int64_t rounded_up(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

HostArena::HostArena(Backend& backend, int64_t bytes)
    : backend_(backend),
      capacity_(rounded_up(bytes)),
      memory_(static_cast<uint8_t*>(backend.allocate_host(static_cast<size_t>(capacity_)))) {
  if (capacity_ > 0) free_[0] = capacity_;
}

HostArena::~HostArena() {
  try {
    if (const auto event = backend_.record()) event->wait();
  } catch (const std::exception&) {  // a device that failed copies no more
  }
  backend_.release_host(memory_);
}

HostArena::Range HostArena::take(int64_t bytes, End end) {
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

void HostArena::give_back(int64_t offset, int64_t bytes) {
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

int64_t HostArena::in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

void HostArena::check() const {
  const std::lock_guard lock(mutex_);
  int64_t free = 0, end = -1;
  for (const auto& [offset, bytes] : free_) {
    HYPIC_CHECK(bytes > 0 && offset > end && offset + bytes <= capacity_, "free host memory at ", offset);
    end = offset + bytes;
    free += bytes;
  }
  HYPIC_CHECK(free + in_use_ == capacity_, free, " bytes are free, ", in_use_, " in use, of ", capacity_);
}

std::shared_ptr<HostResidue> HostResidue::download(Backend& backend, const Pools& pools, HostArena& arena, Part part,
                                                   std::vector<Section> sections, const Placement& from) {
  std::vector<Section> form = device_form(pools, sections);
  const HostArena::End end = part == Part::op ? HostArena::End::lower : HostArena::End::upper;
  std::shared_ptr<HostResidue> residue(new HostResidue);
  residue->bytes_ = arena.take(bytes_of(sections), end);
  if (!residue->bytes_) return nullptr;
  const bool same = form == sections;
  if (!same) {
    residue->copied_ = arena.take(bytes_of(form), end);
    if (!residue->copied_) return nullptr;
  }
  enqueue_download(backend, pools, form, from, (same ? residue->bytes_ : residue->copied_).data());
  residue->arrived_ = backend.record();
  residue->sections_ = std::move(sections);
  residue->device_form_ = std::move(form);
  return residue;
}

std::span<const uint8_t> HostResidue::bytes() {
  const std::lock_guard lock(mutex_);
  if (arrived_) arrived_->wait();
  arrived_.reset();
  if (copied_) {
    narrow(device_form_, copied_.data(), sections_, bytes_.data());
    copied_ = {};
  }
  return {bytes_.data(), static_cast<size_t>(bytes_.size())};
}

}  // namespace hypic
