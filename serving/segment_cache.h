// What has been computed and may be used again: residues of segments in two stores (K, V;
// operators), and states after whole prefixes, under one byte budget and in up to three tiers.
// docs/segment-cache.md tells the whole story. Not for several threads at once; what it has of its own write and read
// files.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/sha256.h"
#include "models/model.h"
#include "models/pools.h"
#include "serving/host_memory.h"
#include "serving/planner.h"
#include "serving/residue_format.h"
#include "serving/residue_reads.h"
#include "serving/residue_writer.h"
#include "serving/slots.h"

namespace hypic {

// Which segments are stored: every one, or from the second request on that brings it. Most segments
// of real traffic never come again; they would push out those that do.
enum class Admission : uint8_t { always, second_touch };

// What a server takes. Library callers expect that what they ran is cached, so CacheOptions says
// always.
inline constexpr Admission kServerAdmission = Admission::second_touch;

struct CacheOptions {
  int64_t budget_bytes = 0;  // of entries on the device; 0: whatever the pools hold
  Admission admission = Admission::always;
  int64_t host_bytes = 0;   // of host memory for entries that leave the device; 0: none
  std::string disk_folder;  // for entries that leave host memory; empty: none
  int64_t disk_bytes = 0;   // of files there; must be above 0 with a folder
  // Of host memory for what is on its way to disk, or into another format: what does not fit is dropped. As much again
  // for what is read ahead from there: what does not fit is read when it is needed.
  int64_t queue_bytes = int64_t{1} << 30;
  ResidueFormat format = ResidueFormat::full;  // of host memory and disk
  int64_t seen_keys = 65536;                   // remembered for second_touch
  // Called when K, V or an operator appear in the cache, in any tier, and when they are gone from all of them; by the
  // caller's thread, in the middle of things: it may only take note.
  std::function<void(Part part, const Tokens& tokens, int32_t first, int32_t tail, bool here)> on_change;
  // Tests only: called before each file, but by threads of the cache's own alone.
  std::function<void()> before_write, before_read;
};

// Bytes of one tier by owner.
struct TierUsage {
  int64_t entries = 0;
  int64_t pages = 0;      // K, V; pages of several entries count once
  int64_t operators = 0;  // without their tails
  int64_t tails = 0;
  int64_t states = 0;
  int64_t headers = 0;  // of files
  int64_t total() const { return pages + operators + tails + states + headers; }
};

struct CacheUsage {
  TierUsage device, host, disk;  // an entry on the device may have its file as well
  int64_t entries = 0;           // a residue is two: K, V and operator
  int64_t pinned = 0;            // entries in use by requests, flushed ones among them
  int64_t writing = 0;           // entries on their way to disk, still in host memory
  int64_t queued_bytes = 0;      // of host memory for what is under way
  int64_t ahead_bytes = 0;       // of host memory for what is or was read ahead and still waits for its lookup
  // Since the beginning.
  int64_t hits = 0, misses = 0;           // lookups of segments and of prefixes
  int64_t host_hits = 0, disk_hits = 0;   // hits for which something came from there, from the lower tier of two
  int64_t read_ahead = 0, read_late = 0;  // files that lookups found read; that they had to wait for
  int64_t admitted = 0,
          refused = 0;  // residues and snapshots stored; not stored, for whatever reason
  int64_t evicted = 0;  // entries that are gone for want of room
  int64_t dropped = 0;  // moves down a tier that did not take place: no room beside what is under way or was used later
  int64_t demoted = 0, promoted = 0;  // moves of entries down a tier; up to the device
  std::vector<std::string> warnings;  // the latest, a line each: files that were ignored
  int64_t warning_count = 0;          // all of them
};

class SegmentCache {
  struct Entry;
  struct Id {
    Part part;
    Sha256::Digest key;
    int32_t first = 0, tail = 0;  // of operators
    auto operator<=>(const Id&) const = default;
  };

 public:
  // Slots belong to the engine, which outlives the cache; the cache gives back what it drops.
  // Finds the entries of earlier runs in the disk folder. Error: a folder that cannot be used.
  SegmentCache(std::string identity, const Model& model, const Pools& pools, Slots& pages,
               Slots& operators, Slots& states, const CacheOptions& options);
  ~SegmentCache();

  // Keeps an entry on the device, even if it is flushed meanwhile. Must not outlive the cache.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept { *this = std::move(other); }
    Pin& operator=(Pin&& other) noexcept {
      std::swap(cache_, other.cache_);
      std::swap(entry_, other.entry_);
      return *this;
    }
    ~Pin() {
      if (entry_) cache_->unpin(*entry_);
    }
    explicit operator bool() const { return entry_ != nullptr; }
    const Tokens& tokens() const;
    const std::vector<int32_t>& pages() const;  // K, V, prefix
    int32_t slot() const;                       // operator, or state of a prefix
    int32_t built_at() const;                   // K, V: position of the first use

   private:
    friend class SegmentCache;
    Pin(SegmentCache* cache, Entry* entry) : cache_(cache), entry_(entry) {}
    SegmentCache* cache_ = nullptr;
    Entry* entry_ = nullptr;
  };

  // A segment's residue with the operator over [first, n − tail), on the device: both or neither.
  // Lower tiers are promoted; where the device has no room for that, it is a miss.
  struct ResiduePins {
    Pin kv, op;
    explicit operator bool() const { return bool{kv} && bool{op}; }
  };
  ResiduePins find_residue(const Tokens& tokens, int32_t first, int32_t tail);
  // The start of a prompt, with its key: of a long one the hash takes long. Those of one prompt share its tokens.
  struct Prefix {
    std::shared_ptr<const Tokens> prompt;
    size_t length;
    Sha256::Digest key;
    std::span<const int32_t> tokens() const { return std::span(*prompt).first(length); }
  };
  // The prefixes that end with a segment, the shortest first; each token is hashed once.
  std::vector<Prefix> prefixes(std::span<const Tokens> segments) const;
  // The longest of these that is cached, with its index; nothing is a miss.
  std::optional<std::pair<size_t, Pin>> find_prefix(std::span<const Prefix> prefixes);

  // Files that lookups to come need, on their way to host memory, so that these do not wait for the disk. A hint: they
  // find the same without it. The memory goes with its last copy. Must not outlive the cache.
  class Ahead {
   public:
    // All that is on disk alone; what is not, for want of room, is read when it is looked up.
    bool begun() const { return begun_; }
    // What has begun is read, or turned out to be of no use.
    bool arrived() const {
      return std::ranges::all_of(reads_, [](const auto& read) { return read->done(); });
    }

   private:
    friend class SegmentCache;
    std::vector<std::vector<Id>> wanted_;  // each is of use as a whole only
    std::vector<std::shared_ptr<ResidueRead>> reads_;
    bool begun_ = true;
  };
  bool reads_ahead() const { return reads_ != nullptr; }
  // Adds what find_residue, find_prefix will look up.
  void want_residue(Ahead& ahead, const Tokens& tokens, int32_t first, int32_t tail) const;
  void want_prefix(Ahead& ahead, std::span<const Prefix> prefixes) const;
  // Begins what is on disk alone, as far as there is room; without `begin` it only joins what others have begun. May be
  // called again.
  void read_ahead(Ahead& ahead, bool begin = true);
  // As ResidueReads::on_read. For any thread.
  void on_read(std::function<void()> call);

  // Position of the first use of K, V that are cached in any tier.
  std::optional<int32_t> built_at(const Tokens& tokens) const;
  // Whether it is cached in any tier. Not a use.
  bool has_residue(const Tokens& tokens, int32_t first, int32_t tail) const;
  bool has_prefix(const Tokens& tokens) const;
  bool has_prefix(const Prefix& prefix) const { return lookup(Id{Part::prefix, prefix.key}, prefix.tokens()); }

  // Whether the admission rule stores it; notes that a request brought it.
  bool admits(const Tokens& segment) { return admits(Id{Part::kv, key(segment)}); }
  bool admits(const Prefix& prefix) { return admits(Id{Part::prefix, prefix.key}); }

  // Take the slots over: stored, or given back where that is on the device already or the budget
  // has no room beside what is pinned. Whether it is on the device now.
  bool insert_residue(const Tokens& tokens, int32_t first, int32_t tail, std::vector<int32_t> pages,
                      int32_t op, int32_t built_at);
  bool insert_prefix(const Prefix& prefix, std::vector<int32_t> pages, int32_t state);
  void count_refused() { ++refused_; }
  int64_t promoted() const { return promoted_; }  // as of usage()

  // Evicts, the least recently used first, until `count` of these slots are free; does nothing
  // where even that were too few.
  void make_room(const Slots& slots, int64_t count);
  // How many of these slots are free or would be, once all that is not in use had made room.
  int64_t most_available(const Slots& slots) const;
  // Evicts the least recently used entry that is not pinned from the device; false: there is none.
  bool evict_one();
  // Drops every entry of every tier, files too, and what was seen; a pinned one when its last pin
  // goes.
  void flush();
  // Writes every entry that has no file yet, and when the others were used, so that the next start finds it. Waits for
  // the disk, as the destructor does for what is on its way there.
  void persist();
  // Waits until what has left the device or host memory has arrived.
  void drain();
  bool has_lower_tiers() const { return writer_ || options_.host_bytes > 0; }

  // What is under way counts where it was, until a call that changes something finds it arrived.
  CacheUsage usage() const;

  // Distinct pages, operator slots and state slots that entries own.
  struct Held {
    int64_t pages, operators, states;
  };
  Held held() const { return held_; }
  int64_t pinned() const { return pinned_; }
  // InternalError where entries, lists, slots, sums and limits contradict each other.
  void check_integrity() const;

 private:
  using Order = std::map<int64_t, Entry*>;  // by last use

  // What something new takes of the device: pages that it has, perhaps shared with entries, and slots to come.
  struct Need {
    std::span<const int32_t> pages;
    int64_t new_pages = 0, operators = 0, states = 0;
  };
  // A job of the writer.
  struct UnderWay {
    Entry* entry;  // null: it is to become no file
    int64_t host_bytes, file_bytes;
    int64_t used;
  };

  Sha256::Digest key(const Tokens& tokens) const;
  bool admits(const Id& wanted);
  Id id(Part part, const Tokens& tokens, int32_t first = 0, int32_t tail = 0) const;
  Entry* lookup(const Id& id, std::span<const int32_t> tokens) const;

  int64_t tick();
  Pin pin(Entry& entry);
  void unpin(Entry& entry);
  void list(Entry& entry);
  void unlist(Entry& entry);
  void forget_if_gone(Entry& entry);
  void say(const Entry& entry, bool here) const;
  void count_kept(const Entry& entry, int32_t sign);
  void count_hit(int from);

  void place(const Id& id, std::span<const int32_t> tokens, Placement placement, int32_t built_at);
  void enter_device(Entry& entry, Placement placement);
  bool promote(Entry& entry);
  void demote(Entry& entry);
  void demote_to_disk(Entry& entry);
  bool send_down(Entry& entry, bool to_host);
  void leave_device(Entry& entry);
  void leave_host(Entry& entry);
  void collect();

  Need to_promote(const Entry& entry) const;
  bool budget_allows(const Need& need) const;
  bool slots_allow(const Need& need) const;
  bool fit(const Need& need);
  bool make_host_room(int64_t bytes);
  bool make_disk_room(int64_t bytes, int64_t used);
  void renounce_file(UnderWay& one);

  std::string path_of(const Id& id) const;
  ResidueReader reader() const;
  ResidueHeader header_of(const Entry& entry) const;
  bool wants_file(const Entry& entry) const;
  std::shared_ptr<ResidueRead> begin_read(Entry& entry);
  bool read_file(Entry& entry, std::shared_ptr<HostResidue>& ahead, std::vector<uint8_t>& now);
  void remove_file(Entry& entry);
  void lose_file(Entry& entry);
  void set_times();
  void scan_folder();
  void warn(const std::string& line);

  int64_t device_bytes() const;
  int64_t ahead_bytes() const;
  int64_t cost(const Need& need) const;
  std::vector<Section> sections_of(const Entry& entry) const;
  int64_t stored_bytes(const Entry& entry) const;
  int64_t file_bytes(const Entry& entry) const;

  std::string identity_;
  Backend& backend_;
  const Pools& pools_;
  Slots& pages_;
  Slots& operators_;
  Slots& states_;
  const CacheOptions options_;
  ResidueLayout layout_;
  int64_t max_tokens_;
  int64_t budget_;

  std::unique_ptr<HostArena> arena_;  // before all that has ranges of it
  std::map<Id, std::unique_ptr<Entry>> entries_;
  std::list<std::unique_ptr<Entry>> flushed_;  // while pinned
  Order on_device_, on_host_;                  // those that are not pinned
  Order on_disk_;                              // all with a file
  int64_t clock_ = 0;                          // ns since 1970, or as far beyond as uses must differ
  std::vector<int32_t> page_users_;            // entries that hold a page
  std::vector<int32_t> page_keepers_;          // pinned ones among them
  Held held_{0, 0, 0}, kept_{0, 0, 0};         // by entries; by pinned ones
  int64_t host_bytes_ = 0, disk_bytes_ = 0;
  int64_t pinned_ = 0;

  std::deque<UnderWay> under_way_;  // as pushed
  int64_t queued_bytes_ = 0, writing_bytes_ = 0;  // their sums
  std::unique_ptr<ResidueWriter> writer_;  // null without lower tiers that need it
  std::vector<std::weak_ptr<ResidueRead>> live_reads_;  // those that somebody still wants
  std::unique_ptr<ResidueReads> reads_;                 // null without a disk

  std::list<Id> seen_;  // the latest first
  std::map<Id, std::list<Id>::iterator> seen_at_;

  int64_t hits_ = 0, misses_ = 0, admitted_ = 0, refused_ = 0;
  int64_t host_hits_ = 0, disk_hits_ = 0, read_ahead_ = 0, read_late_ = 0;
  int64_t evicted_ = 0, dropped_ = 0, demoted_ = 0, promoted_ = 0;
  std::deque<std::string> warnings_;
  int64_t warning_count_ = 0;
};

}  // namespace hypic
