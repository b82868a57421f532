// Host memory of the segment cache: one piece that the device copies to and from directly, and the residues in it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/backend.h"
#include "serving/byte_arena.h"
#include "serving/residue_format.h"

namespace hypic {

// Pinning takes long, so it is done once. Ranges may be given back by any thread, also while copies from and to them are
// under way: whoever takes the memory next must write it by copies of the device, which come later in its order, or after
// one of them is done. None may outlive the arena, which waits for all copies at its end.
class HostArena {
 public:
  using Range = ByteArena::Range;
  using End = ByteArena::End;

  // Error: there is not as much memory.
  HostArena(Backend& backend, int64_t bytes);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  Range take(int64_t bytes, End end) { return ranges_.take(bytes, end); }
  int64_t in_use() const { return ranges_.in_use(); }
  void check() const { ranges_.check(); }

 private:
  Backend& backend_;
  uint8_t* const memory_;
  ByteArena ranges_;
};

// A residue in host memory, in the format of the lower tiers; perhaps still on its way there. For several threads.
class HostResidue {
 public:
  // Enqueues the copies. Null where the arena has no room.
  static std::shared_ptr<HostResidue> download(Backend& backend, const Pools& pools, HostArena& arena, Part part,
                                               std::vector<Section> sections, const Placement& from);
  // Memory for one whose bytes come from elsewhere. Null where the arena has no room.
  static std::shared_ptr<HostResidue> reserve(Backend& backend, HostArena& arena, Part part, int64_t bytes);
  HostResidue(const HostResidue&) = delete;
  HostResidue& operator=(const HostResidue&) = delete;

  // To write a reserved one. Waits for the copies of the device that may still read what was there before.
  std::span<uint8_t> memory();
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
