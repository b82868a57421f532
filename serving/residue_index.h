// Which residues a worker's cache holds, as others may ask: by a hash of the segment's tokens, for one mode.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "core/sha256.h"
#include "serving/mode.h"
#include "serving/planner.h"
#include "serving/residue_format.h"

namespace hypic {

// SHA-256 of the token ids: the same on every worker of a model.
using SegmentKey = Sha256::Digest;
SegmentKey segment_key(const Tokens& tokens);

struct ResidueChange {
  SegmentKey key{};
  bool here = false;
};

// For several threads. A reader follows it by sequence numbers, which begin at 1.
class ResidueIndex {
 public:
  explicit ResidueIndex(const Mode& mode, size_t log = 65536) : mode_(mode), log_(log) {}

  // As CacheOptions::on_change.
  void note(Part part, const Tokens& tokens, int32_t first, int32_t tail, bool here);

  struct Update {
    uint64_t next = 1;      // to ask with the next time
    bool snapshot = false;  // these are all there are; what is not named is not here
    std::vector<ResidueChange> changes;
  };
  // What changed from this number on; waits as long as that for something. 0, or a number too long ago: a snapshot.
  Update since(uint64_t number, std::chrono::milliseconds wait);

 private:
  struct Parts {
    bool kv = false, op = false;
    bool whole() const { return kv && op; }
  };

  const Mode mode_;
  const size_t log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<SegmentKey, Parts> here_;
  std::deque<ResidueChange> changes_;  // the latest, up to number next_ − 1
  uint64_t next_ = 1;
};

}  // namespace hypic
