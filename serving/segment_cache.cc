#include "serving/segment_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>

#include "core/check.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".residue";

// Whether a name is that of a file which we began to write.
bool is_leftover(const std::string& name) {
  constexpr size_t kHex = 2 * sizeof(Sha256::Digest);
  const size_t part = name.find(".residue.part-");
  return part != name.npos && part >= kHex &&
         std::all_of(name.begin(), name.begin() + kHex, [](unsigned char c) { return std::isxdigit(c); }) &&
         std::all_of(name.begin() + part + 14, name.end(), [](unsigned char c) { return std::isdigit(c); });
}
constexpr size_t kMaxWarnings = 100;
constexpr size_t kMaxFiles = 1 << 20;               // of a folder, so that a scan ends
constexpr auto kAbandoned = std::chrono::hours(1);  // a half-written file of a process that died

const CacheOptions& checked(const CacheOptions& options) {
  require(options.budget_bytes >= 0 && options.host_bytes >= 0 && options.disk_bytes >= 0,
          "byte limits of the segment cache cannot be negative");
  require(options.disk_folder.empty() || options.disk_bytes > 0,
          "a disk folder of the segment cache needs disk_bytes above 0");
  require(options.seen_keys > 0, "seen_keys must be above 0, is ", options.seen_keys);
  return options;
}

}  // namespace

struct SegmentCache::Entry {
  Id id;
  Tokens tokens;
  int32_t built_at = 0;
  int64_t used = 0;  // when last; distinct
  int32_t pins = 0;
  bool flushed = false;

  // Where it is: on the device or in host memory, or in neither; beside that perhaps in a file.
  bool on_device = false;
  Placement placement;
  bool on_host = false;
  std::vector<uint8_t> payload;
  int64_t file_bytes = 0;  // 0: no file

  bool gone() const { return !on_device && !on_host && file_bytes == 0; }
};

SegmentCache::SegmentCache(std::string identity, const Model& model, const Pools& pools,
                           Slots& pages, Slots& operators, Slots& states,
                           const CacheOptions& options)
    : identity_(std::move(identity)),
      backend_(model.backend()),
      pools_(pools),
      pages_(pages),
      operators_(operators),
      states_(states),
      options_(checked(options)),
      layout_(model.spec(), backend_.compute_dtype(), backend_.state_dtype(), options.format),
      max_tokens_(model.spec().max_positions),
      budget_(options.budget_bytes > 0 ? options.budget_bytes
                                       : std::numeric_limits<int64_t>::max()),
      page_users_(pools.sizes.pages, 0) {
  if (!options_.disk_folder.empty()) scan_folder();
}

SegmentCache::~SegmentCache() = default;

const Tokens& SegmentCache::Pin::tokens() const { return entry_->tokens; }
const std::vector<int32_t>& SegmentCache::Pin::pages() const { return entry_->placement.pages; }
int32_t SegmentCache::Pin::slot() const { return entry_->placement.slot; }
int32_t SegmentCache::Pin::built_at() const { return entry_->built_at; }

// Keys, lookups.

Sha256::Digest SegmentCache::key(const Tokens& tokens) const {
  return Sha256()
      .add(identity_)
      .add(static_cast<int64_t>(tokens.size()))
      .add(tokens.data(), tokens.size() * sizeof(int32_t))
      .digest();
}

SegmentCache::Id SegmentCache::id(Part part, const Tokens& tokens, int32_t first,
                                  int32_t tail) const {
  return {part, key(tokens), first, tail};
}

SegmentCache::Entry* SegmentCache::lookup(const Id& id, const Tokens& tokens) const {
  const auto found = entries_.find(id);
  return found != entries_.end() && found->second->tokens == tokens ? found->second.get() : nullptr;
}

SegmentCache::ResiduePins SegmentCache::find_residue(const Tokens& tokens, int32_t first,
                                                     int32_t tail) {
  Id wanted = id(Part::kv, tokens);
  Entry* kv = lookup(wanted, tokens);
  wanted = {Part::op, wanted.key, first, tail};
  Entry* op = lookup(wanted, tokens);
  if (kv && op) {
    ResiduePins pins{pin(*kv), pin(*op)};  // both first: promoting one must not evict the other
    if ((kv->on_device || promote(*kv)) && (op->on_device || promote(*op))) {
      ++hits_;
      return pins;
    }
  }
  ++misses_;
  return {};
}

std::optional<std::pair<size_t, SegmentCache::Pin>> SegmentCache::find_prefix(
    const std::vector<Tokens>& prefixes) {
  for (size_t i = prefixes.size(); i-- > 0;) {
    Entry* entry = lookup(id(Part::prefix, prefixes[i]), prefixes[i]);
    if (!entry) continue;
    Pin held = pin(*entry);
    if (!entry->on_device && !promote(*entry)) continue;
    ++hits_;
    return std::pair(i, std::move(held));
  }
  ++misses_;
  return std::nullopt;
}

std::optional<int32_t> SegmentCache::built_at(const Tokens& tokens) const {
  const Entry* kv = lookup(id(Part::kv, tokens), tokens);
  return kv ? std::optional(kv->built_at) : std::nullopt;
}

bool SegmentCache::has_residue(const Tokens& tokens, int32_t first, int32_t tail) const {
  return lookup(id(Part::kv, tokens), tokens) && lookup(id(Part::op, tokens, first, tail), tokens);
}

bool SegmentCache::has_prefix(const Tokens& tokens) const {
  return lookup(id(Part::prefix, tokens), tokens);
}

bool SegmentCache::admits(Part part, const Tokens& tokens) {
  if (options_.admission == Admission::always) return true;
  const Id wanted = id(part, tokens);
  if (const auto found = seen_at_.find(wanted); found != seen_at_.end()) {
    seen_.splice(seen_.begin(), seen_, found->second);
    return true;
  }
  seen_.push_front(wanted);
  seen_at_[wanted] = seen_.begin();
  if (static_cast<int64_t>(seen_.size()) > options_.seen_keys) {
    seen_at_.erase(seen_.back());
    seen_.pop_back();
  }
  return false;
}

// Pins, and the lists of those that are not pinned.

SegmentCache::Pin SegmentCache::pin(Entry& entry) {
  unlist(entry);
  if (entry.file_bytes > 0) {
    on_disk_.erase(entry.used);
    on_disk_[clock_ + 1] = &entry;
    utimensat(AT_FDCWD, path_of(entry.id).c_str(), nullptr, 0);  // so that the next start knows
  }
  entry.used = ++clock_;
  if (entry.pins++ == 0) ++pinned_;
  return {this, &entry};
}

void SegmentCache::unpin(Entry& entry) {
  if (--entry.pins > 0) return;
  --pinned_;
  if (entry.flushed) {
    leave_device(entry);
    leave_host(entry);
    flushed_.remove_if([&](const auto& one) { return one.get() == &entry; });
    return;
  }
  list(entry);
  forget_if_gone(entry);
}

void SegmentCache::list(Entry& entry) {
  if (entry.pins > 0) return;
  if (entry.on_device) on_device_[entry.used] = &entry;
  if (entry.on_host) on_host_[entry.used] = &entry;
}

void SegmentCache::unlist(Entry& entry) {
  if (entry.pins > 0) return;
  if (entry.on_device) on_device_.erase(entry.used);
  if (entry.on_host) on_host_.erase(entry.used);
}

void SegmentCache::forget_if_gone(Entry& entry) {
  if (entry.pins > 0 || !entry.gone()) return;
  ++evicted_;
  entries_.erase(Id(entry.id));
}

// In, out, and between the tiers.

// A new entry; or an old one of a lower tier, whose copy there is no better.
void SegmentCache::place(const Id& id, const Tokens& tokens, Placement placement,
                         int32_t built_at) {
  std::unique_ptr<Entry>& entry = entries_[id];
  if (entry) {
    unlist(*entry);
    leave_host(*entry);
  } else {
    entry = std::make_unique<Entry>();
    entry->id = id;
    entry->tokens = tokens;
    entry->built_at = built_at;
    entry->used = ++clock_;
  }
  enter_device(*entry, std::move(placement));
  list(*entry);
}

void SegmentCache::enter_device(Entry& entry, Placement placement) {
  entry.on_device = true;
  entry.placement = std::move(placement);
  for (const int32_t page : entry.placement.pages) held_.pages += page_users_[page]++ == 0;
  held_.operators += entry.id.part == Part::op;
  held_.states += entry.id.part == Part::prefix;
}

void SegmentCache::leave_device(Entry& entry) {
  if (!entry.on_device) return;
  for (const int32_t page : entry.placement.pages) held_.pages -= --page_users_[page] == 0;
  held_.operators -= entry.id.part == Part::op;
  held_.states -= entry.id.part == Part::prefix;
  pages_.give_back(entry.placement.pages);
  if (entry.id.part == Part::op) operators_.give_back(entry.placement.slot);
  if (entry.id.part == Part::prefix) states_.give_back(entry.placement.slot);
  entry.placement = {};
  entry.on_device = false;
}

void SegmentCache::leave_host(Entry& entry) {
  if (!entry.on_host) return;
  host_bytes_ -= static_cast<int64_t>(entry.payload.size());
  entry.payload = {};
  entry.on_host = false;
}

bool SegmentCache::insert_residue(const Tokens& tokens, int32_t first, int32_t tail,
                                  std::vector<int32_t> pages, int32_t op, int32_t built_at) {
  const Id kv_id = id(Part::kv, tokens), op_id{Part::op, kv_id.key, first, tail};
  const auto kv = entries_.find(kv_id), old_op = entries_.find(op_id);
  // A half that is there already must not make room for the other.
  const Pin kept_kv = kv == entries_.end() ? Pin() : pin(*kv->second);
  const Pin kept_op = old_op == entries_.end() ? Pin() : pin(*old_op->second);
  const bool new_kv = !kept_kv || !kept_kv.entry_->on_device;
  const bool new_op = !kept_op || !kept_op.entry_->on_device;
  bool fits = false;
  try {
    fits = fit([&] { return (new_kv ? page_cost(pages) : 0) + (new_op ? pools_.operator_bytes() : 0); });
  } catch (...) {  // they are ours by now
    pages_.give_back(pages);
    operators_.give_back(op);
    throw;
  }
  if (fits && new_kv)
    place(kv_id, tokens, {std::move(pages), kNone}, built_at);
  else
    pages_.give_back(pages);
  if (fits && new_op)
    place(op_id, tokens, {{}, op}, 0);
  else
    operators_.give_back(op);
  if (new_kv || new_op) ++(fits ? admitted_ : refused_);
  return fits;
}

bool SegmentCache::insert_prefix(const Tokens& tokens, std::vector<int32_t> pages, int32_t state) {
  const Id wanted = id(Part::prefix, tokens);
  const auto old = entries_.find(wanted);
  const Pin kept = old == entries_.end() ? Pin() : pin(*old->second);
  const bool there = kept && kept.entry_->on_device;
  bool fits = false;
  try {
    fits = !there && fit([&] { return page_cost(pages) + pools_.state_bytes(); });
  } catch (...) {  // they are ours by now
    pages_.give_back(pages);
    states_.give_back(state);
    throw;
  }
  if (fits) {
    place(wanted, tokens, {std::move(pages), state}, 0);
    ++admitted_;
    return true;
  }
  pages_.give_back(pages);
  states_.give_back(state);
  refused_ += !there;
  return there;
}

// Evicts until `cost` more bytes, which may change with what is evicted, stay within the budget.
template <class Cost>
bool SegmentCache::fit(const Cost& cost) {
  for (;;) {
    const int64_t bytes = cost();
    if (bytes > budget_) return false;
    if (bytes == 0 || device_bytes() <= budget_ - bytes) return true;
    if (!evict_one()) return false;
  }
}

bool SegmentCache::evict_one() {
  if (on_device_.empty()) return false;
  demote(*on_device_.begin()->second);
  return true;
}

void SegmentCache::make_room(const Slots& slots, int64_t count) {
  if (slots.available() >= count) return;
  const auto held = [&](const Entry& entry) -> int64_t {
    if (&slots == &pages_) return static_cast<int64_t>(entry.placement.pages.size());
    return entry.id.part == (&slots == &operators_ ? Part::op : Part::prefix);
  };
  std::vector<Entry*> victims;
  int64_t most = slots.available();  // shared pages may give less
  for (const auto& [used, entry] : on_device_) {
    if (held(*entry) == 0) continue;
    victims.push_back(entry);
    most += held(*entry);
  }
  if (most < count) return;
  for (Entry* entry : victims) {
    if (slots.available() >= count) return;
    demote(*entry);
  }
}

std::vector<uint8_t> SegmentCache::payload_of(Entry& entry) {
  return entry.on_host
             ? entry.payload
             : pack(backend_, pools_,
                    layout_.sections(entry.id.part, static_cast<int64_t>(entry.tokens.size())),
                    entry.placement);
}

// From the device to host memory, else to disk, else away.
void SegmentCache::demote(Entry& entry) {
  HYPIC_CHECK(entry.on_device && entry.pins == 0);
  const int64_t bytes = stored_bytes(entry);
  const bool host = bytes <= options_.host_bytes;
  const bool disk = !options_.disk_folder.empty() && entry.file_bytes == 0;
  std::vector<uint8_t> payload;
  if (host || disk) payload = payload_of(entry);
  const bool to_host = host && make_host_room(bytes);
  if (!to_host && disk) write_file(entry, payload);
  unlist(entry);  // only now: what may throw is done
  leave_device(entry);
  if (to_host) {
    entry.on_host = true;
    entry.payload = std::move(payload);
    host_bytes_ += bytes;
  }
  demoted_ += !entry.gone();
  list(entry);
  forget_if_gone(entry);
}

// False where what is pinned leaves too little.
bool SegmentCache::make_host_room(int64_t bytes) {
  while (host_bytes_ > options_.host_bytes - bytes) {
    if (on_host_.empty()) return false;
    demote_to_disk(*on_host_.begin()->second);
  }
  return true;
}

void SegmentCache::demote_to_disk(Entry& entry) {
  if (!options_.disk_folder.empty() && entry.file_bytes == 0) write_file(entry, entry.payload);
  unlist(entry);
  leave_host(entry);
  demoted_ += !entry.gone();
  forget_if_gone(entry);
}

// To the device; the entry is pinned. False where there is no room, or its file turns out bad.
bool SegmentCache::promote(Entry& entry) {
  HYPIC_CHECK(entry.pins > 0 && !entry.on_device);
  const Part part = entry.id.part;
  const int64_t tokens = static_cast<int64_t>(entry.tokens.size());
  std::vector<uint8_t> from_file;
  if (!entry.on_host) {
    try {
      from_file = read_residue_payload(path_of(entry.id), reader(),
                                       {part, entry.id.first, entry.id.tail, 0, entry.tokens});
    } catch (const ForeignFile& error) {
      warn(str(error.what(), "; it was ours before"));
      disk_bytes_ -= entry.file_bytes;
      on_disk_.erase(entry.used);
      entry.file_bytes = 0;
      return false;
    } catch (const DamagedFile& error) {
      warn(str(error.what(), "; ignored"));
      remove_file(entry);
      return false;
    } catch (const Error& error) {  // it may be read another time
      warn(str(error.what(), "; left alone"));
      return false;
    }
  }
  const int64_t page_size = pools_.sizes.page_size;
  const int64_t pages = part == Part::op ? 0 : (tokens + page_size - 1) / page_size;
  Slots* slots = part == Part::op ? &operators_ : part == Part::prefix ? &states_ : nullptr;
  const int64_t bytes =
      pages * pools_.page_bytes() +
      (slots ? slots == &states_ ? pools_.state_bytes() : pools_.operator_bytes() : 0);
  if (!fit([&] { return bytes; })) return false;
  make_room(pages_, pages);
  if (slots) make_room(*slots, 1);
  if (pages_.available() < pages || (slots && slots->available() < 1)) return false;

  Placement placement{pages_.take(pages), slots ? slots->take() : kNone};
  try {
    unpack(backend_, pools_, layout_.sections(part, tokens),
           entry.on_host ? entry.payload : from_file, placement);
  } catch (...) {
    pages_.give_back(placement.pages);
    if (slots) slots->give_back(placement.slot);
    throw;
  }
  leave_host(entry);
  enter_device(entry, std::move(placement));
  ++promoted_;
  return true;
}

void SegmentCache::flush() {
  for (auto& [id, owned] : entries_) {
    Entry& entry = *owned;
    if (entry.file_bytes > 0) unlink(path_of(id).c_str());
    disk_bytes_ -= entry.file_bytes;
    entry.file_bytes = 0;
    entry.flushed = true;
    if (entry.pins > 0) {
      flushed_.push_back(std::move(owned));
    } else {
      leave_device(entry);
      leave_host(entry);
    }
  }
  entries_.clear();
  on_device_.clear();
  on_host_.clear();
  on_disk_.clear();
  seen_.clear();
  seen_at_.clear();
}

// Files.

std::string SegmentCache::path_of(const Id& id) const {
  std::string name = hex(id.key) + "-" + std::string(name_of(id.part));
  if (id.part == Part::op) name += str("-", id.first, "-", id.tail);
  return options_.disk_folder + "/" + name + kSuffix;
}

ResidueReader SegmentCache::reader() const {
  return {Sha256().add(identity_).digest(), layout_, max_tokens_};
}

// False, with a warning, where the disk does not take it: the cache works on without.
bool SegmentCache::write_file(Entry& entry, const std::vector<uint8_t>& payload) {
  const int64_t bytes =
      residue_file_bytes(layout_, entry.id.part, static_cast<int64_t>(entry.tokens.size()));
  if (bytes > options_.disk_bytes) return false;
  while (disk_bytes_ > options_.disk_bytes - bytes) remove_file(*on_disk_.begin()->second);
  try {
    write_residue_file(path_of(entry.id), reader(),
                       {entry.id.part, entry.id.first, entry.id.tail, entry.built_at, entry.tokens},
                       payload);
  } catch (const Error& error) {
    warn(error.what());
    return false;
  }
  entry.file_bytes = bytes;
  disk_bytes_ += bytes;
  on_disk_[entry.used] = &entry;
  return true;
}

void SegmentCache::remove_file(Entry& entry) {
  unlink(path_of(entry.id).c_str());
  disk_bytes_ -= entry.file_bytes;
  on_disk_.erase(entry.used);
  entry.file_bytes = 0;
  forget_if_gone(entry);
}

void SegmentCache::persist() {
  if (options_.disk_folder.empty()) return;
  Order without_file;  // the oldest first, so that the latest stay where the disk is too small
  for (const auto& [id, entry] : entries_)
    if (entry->file_bytes == 0) without_file[entry->used] = entry.get();
  for (const auto& [used, entry] : without_file) write_file(*entry, payload_of(*entry));
}

// Takes over the sound files of earlier runs, the least recently used first.
void SegmentCache::scan_folder() {
  std::error_code error;
  fs::create_directories(options_.disk_folder, error);
  fs::directory_iterator files(options_.disk_folder, error);
  require(!error, options_.disk_folder,
          ": cannot use the folder of the segment cache: ", error.message());
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  for (; files != fs::directory_iterator() && found.size() < kMaxFiles; files.increment(error)) {
    if (error) break;
    const std::string path = files->path().string();
    const auto time = fs::last_write_time(path, error);
    if (error) continue;
    if (path.ends_with(kSuffix)) found.emplace_back(time, path);
    if (is_leftover(files->path().filename().string()) &&
        fs::file_time_type::clock::now() - time > kAbandoned)
      fs::remove(path, error);
  }
  std::sort(found.begin(), found.end());
  for (const auto& [time, path] : found) {
    try {
      ResidueHeader header = read_residue_header(path, reader());
      const Id id = this->id(header.part, header.tokens, header.first, header.tail);
      if (fs::path(path_of(id)).filename() != fs::path(path).filename())
        throw ForeignFile(str(path, ": holds another residue than its name says"));
      Entry& entry = *(entries_[id] = std::make_unique<Entry>());
      entry.id = id;
      entry.built_at = header.built_at;
      entry.file_bytes = residue_file_bytes(layout_, id.part, header.tokens.size());
      entry.tokens = std::move(header.tokens);
      entry.used = ++clock_;
      on_disk_[entry.used] = &entry;
      disk_bytes_ += entry.file_bytes;
    } catch (const DamagedFile& damaged) {
      warn(str(damaged.what(), "; removed"));
      fs::remove(path, error);
    } catch (const Error& unusable) {
      warn(str(unusable.what(), "; ignored"));
    }
  }
  while (disk_bytes_ > options_.disk_bytes) remove_file(*on_disk_.begin()->second);
}

void SegmentCache::warn(const std::string& line) {
  ++warning_count_;
  warnings_.push_back(line);
  if (warnings_.size() > kMaxWarnings) warnings_.pop_front();
}

// Sums.

int64_t SegmentCache::device_bytes() const {
  return held_.pages * pools_.page_bytes() + held_.operators * pools_.operator_bytes() +
         held_.states * pools_.state_bytes();
}

// Of pages that no entry holds yet.
int64_t SegmentCache::page_cost(const std::vector<int32_t>& pages) const {
  int64_t fresh = 0;
  for (const int32_t page : pages) fresh += page_users_.at(page) == 0;
  return fresh * pools_.page_bytes();
}

int64_t SegmentCache::stored_bytes(const Entry& entry) const {
  return layout_.bytes(entry.id.part, static_cast<int64_t>(entry.tokens.size())).total();
}

CacheUsage SegmentCache::usage() const {
  CacheUsage usage;
  const auto count = [&](TierUsage& tier, const Entry& entry) {
    const ResidueBytes bytes =
        layout_.bytes(entry.id.part, static_cast<int64_t>(entry.tokens.size()));
    ++tier.entries;
    tier.pages += bytes.k + bytes.v;
    tier.operators += bytes.operators();
    tier.tails += bytes.tails;
    tier.states += bytes.states;
  };
  for (const auto& [id, entry] : entries_) {
    usage.device.entries += entry->on_device;
    if (entry->on_host) count(usage.host, *entry);
    if (entry->file_bytes > 0) {
      count(usage.disk, *entry);
      usage.disk.headers += entry->file_bytes - stored_bytes(*entry);
    }
  }
  int64_t tail_bytes = 0;
  for (const LinearPool& pool : pools_.linear)
    if (pool.tail && pool.tail.tensor()[0] > 0)
      tail_bytes += pool.tail.tensor().bytes() / pool.tail.tensor()[0];
  usage.device.pages = held_.pages * pools_.page_bytes();
  usage.device.tails = held_.operators * tail_bytes;
  usage.device.operators = held_.operators * pools_.operator_bytes() - usage.device.tails;
  usage.device.states = held_.states * pools_.state_bytes();
  usage.entries = static_cast<int64_t>(entries_.size());
  usage.pinned = pinned_;
  usage.hits = hits_;
  usage.misses = misses_;
  usage.admitted = admitted_;
  usage.refused = refused_;
  usage.evicted = evicted_;
  usage.demoted = demoted_;
  usage.promoted = promoted_;
  usage.warnings.assign(warnings_.begin(), warnings_.end());
  usage.warning_count = warning_count_;
  return usage;
}

void SegmentCache::check_integrity() const {
  std::vector<int32_t> users(page_users_.size(), 0);
  std::map<int32_t, int> operators, states;
  Held held{0, 0, 0};
  int64_t host = 0, disk = 0, pinned = 0;
  size_t device_listed = 0, host_listed = 0, disk_listed = 0;
  const auto visit = [&](const Entry& entry) {
    const std::string_view part = name_of(entry.id.part);
    HYPIC_CHECK(entry.pins >= 0 && (entry.pins > 0 || !entry.gone()), part);
    HYPIC_CHECK(!(entry.on_device && entry.on_host), part, " on the device and in host memory");
    pinned += entry.pins > 0;
    if (entry.on_device) {
      for (const int32_t page : entry.placement.pages) held.pages += users.at(page)++ == 0;
      if (entry.id.part == Part::op) ++held.operators, ++operators[entry.placement.slot];
      if (entry.id.part == Part::prefix) ++held.states, ++states[entry.placement.slot];
    }
    if (entry.on_host) {
      HYPIC_CHECK(static_cast<int64_t>(entry.payload.size()) == stored_bytes(entry), part);
      host += static_cast<int64_t>(entry.payload.size());
    }
    disk += entry.file_bytes;
    if (entry.flushed) return;
    const auto listed = [&](const Order& order, bool wanted) {
      const auto found = order.find(entry.used);
      HYPIC_CHECK((found != order.end() && found->second == &entry) == wanted, part);
      return wanted;
    };
    device_listed += listed(on_device_, entry.on_device && entry.pins == 0);
    host_listed += listed(on_host_, entry.on_host && entry.pins == 0);
    disk_listed += listed(on_disk_, entry.file_bytes > 0);
  };
  for (const auto& [id, entry] : entries_) {
    HYPIC_CHECK(entry->id == id && !entry->flushed);
    visit(*entry);
  }
  for (const auto& entry : flushed_) {
    HYPIC_CHECK(entry->pins > 0 && entry->flushed && entry->file_bytes == 0);
    visit(*entry);
  }
  HYPIC_CHECK(device_listed == on_device_.size() && host_listed == on_host_.size() &&
                  disk_listed == on_disk_.size(),
              "a list names an entry that is not there");
  HYPIC_CHECK(users == page_users_ && held.pages == held_.pages &&
              held.operators == held_.operators && held.states == held_.states);
  for (size_t page = 0; page < users.size(); ++page)
    HYPIC_CHECK(pages_.owners(static_cast<int32_t>(page)) >= users[page], "page ", page, " has ",
                users[page], " entries and ", pages_.owners(static_cast<int32_t>(page)), " owners");
  for (const auto& [slots, used] : {std::pair(&operators_, &operators), {&states_, &states}})
    for (const auto& [slot, entries] : *used)
      HYPIC_CHECK(entries == 1 && slots->owners(slot) == 1, "slot ", slot, " of ", entries,
                  " entries has ", slots->owners(slot), " owners");
  pages_.check();
  operators_.check();
  states_.check();
  HYPIC_CHECK(device_bytes() <= budget_, device_bytes(), " bytes, budget ", budget_);
  HYPIC_CHECK(host == host_bytes_ && host <= options_.host_bytes, host, " bytes of host memory");
  HYPIC_CHECK(disk == disk_bytes_ && (disk == 0 || disk <= options_.disk_bytes), disk, " on disk");
  HYPIC_CHECK(pinned == pinned_, pinned, " entries are pinned, counted ", pinned_);
  HYPIC_CHECK(seen_.size() == seen_at_.size() &&
              static_cast<int64_t>(seen_.size()) <= options_.seen_keys);
}

}  // namespace hypic
