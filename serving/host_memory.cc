#include "serving/host_memory.h"

namespace hypic {
HostArena::HostArena(Backend& backend, int64_t bytes)
    : backend_(backend),
      memory_(static_cast<uint8_t*>(backend.allocate_host(static_cast<size_t>(ByteArena::rounded_up(bytes))))),
      ranges_(memory_, bytes) {}

HostArena::~HostArena() {
  try {
    if (const auto event = backend_.record()) event->wait();
  } catch (const std::exception&) {  // a device that failed copies no more
  }
  backend_.release_host(memory_);
}

namespace {

HostArena::End end_of(Part part) { return part == Part::op ? HostArena::End::lower : HostArena::End::upper; }

}  // namespace

std::shared_ptr<HostResidue> HostResidue::download(Backend& backend, const Pools& pools, HostArena& arena, Part part,
                                                   std::vector<Section> sections, const Placement& from) {
  std::vector<Section> form = device_form(pools, sections);
  const HostArena::End end = end_of(part);
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

std::shared_ptr<HostResidue> HostResidue::reserve(Backend& backend, HostArena& arena, Part part, int64_t bytes) {
  std::shared_ptr<HostResidue> residue(new HostResidue);
  residue->bytes_ = arena.take(bytes, end_of(part));
  if (!residue->bytes_) return nullptr;
  residue->arrived_ = backend.record();
  return residue;
}

std::span<uint8_t> HostResidue::memory() {
  bytes();
  return {bytes_.data(), static_cast<size_t>(bytes_.size())};
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
