#include "serving/segment_cache.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <ranges>

#include "core/check.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

enum { kDevice, kHost, kDisk };  // tiers, from the top

constexpr char kSuffix[] = ".residue";

constexpr size_t kMaxWarnings = 100;
constexpr int64_t kMostBytes = int64_t{1} << 62;  // of host memory: what is rounded up must not overflow
constexpr size_t kMaxFiles = 1 << 20;  // of a folder, so that a scan ends

int64_t now() {  // in ns since 1970
  using namespace std::chrono;
  return duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count();
}

const CacheOptions& checked(const CacheOptions& options) {
  require(options.budget_bytes >= 0 && options.host_bytes >= 0 && options.disk_bytes >= 0 && options.queue_bytes >= 0,
          "byte limits of the segment cache cannot be negative");
  require(options.disk_folder.empty() || options.disk_bytes > 0,
          "a disk folder of the segment cache needs disk_bytes above 0");
  require(options.queue_bytes <= (kMostBytes - options.host_bytes) / 2, "host_bytes of ", options.host_bytes,
          " and queue_bytes of ", options.queue_bytes, " are too much for the segment cache together");
  require(options.seen_keys > 0, "seen_keys must be above 0, is ", options.seen_keys);
  return options;
}

}  // namespace

struct SegmentCache::Entry {
  Id id;
  Tokens tokens;
  int32_t built_at = 0;
  int64_t used = 0;  // when last, in ns since 1970; distinct
  int32_t pins = 0;
  bool flushed = false;

  // Where it is: on the device, in host memory, in a file. What leaves a place is read from there until it has arrived
  // in the next.
  bool on_device = false;
  Placement placement;
  std::shared_ptr<HostResidue> host;
  bool on_host = false;    // the tier holds it
  bool writing = false;    // it is becoming a file
  int64_t file_bytes = 0;  // 0: no file
  int64_t file_time = 0;   // `used` as the file says it
  std::weak_ptr<ResidueRead> read;  // of the file, while somebody wants it

  int tier() const { return on_device ? kDevice : host ? kHost : kDisk; }
  bool gone() const { return !on_device && !host && file_bytes == 0; }
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
      page_users_(pools.sizes.pages, 0),
      page_keepers_(pools.sizes.pages, 0) {
  const bool disk = !options_.disk_folder.empty();
  const bool queue = disk || (options_.host_bytes > 0 && options_.format != ResidueFormat::full);
  if (queue) writer_ = std::make_unique<ResidueWriter>(reader(), options_.before_write);
  if (disk) reads_ = std::make_unique<ResidueReads>(options_.before_read);
  if (has_lower_tiers())
    arena_ = std::make_unique<HostArena>(backend_, options_.host_bytes + (queue + disk) * options_.queue_bytes);
  if (disk) scan_folder();
}

SegmentCache::~SegmentCache() {
  try {
    drain();
    set_times();
  } catch (const std::exception&) {  // a device that failed; the files are whole whatever happens
  }
}

const Tokens& SegmentCache::Pin::tokens() const { return entry_->tokens; }
const std::vector<int32_t>& SegmentCache::Pin::pages() const { return entry_->placement.pages; }
int32_t SegmentCache::Pin::slot() const { return entry_->placement.slot; }
int32_t SegmentCache::Pin::built_at() const { return entry_->built_at; }

// Keys, lookups.

Sha256::Digest SegmentCache::key(const Tokens& tokens) const {
  return Sha256()
      .add(identity_)
      .add(tokens.data(), tokens.size() * sizeof(int32_t))
      .add(static_cast<int64_t>(tokens.size()))
      .digest();
}

std::vector<SegmentCache::Prefix> SegmentCache::prefixes(std::span<const Tokens> segments) const {
  std::vector<Prefix> all;
  Sha256 hash;
  hash.add(identity_);
  Tokens tokens;
  for (const Tokens& segment : segments) {
    hash.add(segment.data(), segment.size() * sizeof(int32_t));
    tokens.insert(tokens.end(), segment.begin(), segment.end());
    all.push_back({nullptr, tokens.size(), Sha256(hash).add(static_cast<int64_t>(tokens.size())).digest()});
  }
  const auto prompt = std::make_shared<const Tokens>(std::move(tokens));
  for (Prefix& prefix : all) prefix.prompt = prompt;
  return all;
}

SegmentCache::Id SegmentCache::id(Part part, const Tokens& tokens, int32_t first,
                                  int32_t tail) const {
  return {part, key(tokens), first, tail};
}

SegmentCache::Entry* SegmentCache::lookup(const Id& id, std::span<const int32_t> tokens) const {
  const auto found = entries_.find(id);
  const bool there = found != entries_.end() && std::ranges::equal(found->second->tokens, tokens);
  return there ? found->second.get() : nullptr;
}

SegmentCache::ResiduePins SegmentCache::find_residue(const Tokens& tokens, int32_t first,
                                                     int32_t tail) {
  Id wanted = id(Part::kv, tokens);
  Entry* kv = lookup(wanted, tokens);
  wanted = {Part::op, wanted.key, first, tail};
  Entry* op = lookup(wanted, tokens);
  if (kv && op) {
    ResiduePins pins{pin(*kv), pin(*op)};  // both first: promoting one must not evict the other
    const Need kv_need = to_promote(*kv), op_need = to_promote(*op);
    const Need need{{}, kv_need.new_pages, op_need.operators, 0};  // one alone must not evict for nothing
    const int from = std::max(kv->tier(), op->tier());
    if (budget_allows(need) && slots_allow(need) && promote(*kv) && promote(*op)) {
      count_hit(from);
      return pins;
    }
  }
  ++misses_;
  return {};
}

std::optional<std::pair<size_t, SegmentCache::Pin>> SegmentCache::find_prefix(
    std::span<const Prefix> prefixes) {
  for (size_t i = prefixes.size(); i-- > 0;) {
    Entry* entry = lookup({Part::prefix, prefixes[i].key}, prefixes[i].tokens());
    if (!entry) continue;
    Pin held = pin(*entry);
    const int from = entry->tier();
    if (!promote(*entry)) continue;
    count_hit(from);
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

bool SegmentCache::admits(const Id& wanted) {
  if (options_.admission == Admission::always) return true;
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

// Reading ahead. Nothing here changes an entry's place: a read that is done is found by promote(), one that somebody
// still wants has memory, and what becomes of its file is heard of there.

void SegmentCache::want_residue(Ahead& ahead, const Tokens& tokens, int32_t first, int32_t tail) const {
  const Id kv = id(Part::kv, tokens);
  ahead.wanted_.push_back({kv, {Part::op, kv.key, first, tail}});
  ahead.begun_ = false;
}

void SegmentCache::want_prefix(Ahead& ahead, std::span<const Prefix> prefixes) const {
  const auto longest = std::find_if(prefixes.rbegin(), prefixes.rend(), [&](const Prefix& p) { return has_prefix(p); });
  if (longest == prefixes.rend()) return;
  ahead.wanted_.push_back({{Part::prefix, longest->key}});
  ahead.begun_ = false;
}

void SegmentCache::read_ahead(Ahead& ahead, bool begin) {
  bool room = begin;
  ahead.begun_ = true;
  for (const std::vector<Id>& whole : ahead.wanted_) {
    if (!std::ranges::all_of(whole, [&](const Id& id) { return entries_.contains(id); })) continue;  // a miss
    for (const Id& id : whole) {
      Entry& entry = *entries_.at(id);
      if (entry.on_device || entry.host || entry.file_bytes == 0) continue;
      std::shared_ptr<ResidueRead> read = entry.read.lock();
      if (!read && room) read = begin_read(entry);
      if (read && std::ranges::find(ahead.reads_, read) == ahead.reads_.end()) ahead.reads_.push_back(read);
      room = room && read;
      ahead.begun_ = ahead.begun_ && read;
    }
  }
}

// Null where there is no room.
std::shared_ptr<ResidueRead> SegmentCache::begin_read(Entry& entry) {
  std::erase_if(live_reads_, [](const auto& read) { return read.expired(); });
  const int64_t bytes = stored_bytes(entry);
  if (bytes > options_.queue_bytes - ahead_bytes()) return nullptr;
  std::shared_ptr<HostResidue> to;
  try {
    to = HostResidue::reserve(backend_, *arena_, entry.id.part, bytes);
  } catch (const std::exception&) {  // a device that failed: whatever runs next says so
  }
  if (!to) return nullptr;
  auto read = std::make_shared<ResidueRead>(reader(), path_of(entry.id), header_of(entry), std::move(to));
  entry.read = read;
  live_reads_.push_back(read);
  reads_->push(read);
  return read;
}

int64_t SegmentCache::ahead_bytes() const {
  int64_t bytes = 0;
  for (const std::weak_ptr<ResidueRead>& one : live_reads_)
    if (const auto read = one.lock()) bytes += read->bytes();
  return bytes;
}

void SegmentCache::on_read(std::function<void()> call) {
  if (reads_) reads_->on_read(std::move(call));
}

// Pins, and the lists of those that are not pinned.

// Strictly rising, also over restarts.
int64_t SegmentCache::tick() { return clock_ = std::max(clock_ + 1, now()); }

SegmentCache::Pin SegmentCache::pin(Entry& entry) {
  unlist(entry);
  if (entry.file_bytes > 0) on_disk_.erase(entry.used);
  entry.used = tick();
  if (entry.file_bytes > 0) on_disk_[entry.used] = &entry;
  if (entry.pins++ == 0) {
    ++pinned_;
    if (entry.on_device) count_kept(entry, 1);
  }
  return {this, &entry};
}

void SegmentCache::unpin(Entry& entry) {
  if (--entry.pins > 0) return;
  --pinned_;
  if (entry.on_device) count_kept(entry, -1);
  if (entry.flushed) {
    leave_device(entry);
    leave_host(entry);
    flushed_.remove_if([&](const auto& one) { return one.get() == &entry; });
    return;
  }
  list(entry);
  forget_if_gone(entry);
}

// Of pinned entries on the device; sign −1: no more.
void SegmentCache::count_kept(const Entry& entry, int32_t sign) {
  for (const int32_t page : entry.placement.pages) {
    const bool held = page_keepers_[page] > 0;
    page_keepers_[page] += sign;
    kept_.pages += (page_keepers_[page] > 0) - held;
  }
  kept_.operators += sign * (entry.id.part == Part::op);
  kept_.states += sign * (entry.id.part == Part::prefix);
}

void SegmentCache::count_hit(int from) {
  ++hits_;
  host_hits_ += from == kHost;
  disk_hits_ += from == kDisk;
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
  if (!entry.flushed) say(entry, false);
  entries_.erase(Id(entry.id));
}

void SegmentCache::say(const Entry& entry, bool here) const {
  if (options_.on_change && entry.id.part != Part::prefix)
    options_.on_change(entry.id.part, entry.tokens, entry.id.first, entry.id.tail, here);
}

// In, out, and between the tiers.

// A new entry; or an old one of a lower tier, whose copy there is no better.
void SegmentCache::place(const Id& id, std::span<const int32_t> tokens, Placement placement, int32_t built_at) {
  std::unique_ptr<Entry>& entry = entries_[id];
  if (entry) {
    unlist(*entry);
    leave_host(*entry);
  } else {
    entry = std::make_unique<Entry>();
    entry->id = id;
    entry->tokens.assign(tokens.begin(), tokens.end());
    entry->built_at = built_at;
    entry->used = tick();
    say(*entry, true);
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
  if (entry.pins > 0) count_kept(entry, 1);
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
  host_bytes_ -= stored_bytes(entry);
  entry.on_host = false;
  if (!entry.writing) entry.host.reset();
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
    fits = fit({.pages = new_kv ? pages : std::span<const int32_t>(), .operators = new_op});
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

bool SegmentCache::insert_prefix(const Prefix& prefix, std::vector<int32_t> pages, int32_t state) {
  const Id wanted{Part::prefix, prefix.key};
  const auto old = entries_.find(wanted);
  const Pin kept = old == entries_.end() ? Pin() : pin(*old->second);
  const bool there = kept && kept.entry_->on_device;
  bool fits = false;
  try {
    fits = !there && fit({.pages = pages, .states = 1});
  } catch (...) {  // they are ours by now
    pages_.give_back(pages);
    states_.give_back(state);
    throw;
  }
  if (fits) {
    place(wanted, prefix.tokens(), {std::move(pages), state}, 0);
    ++admitted_;
    return true;
  }
  pages_.give_back(pages);
  states_.give_back(state);
  refused_ += !there;
  return there;
}

// Whether what is pinned leaves as much of the budget.
bool SegmentCache::budget_allows(const Need& need) const {
  int64_t pages = kept_.pages + need.new_pages;
  for (const int32_t page : need.pages) pages += page_keepers_.at(page) == 0;
  return pages * pools_.page_bytes() + (kept_.operators + need.operators) * pools_.operator_bytes() +
             (kept_.states + need.states) * pools_.state_bytes() <=
         budget_;
}

// Evicts until it stays within the budget; nothing where even that were too little.
bool SegmentCache::fit(const Need& need) {
  if (cost(need) == 0) return true;
  if (!budget_allows(need)) return false;
  while (device_bytes() > budget_ - cost(need)) HYPIC_CHECK(evict_one());  // the cost may change: pages are shared
  return true;
}

bool SegmentCache::evict_one() {
  if (on_device_.empty()) return false;
  demote(*on_device_.begin()->second);
  return true;
}

// Slots that are free, or would be if everything that is not pinned were evicted.
int64_t SegmentCache::most_available(const Slots& slots) const {
  if (&slots == &operators_) return slots.available() + held_.operators - kept_.operators;
  if (&slots == &states_) return slots.available() + held_.states - kept_.states;
  int64_t pages = slots.available();
  for (size_t page = 0; page < page_users_.size(); ++page)
    pages += page_users_[page] > 0 && page_keepers_[page] == 0 &&
             slots.owners(static_cast<int32_t>(page)) == page_users_[page];
  return pages;
}

bool SegmentCache::slots_allow(const Need& need) const {
  const auto allows = [&](const Slots& slots, int64_t count) {
    return slots.available() >= count || most_available(slots) >= count;
  };
  return allows(pages_, need.new_pages) && allows(operators_, need.operators) && allows(states_, need.states);
}

void SegmentCache::make_room(const Slots& slots, int64_t count) {
  if (slots.available() >= count || most_available(slots) < count) return;
  const auto holds = [&](const Entry& entry) {
    if (&slots == &pages_) return !entry.placement.pages.empty();
    return entry.id.part == (&slots == &operators_ ? Part::op : Part::prefix);
  };
  std::vector<Entry*> victims;
  for (const auto& [used, entry] : on_device_)
    if (holds(*entry)) victims.push_back(entry);
  for (Entry* entry : victims) {
    if (slots.available() >= count) return;
    demote(*entry);
  }
}

// From the device to host memory, else to disk, else away. Waits for nothing but memory: copies are enqueued ahead of
// whatever takes the slots next, files are the writer's.
void SegmentCache::demote(Entry& entry) {
  HYPIC_CHECK(entry.on_device && entry.pins == 0);
  collect();
  const int64_t bytes = stored_bytes(entry);
  bool to_host = bytes <= options_.host_bytes && make_host_room(bytes);
  if (to_host || wants_file(entry)) {
    const bool sent = send_down(entry, to_host);
    dropped_ += !sent;
    to_host = to_host && sent;
  }
  unlist(entry);  // only now: what may throw is done
  leave_device(entry);
  if (to_host) {
    entry.on_host = true;
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
  if (wants_file(entry)) dropped_ += !send_down(entry, false);
  unlist(entry);
  leave_host(entry);
  demoted_ += !entry.gone();
  forget_if_gone(entry);
}

// Copies an entry from the device unless host memory has it already, and hands it to the writer where it is to become
// a file or to take another form. False, and nothing is changed, where what is under way leaves no room for that.
bool SegmentCache::send_down(Entry& entry, bool to_host) {
  const std::vector<Section> sections = sections_of(entry);
  const int64_t file = to_host ? 0 : file_bytes(entry);
  int64_t queued = to_host ? 0 : stored_bytes(entry);
  if (!entry.host) {
    const std::vector<Section> form = device_form(pools_, sections);
    if (form != sections) queued += bytes_of(form);
  }
  if (queued > 0 && queued_bytes_ > options_.queue_bytes - queued) return false;
  if (file > 0 && !make_disk_room(file, entry.used)) return false;
  if (!entry.host) {
    const auto download = [&] {
      return HostResidue::download(backend_, pools_, *arena_, entry.id.part, sections, entry.placement);
    };
    entry.host = download();
    // Gaps may leave no stretch for it. Where nothing is ever under way, entries make room at once.
    while (!entry.host && !writer_ && !on_host_.empty()) {
      demote_to_disk(*on_host_.begin()->second);
      entry.host = download();
    }
    if (!entry.host) return false;
  }
  if (queued == 0) return true;
  ResidueWriter::Job job{.residue = entry.host, .path = {}, .header = {}};
  if (file > 0) {
    job.path = path_of(entry.id);
    job.header = header_of(entry);
    job.used = entry.used;
    entry.writing = true;
  }
  under_way_.push_back({file > 0 ? &entry : nullptr, queued, file, entry.used});
  queued_bytes_ += queued;
  writing_bytes_ += file;
  writer_->push(std::move(job));
  return true;
}

// Books what has arrived since the last time.
void SegmentCache::collect() {
  if (!writer_) return;
  for (const std::string& failure : writer_->not_removed()) warn(failure);
  for (const std::string& failure : writer_->done()) {
    const UnderWay one = under_way_.front();
    under_way_.pop_front();
    queued_bytes_ -= one.host_bytes;
    writing_bytes_ -= one.file_bytes;
    if (!failure.empty()) warn(failure);
    if (!one.entry) continue;
    Entry& entry = *one.entry;
    entry.writing = false;
    if (failure.empty()) {
      entry.file_bytes = one.file_bytes;
      entry.file_time = one.used;
      disk_bytes_ += one.file_bytes;
      on_disk_[entry.used] = &entry;
    }
    if (!entry.on_host) entry.host.reset();
    forget_if_gone(entry);
  }
}

void SegmentCache::drain() {
  if (writer_) writer_->drain();
  collect();
}

SegmentCache::Need SegmentCache::to_promote(const Entry& entry) const {
  if (entry.on_device) return {};
  const int64_t page_size = pools_.sizes.page_size;
  const int64_t pages = (static_cast<int64_t>(entry.tokens.size()) + page_size - 1) / page_size;
  const Part part = entry.id.part;
  return {{}, part == Part::op ? 0 : pages, part == Part::op, part == Part::prefix};
}

// To the device, if it is not there; the entry is pinned. False where there is no room, or its file turns out bad.
bool SegmentCache::promote(Entry& entry) {
  HYPIC_CHECK(entry.pins > 0);
  if (entry.on_device) return true;
  collect();
  const Need need = to_promote(entry);
  if (!budget_allows(need) || !slots_allow(need)) return false;
  // Room that is made may end the way to disk, so the memory is held here.
  std::shared_ptr<HostResidue> host = entry.host;
  std::vector<uint8_t> file;
  if (!host && !read_file(entry, host, file)) return false;
  if (!fit(need)) return false;
  Slots* slots = need.operators > 0 ? &operators_ : need.states > 0 ? &states_ : nullptr;
  make_room(pages_, need.new_pages);
  if (slots) make_room(*slots, 1);
  HYPIC_CHECK(pages_.available() >= need.new_pages && (!slots || slots->available() > 0));

  Placement placement{pages_.take(need.new_pages), slots ? slots->take() : kNone};
  try {
    if (host)
      unpack(backend_, pools_, sections_of(entry), host->bytes(), placement, true);
    else
      unpack(backend_, pools_, sections_of(entry), file, placement);
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
  drain();  // nothing may appear in the folder afterwards
  for (auto& [id, owned] : entries_) {
    Entry& entry = *owned;
    if (entry.file_bytes > 0) writer_->remove(path_of(id));
    disk_bytes_ -= entry.file_bytes;
    entry.file_bytes = 0;
    entry.read.reset();
    entry.flushed = true;
    say(entry, false);
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
  drain();
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

ResidueHeader SegmentCache::header_of(const Entry& entry) const {
  return {entry.id.part, entry.id.first, entry.id.tail, entry.built_at, entry.tokens};
}

// Whether it should become a file where it leaves host memory.
bool SegmentCache::wants_file(const Entry& entry) const {
  return !options_.disk_folder.empty() && entry.file_bytes == 0 && !entry.writing;
}

// The oldest files make room, those that are only being written among them. False, and nothing is removed, where those
// last used before `used` are not enough.
bool SegmentCache::make_disk_room(int64_t bytes, int64_t used) {
  if (bytes > options_.disk_bytes) return false;
  int64_t missing = disk_bytes_ + writing_bytes_ - (options_.disk_bytes - bytes);
  for (const UnderWay& one : under_way_)
    if (one.entry && one.entry->used < used) missing -= one.file_bytes;
  for (auto file = on_disk_.begin(); missing > 0; ++file) {
    if (file == on_disk_.end() || file->first >= used) return false;
    missing -= file->second->file_bytes;
  }
  while (disk_bytes_ + writing_bytes_ > options_.disk_bytes - bytes) {
    const auto older = [](const UnderWay& a, const UnderWay& b) {
      return a.entry && (!b.entry || a.entry->used < b.entry->used);
    };
    const auto one = std::min_element(under_way_.begin(), under_way_.end(), older);
    const bool writing = one != under_way_.end() && one->entry;
    if (writing && (on_disk_.empty() || one->entry->used < on_disk_.begin()->first))
      renounce_file(*one);
    else
      remove_file(*on_disk_.begin()->second);
  }
  return true;
}

// The writer goes in order, so a file that is yet to come is removed before the next one.
void SegmentCache::renounce_file(UnderWay& one) {
  Entry& entry = *std::exchange(one.entry, nullptr);
  writing_bytes_ -= std::exchange(one.file_bytes, 0);
  writer_->remove(path_of(entry.id));
  entry.writing = false;
  if (!entry.on_host) entry.host.reset();
  forget_if_gone(entry);
}

// The payload of an entry's file, read ahead or now; false, with a warning, where that is of no use.
bool SegmentCache::read_file(Entry& entry, std::shared_ptr<HostResidue>& ahead, std::vector<uint8_t>& now) {
  if (entry.file_bytes == 0) return false;  // it had to make room
  const std::string path = path_of(entry.id);
  const std::shared_ptr<ResidueRead> read = entry.read.lock();
  ++(read && read->done() ? read_ahead_ : read_late_);
  try {
    if (read) {
      ahead = read->residue();
    } else {
      now.resize(stored_bytes(entry));
      read_residue_payload(path, reader(), header_of(entry), now);
    }
    return true;
  } catch (const ForeignFile& error) {
    warn(str(error.what(), "; it was ours before"));
    lose_file(entry);
  } catch (const DamagedFile& error) {
    warn(str(error.what(), "; ignored"));
    remove_file(entry);
  } catch (const Error& error) {
    std::error_code ignored;
    const bool there = fs::exists(fs::symlink_status(path, ignored));
    warn(str(error.what(), there ? "; left alone" : "; ignored"));  // the former may be read another time
    if (!there) lose_file(entry);
  }
  return false;
}

void SegmentCache::remove_file(Entry& entry) {
  writer_->remove(path_of(entry.id));
  lose_file(entry);
}

// The file is no longer the entry's.
void SegmentCache::lose_file(Entry& entry) {
  disk_bytes_ -= entry.file_bytes;
  on_disk_.erase(entry.used);
  entry.file_bytes = 0;
  entry.read.reset();  // whoever waits for it will find nothing
  forget_if_gone(entry);
}

void SegmentCache::persist() {
  if (options_.disk_folder.empty()) return;
  drain();
  Order without_file;
  for (const auto& [id, entry] : entries_)
    if (entry->file_bytes == 0) without_file[entry->used] = entry.get();
  for (const auto& [used, entry] : std::views::reverse(without_file)) {  // the latest first: the disk may be too small
    const int64_t bytes = file_bytes(*entry);
    if (!make_disk_room(bytes, used)) continue;
    drain();  // files that made room are gone before this one comes
    try {
      if (entry->host)
        write_residue_file(path_of(entry->id), reader(), header_of(*entry), entry->host->bytes(), used);
      else
        write_residue_file(path_of(entry->id), reader(), header_of(*entry),
                           pack(backend_, pools_, sections_of(*entry), entry->placement), used);
    } catch (const Error& error) {
      warn(error.what());
      continue;
    }
    entry->file_bytes = bytes;
    entry->file_time = used;
    disk_bytes_ += bytes;
    on_disk_[used] = entry;
  }
  set_times();
}

// Files keep the time of their entry's last use: from when they are written, and from here.
void SegmentCache::set_times() {
  for (const auto& [used, entry] : on_disk_) {
    if (entry->file_time == used) continue;
    set_time(path_of(entry->id), used);
    entry->file_time = used;
  }
}

// Takes over the sound files of earlier runs, the least recently used first.
void SegmentCache::scan_folder() {
  std::error_code error;
  fs::create_directories(options_.disk_folder, error);
  fs::directory_iterator files(options_.disk_folder, error);
  require(!error, options_.disk_folder,
          ": cannot use the folder of the segment cache: ", error.message());
  std::vector<std::pair<int64_t, std::string>> found;
  for (; files != fs::directory_iterator() && found.size() < kMaxFiles; files.increment(error)) {
    if (error) break;
    const std::string path = files->path().string();
    const int64_t time = time_of(path);
    if (path.ends_with(kSuffix)) found.emplace_back(time, path);
    if (is_abandoned(path, now())) fs::remove(path, error);
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
      entry.tokens = std::move(header.tokens);
      entry.file_bytes = file_bytes(entry);
      entry.file_time = time;
      entry.used = clock_ = std::max(clock_ + 1, time);
      on_disk_[entry.used] = &entry;
      disk_bytes_ += entry.file_bytes;
      say(entry, true);
    } catch (const DamagedFile& damaged) {
      warn(str(damaged.what(), "; removed"));
      fs::remove(path, error);
    } catch (const Error& unusable) {
      warn(str(unusable.what(), "; ignored"));
    }
  }
  make_disk_room(0, std::numeric_limits<int64_t>::max());
  drain();
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

// Bytes that the entries would then hold in addition.
int64_t SegmentCache::cost(const Need& need) const {
  int64_t pages = need.new_pages;
  for (const int32_t page : need.pages) pages += page_users_.at(page) == 0;
  return pages * pools_.page_bytes() + need.operators * pools_.operator_bytes() + need.states * pools_.state_bytes();
}

std::vector<Section> SegmentCache::sections_of(const Entry& entry) const {
  return layout_.sections(entry.id.part, static_cast<int64_t>(entry.tokens.size()));
}

int64_t SegmentCache::file_bytes(const Entry& entry) const {
  return residue_file_bytes(layout_, entry.id.part, static_cast<int64_t>(entry.tokens.size()));
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
    usage.writing += entry->writing;
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
  usage.queued_bytes = queued_bytes_;
  usage.ahead_bytes = ahead_bytes();
  usage.hits = hits_;
  usage.misses = misses_;
  usage.host_hits = host_hits_;
  usage.disk_hits = disk_hits_;
  usage.read_ahead = read_ahead_;
  usage.read_late = read_late_;
  usage.admitted = admitted_;
  usage.refused = refused_;
  usage.evicted = evicted_;
  usage.dropped = dropped_;
  usage.demoted = demoted_;
  usage.promoted = promoted_;
  usage.warnings.assign(warnings_.begin(), warnings_.end());
  usage.warning_count = warning_count_;
  return usage;
}

void SegmentCache::check_integrity() const {
  std::vector<int32_t> users(page_users_.size(), 0), keepers(page_users_.size(), 0);
  std::map<int32_t, int> operators, states;
  Held held{0, 0, 0}, kept{0, 0, 0};
  int64_t host = 0, disk = 0, pinned = 0, in_memory = 0, writing = 0, ahead = 0;
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
      if (entry.pins > 0) {
        for (const int32_t page : entry.placement.pages) kept.pages += keepers.at(page)++ == 0;
        kept.operators += entry.id.part == Part::op;
        kept.states += entry.id.part == Part::prefix;
      }
    }
    HYPIC_CHECK((entry.host != nullptr) == (entry.on_host || entry.writing), part);
    HYPIC_CHECK(!(entry.writing && entry.file_bytes > 0), part, " is being written and has a file");
    if (entry.host) {
      HYPIC_CHECK(entry.host->size() == stored_bytes(entry), part);
      in_memory += entry.host->size();
    }
    if (entry.on_host) host += stored_bytes(entry);
    writing += entry.writing;
    disk += entry.file_bytes;
    if (const auto read = entry.read.lock())
      HYPIC_CHECK(entry.file_bytes > 0 && read->bytes() == stored_bytes(entry), part, " is read, and its file is gone");
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
  HYPIC_CHECK(keepers == page_keepers_ && kept.pages == kept_.pages && kept.operators == kept_.operators &&
              kept.states == kept_.states);
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
  HYPIC_CHECK(disk == disk_bytes_ && (disk == 0 || disk + writing_bytes_ <= options_.disk_bytes), disk, " on disk");
  int64_t queued_bytes = 0, writing_bytes = 0, jobs = 0;
  for (const UnderWay& one : under_way_) {
    HYPIC_CHECK(!one.entry || one.entry->writing);
    jobs += one.entry != nullptr;
    queued_bytes += one.host_bytes;
    writing_bytes += one.file_bytes;
  }
  HYPIC_CHECK(jobs == writing && queued_bytes == queued_bytes_ && writing_bytes == writing_bytes_ &&
                  queued_bytes <= options_.queue_bytes,
              jobs, " files of ", writing, " entries are under way, ", queued_bytes, " bytes");
  std::vector<std::shared_ptr<ResidueRead>> reads;  // held, so that none goes meanwhile
  for (const std::weak_ptr<ResidueRead>& one : live_reads_)
    if (const auto read = one.lock()) ahead += reads.emplace_back(read)->bytes();
  HYPIC_CHECK(ahead <= options_.queue_bytes, ahead, " bytes are read ahead");
  if (arena_) {
    arena_->check();
    HYPIC_CHECK(arena_->in_use() >= in_memory + ahead, arena_->in_use(), " bytes of the arena, ", in_memory,
                " of entries, ", ahead, " read ahead");
  }
  HYPIC_CHECK(pinned == pinned_, pinned, " entries are pinned, counted ", pinned_);
  HYPIC_CHECK(seen_.size() == seen_at_.size() &&
              static_cast<int64_t>(seen_.size()) <= options_.seen_keys);
}

}  // namespace hypic
