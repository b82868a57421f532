#include "serving/inbox.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "core/check.h"
#include "serving/byte_arena.h"

namespace hypic {
namespace {

constexpr size_t kLongestReason = 200;

}  // namespace

// Memory of the device for windows. What the engine may still read rests until it has.
struct Inbox::Stage {
  explicit Stage(std::unique_ptr<SharedMemory> given)
      : memory(std::move(given)), ranges(memory->data(), memory->size()) {}
  ~Stage() {
    for (const auto& [range, read] : resting) {
      try {
        read->wait();
      } catch (const std::exception&) {  // a device that failed reads no more
      }
    }
  }

  ByteArena::Range take(int64_t bytes) {
    const std::scoped_lock lock(mutex);
    std::erase_if(resting, [](const auto& one) { return one.second->done(); });
    return ranges.take(bytes, ByteArena::End::lower);
  }
  void give_back(ByteArena::Range range, std::shared_ptr<Event> read) {
    const std::scoped_lock lock(mutex);
    if (read) resting.emplace_back(std::move(range), std::move(read));
  }

  const std::unique_ptr<SharedMemory> memory;
  ByteArena ranges;
  std::mutex mutex;  // of what follows
  std::vector<std::pair<ByteArena::Range, std::shared_ptr<Event>>> resting;
};

struct Inbox::Place final : Window {
  Place(std::shared_ptr<Stage> given, ByteArena::Range part) : stage(std::move(given)), range(std::move(part)) {
    data = range.data();
    bytes = range.size();
    memory = stage->memory.get();
    same_process = true;
  }
  ~Place() override { stage->give_back(std::move(range), std::move(read)); }

  const std::shared_ptr<Stage> stage;
  ByteArena::Range range;
  std::shared_ptr<Event> read;  // by the engine, the last time; with the inbox's lock
};

struct Inbox::Transfer {
  Inbox& inbox;
  uint64_t generation;
  Tokens tokens;
  const StreamLayout layout;  // of bytes, and of the place
  std::vector<int64_t> here;  // by layer: bytes that have come
  std::unique_ptr<uint8_t[]> bytes;
  std::shared_ptr<Place> place;  // in which layers land, where it was asked for
  struct Landed {
    bool here = false;             // or will be, once
    std::shared_ptr<Event> ready;  // is done; null: now
  };
  std::vector<Landed> landed;  // by layer
  size_t whole = 0;    // layers that are
  bool begun = false;  // something has come
  Clock::time_point progress = Clock::now();
  std::string error;  // empty: none

  Transfer(Inbox& inbox, uint64_t generation, const Tokens& tokens, StreamLayout given)
      : inbox(inbox),
        generation(generation),
        tokens(tokens),
        layout(std::move(given)),
        here(layout.layers()),
        landed(layout.layers()) {
    skip_empty();
  }

  // Whether a packet, which may say anything, is of one of its layers.
  bool knows(int32_t layer) const { return layer >= 0 && layer < static_cast<int64_t>(layout.layers()); }
  bool has(size_t layer) const { return here[layer] == layout.size(layer); }
  bool complete() const { return whole == layout.layers(); }
  // When it has failed unless something comes.
  Clock::time_point deadline() const {
    return progress + (begun ? inbox.options_.patience : inbox.options_.first_patience);
  }
  void skip_empty() {
    while (!complete() && has(whole)) ++whole;
  }
};

Inbox::Inbox(const Model& model, const Mode& mode, const InboxOptions& options)
    : model_(model), mode_(mode), options_(options) {
  std::random_device random;
  next_generation_ = (uint64_t{random()} << 32 | random()) | 1;
  if (options.device_bytes <= 0 || model.spec().ranks > 1) return;
  if (auto memory = model.backend().share(options.device_bytes)) stage_ = std::make_shared<Stage>(std::move(memory));
}

uint64_t Inbox::open(uint64_t transfer, const Tokens& tokens) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (n == 0 || n > model_.spec().max_positions) return 0;
  StreamLayout layout(model_, n);
  const int64_t bytes = layout.bytes();
  uint64_t generation = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (bytes > options_.bytes - bytes_ || open_.contains(transfer)) {
      ++counters_.refused;
      return 0;
    }
    bytes_ += bytes;
    generation = next_generation_++;
    if (next_generation_ == 0) ++next_generation_;
  }
  auto one = std::shared_ptr<Transfer>(
      new Transfer(*this, generation, tokens, std::move(layout)),
      [bytes](Transfer* gone) {
        Inbox& inbox = gone->inbox;
        delete gone;
        const std::scoped_lock lock(inbox.mutex_);
        inbox.bytes_ -= bytes;
      });
  one->bytes = std::make_unique_for_overwrite<uint8_t[]>(bytes);
  const std::scoped_lock lock(mutex_);
  ++counters_.opened;
  open_.emplace(transfer, std::move(one));
  return generation;
}

void Inbox::fail(Transfer& transfer, const std::string& why) {
  if (transfer.complete() || !transfer.error.empty()) return;
  transfer.error = why.empty() ? "it failed" : why.substr(0, kLongestReason);
  ++counters_.failed;
  arrived_.notify_all();
}

void Inbox::fail(uint64_t transfer, const std::string& why) {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = open_.find(transfer); found != open_.end()) fail(*found->second, why);
  }
  if (changed_) changed_();
}

void Inbox::lost(std::span<const uint64_t> transfers, const std::string& why) {
  for (const uint64_t transfer : transfers) fail(transfer, why);
}

void Inbox::close(uint64_t transfer) {
  std::shared_ptr<Transfer> last;  // goes without the lock, which its end takes
  const std::scoped_lock lock(mutex_);
  const auto found = open_.find(transfer);
  if (found == open_.end()) return;
  last = std::move(found->second);
  open_.erase(found);
  if (last->complete() || !last->error.empty()) return;
  last->error = "nobody waits for it any longer";  // for a forward that does: nothing finds it from now on
  arrived_.notify_all();
}

void Inbox::expire() {
  const auto now = Clock::now();
  for (auto& [number, transfer] : open_)
    if (now >= transfer->deadline()) fail(*transfer, "nothing of it came for too long");
}

bool Inbox::begun(std::span<const uint64_t> transfers) {
  const std::scoped_lock lock(mutex_);
  expire();
  return std::all_of(transfers.begin(), transfers.end(), [&](uint64_t number) {
    const auto found = open_.find(number);
    return found == open_.end() || found->second->whole > 0 || !found->second->error.empty();
  });
}

std::optional<std::chrono::steady_clock::time_point> Inbox::next_deadline() {
  const std::scoped_lock lock(mutex_);
  expire();
  std::optional<Clock::time_point> next;
  for (const auto& [number, transfer] : open_) {
    if (transfer->complete() || !transfer->error.empty()) continue;
    const auto deadline = transfer->deadline();
    if (!next || deadline < *next) next = deadline;
  }
  return next;
}

InboxCounters Inbox::counters() const {
  const std::scoped_lock lock(mutex_);
  return counters_;
}

int64_t Inbox::bytes_in_use() const {
  const std::scoped_lock lock(mutex_);
  return bytes_;
}

std::shared_ptr<Inbox::Transfer> Inbox::find(uint64_t transfer, uint64_t generation) const {
  const auto found = open_.find(transfer);
  return found == open_.end() || found->second->generation != generation ? nullptr : found->second;
}

std::shared_ptr<Window> Inbox::window(uint64_t number, uint64_t generation, int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  const std::shared_ptr<Transfer> transfer = find(number, generation);
  if (!transfer || !stage_ || !transfer->error.empty() || bytes != transfer->layout.bytes()) return nullptr;
  if (transfer->place || transfer->begun) return transfer->place;
  ByteArena::Range range = stage_->take(bytes);
  if (range) transfer->place = std::make_shared<Place>(stage_, std::move(range));
  return transfer->place;
}

// Whether a layer that has landed is what was sent. Without the lock, for it waits for the device.
bool Inbox::intact(const Packet& packet) {
  std::shared_ptr<Transfer> transfer;
  std::unique_ptr<Copies> copies;
  {
    const std::scoped_lock lock(mutex_);
    transfer = find(packet.transfer, packet.generation);
    if (!transfer || !transfer->place || !transfer->knows(packet.layer)) return false;
    if (!checking_.empty()) {
      copies = std::move(checking_.back());
      checking_.pop_back();
    }
  }
  if (!copies) copies = model_.backend().copies();
  const BytesCopy layer{nullptr, transfer->place->data + transfer->layout.begin(packet.layer),
                        transfer->layout.size(packet.layer)};
  uint64_t said = 0;
  std::memcpy(&said, packet.bytes.data(), std::min(sizeof(said), packet.bytes.size()));
  const bool same = copies->checksums({&layer, 1}).front() == said;
  const std::scoped_lock lock(mutex_);
  checking_.push_back(std::move(copies));
  return same;
}

void Inbox::came(Transfer& transfer, int32_t layer, int64_t bytes) {
  transfer.here[layer] = bytes;
  transfer.progress = Clock::now();
  transfer.begun = true;
  const bool before = transfer.complete();
  transfer.skip_empty();
  if (!before && transfer.complete()) {
    ++counters_.complete;
    counters_.landed +=
        std::any_of(transfer.landed.begin(), transfer.landed.end(), [](const auto& l) { return l.here; });
  }
  arrived_.notify_all();
}

void Inbox::take(const Packet& packet) {
  using Kind = Packet::Kind;
  const bool damaged = packet.kind == Kind::landed && !packet.bytes.empty() && !intact(packet);
  std::shared_ptr<Transfer> last;  // may go without the lock, which its end takes
  {
    const std::scoped_lock lock(mutex_);
    last = find(packet.transfer, packet.generation);
    if (!last) {
      ++counters_.stale;
      return;
    }
    Transfer& transfer = *last;
    if (!transfer.error.empty()) return;
    if (packet.kind == Kind::failed) {
      fail(transfer, std::string(packet.bytes.begin(), packet.bytes.end()));
    } else if (!transfer.knows(packet.layer)) {
      fail(transfer, "a packet lies outside its residue");
    } else if (packet.kind == Kind::landed) {
      if (transfer.landed[packet.layer].here) {
        ++counters_.duplicate;
      } else if (!transfer.place || transfer.here[packet.layer] > 0) {
        fail(transfer, "a layer has landed where it has no place");
      } else if (damaged) {
        fail(transfer, "a layer does not match its checksum");
      } else {
        transfer.landed[packet.layer] = {true, packet.ready};
        came(transfer, packet.layer, transfer.layout.size(packet.layer));
      }
    } else if (packet.kind != Kind::data) {
      fail(transfer, "a packet of a kind that says nothing of a residue");
    } else if (packet.offset > static_cast<uint64_t>(transfer.layout.size(packet.layer)) ||
               packet.bytes.size() > transfer.layout.size(packet.layer) - packet.offset) {
      fail(transfer, "a packet lies outside its layer");
    } else {
      const int64_t here = transfer.here[packet.layer];
      const auto offset = static_cast<int64_t>(packet.offset), end = offset + static_cast<int64_t>(packet.bytes.size());
      if (end <= here && !packet.bytes.empty()) {
        ++counters_.duplicate;
      } else if (offset != here) {
        fail(transfer, "a packet is missing");
      } else {
        std::copy(packet.bytes.begin(), packet.bytes.end(),
                  transfer.bytes.get() + transfer.layout.begin(packet.layer) + offset);
        came(transfer, packet.layer, end);
      }
    }
  }
  if (changed_) changed_();
}

class Inbox::Coming final : public Arrival {
 public:
  Coming(Inbox& inbox, std::shared_ptr<Transfer> transfer) : inbox_(inbox), transfer_(std::move(transfer)) {}
  // The place goes to another when the copies from it, which are only enqueued, are done.
  ~Coming() override {
    if (!read_) return;
    try {
      const std::shared_ptr<Event> read = inbox_.model_.backend().record();
      const std::scoped_lock lock(inbox_.mutex_);
      if (read) transfer_->place->read = read;
    } catch (const std::exception&) {  // a device that failed reads no more
    }
  }

  bool comes(int layer) override {
    Transfer& transfer = *transfer_;
    std::unique_lock lock(inbox_.mutex_);
    while (!transfer.has(layer) && transfer.error.empty()) {
      inbox_.arrived_.wait_until(lock, transfer.deadline());
      if (Clock::now() >= transfer.deadline()) inbox_.fail(transfer, "nothing of it came for too long");
    }
    return transfer.error.empty();
  }
  bool fails() override {
    const std::scoped_lock lock(inbox_.mutex_);
    return !transfer_->error.empty();
  }
  // What is here is not written again: this needs no lock.
  void place(int layer, const RankPools& at, const Placement& to) override {
    const Transfer& transfer = *transfer_;
    const StreamLayout& layout = transfer.layout;
    if (transfer.landed[layer].here) {
      if (transfer.landed[layer].ready) at.backend.wait_for(*transfer.landed[layer].ready);
      read_ = true;
      enqueue_scatter(at.backend, at.pools, layout.sections(layer), transfer.place->data + layout.begin(layer), to);
      return;
    }
    const std::span bytes(transfer.bytes.get() + layout.part_begin(layer, at.rank),
                          static_cast<size_t>(layout.part_size(layer)));
    unpack(at.backend, at.pools, layout.sections(layer), bytes, to);
  }

 private:
  Inbox& inbox_;
  const std::shared_ptr<Transfer> transfer_;
  bool read_ = false;  // from the transfer's place, which is of one rank
};

std::shared_ptr<Arrival> Inbox::accept(const Tokens& tokens, int32_t first, int32_t tail) {
  if (first != mode_.operator_first() || tail != mode_.tail) return nullptr;
  const std::scoped_lock lock(mutex_);
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const auto& one) {
    return one.second->error.empty() && one.second->tokens == tokens;
  });
  if (found == open_.end()) return nullptr;
  return std::make_shared<Coming>(*this, found->second);
}

}  // namespace hypic
