// Host memory of the segment cache: one piece that the device copies to and from directly, and the residues in it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "serving/residue_format.h"

namespace hypic {

// Pinning takes long, so it is done once. Ranges may be given back by any thread, also while copies from and to them are
// under way: whoever takes the memory next must write it by copies of the device, which come later in its order, or after
// one of them is done. None may outlive the arena, which waits for all copies at its end.
class HostArena {
 public:
  // Error: there is not as much memory.
  HostArena(Backend& backend, int64_t bytes);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  class Range {
   public:
    Range() = default;
    Range(Range&& other) noexcept { *this = std::move(other); }
    Range& operator=(Range&& other) noexcept {
      std::swap(arena_, other.arena_);
      std::swap(offset_, other.offset_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Range() {
      if (arena_) arena_->give_back(offset_, bytes_);
    }
    explicit operator bool() const { return arena_ != nullptr; }
    uint8_t* data() const { return arena_->memory_ + offset_; }
    int64_t size() const { return bytes_; }

   private:
    friend class HostArena;
    Range(HostArena* arena, int64_t offset, int64_t bytes)
        : arena_(arena), offset_(offset), bytes_(bytes) {}
    HostArena* arena_ = nullptr;
    int64_t offset_ = 0, bytes_ = 0;
  };

  // The first free stretch that holds it, from the lower end or from the upper one: what has one size at one end and what
  // has many at the other leave each other no gaps. Empty where there is none.
  enum class End { lower, upper };
  Range take(int64_t bytes, End end);

  int64_t in_use() const;  // bytes, as rounded up
  // InternalError where free stretches overlap, touch or do not add up.
  void check() const;

 private:
  void give_back(int64_t offset, int64_t bytes);

  Backend& backend_;
  const int64_t capacity_;
  uint8_t* const memory_;
  mutable std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // bytes by offset
  int64_t in_use_ = 0;
};

// A residue in host memory, in the format of the lower tiers; perhaps still on its way there. For several threads.
class HostResidue {
 public:
  // Enqueues the copies. Null where the arena has no room.
  static std::shared_ptr<HostResidue> download(Backend& backend, const Pools& pools, HostArena& arena, Part part,
                                               std::vector<Section> sections, const Placement& from);
  HostResidue(const HostResidue&) = delete;
  HostResidue& operator=(const HostResidue&) = delete;

  // Waits for the device's copy; rounds it where the format asks for that, whoever comes first.
  std::span<const uint8_t> bytes();
  int64_t size() const { return bytes_.size(); }

 private:
  HostResidue() = default;

  HostArena::Range bytes_;
  std::mutex mutex_;  // of what follows
  HostArena::Range copied_;  // as on the device, where that is another form
  std::vector<Section> sections_, device_form_;
  std::unique_ptr<Event> arrived_;
};

}  // namespace hypic
