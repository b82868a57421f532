#include "serving/inbox.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "core/check.h"

namespace hypic {
namespace {

constexpr size_t kLongestReason = 200;

}  // namespace

struct Inbox::Transfer {
  Inbox& inbox;
  uint64_t generation;
  Tokens tokens;
  std::vector<LayerSections> layers;
  std::vector<int64_t> begins;  // by layer, and the end: offsets into bytes
  std::vector<int64_t> here;    // by layer: bytes that have come
  std::unique_ptr<uint8_t[]> bytes;
  size_t whole = 0;    // layers that are
  bool begun = false;  // something has come
  Clock::time_point progress = Clock::now();
  std::string error;  // empty: none

  Transfer(Inbox& inbox, uint64_t generation, const Tokens& tokens, std::vector<LayerSections> given)
      : inbox(inbox), generation(generation), tokens(tokens), layers(std::move(given)), begins{0}, here(layers.size()) {
    for (const LayerSections& layer : layers) begins.push_back(begins.back() + bytes_of(layer));
    skip_empty();
  }

  int64_t size(size_t layer) const { return begins[layer + 1] - begins[layer]; }
  bool has(size_t layer) const { return here[layer] == size(layer); }
  bool complete() const { return whole == layers.size(); }
  // When it has failed unless something comes.
  Clock::time_point deadline() const {
    return progress + (begun ? inbox.options_.patience : inbox.options_.first_patience);
  }
  void skip_empty() {
    while (!complete() && has(whole)) ++whole;
  }
};

Inbox::Inbox(const Model& model, const Pools& pools, const Mode& mode, const InboxOptions& options)
    : model_(model),
      pools_(pools),
      mode_(mode),
      options_(options),
      layout_(model.spec(), model.backend().compute_dtype(), model.backend().state_dtype(), ResidueFormat::full) {
  std::random_device random;
  next_generation_ = (uint64_t{random()} << 32 | random()) | 1;
}

uint64_t Inbox::open(uint64_t transfer, const Tokens& tokens) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (n == 0 || n > model_.spec().max_positions) return 0;
  const int64_t bytes = bytes_of(layout_.sections(Part::kv, n)) + bytes_of(layout_.sections(Part::op, n));
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
      new Transfer(*this, generation, tokens, residue_layers(layout_, model_.spec().layer_count(), n)),
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

void Inbox::take(const Packet& packet) {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = open_.find(packet.transfer);
    if (found == open_.end() || found->second->generation != packet.generation) {
      ++counters_.stale;
      return;
    }
    Transfer& transfer = *found->second;
    if (!transfer.error.empty()) return;
    if (packet.kind == Packet::Kind::failed) {
      fail(transfer, std::string(packet.bytes.begin(), packet.bytes.end()));
    } else if (packet.layer < 0 || packet.layer >= static_cast<int64_t>(transfer.layers.size()) ||
               packet.offset > static_cast<uint64_t>(transfer.size(packet.layer)) ||
               packet.bytes.size() > transfer.size(packet.layer) - packet.offset) {
      fail(transfer, "a packet lies outside its layer");
    } else {
      int64_t& here = transfer.here[packet.layer];
      const auto offset = static_cast<int64_t>(packet.offset), end = offset + static_cast<int64_t>(packet.bytes.size());
      if (end <= here && !packet.bytes.empty()) {
        ++counters_.duplicate;
      } else if (offset != here) {
        fail(transfer, "a packet is missing");
      } else {
        std::copy(packet.bytes.begin(), packet.bytes.end(),
                  transfer.bytes.get() + transfer.begins[packet.layer] + offset);
        here = end;
        transfer.progress = Clock::now();
        transfer.begun = true;
        const bool before = transfer.complete();
        transfer.skip_empty();
        if (!before && transfer.complete()) ++counters_.complete;
        arrived_.notify_all();
      }
    }
  }
  if (changed_) changed_();
}

class Inbox::Coming final : public Arrival {
 public:
  Coming(Inbox& inbox, std::shared_ptr<Transfer> transfer, const Placement& to)
      : inbox_(inbox), transfer_(std::move(transfer)), to_(to) {}

  bool place(int layer) override {
    Transfer& transfer = *transfer_;
    {
      std::unique_lock lock(inbox_.mutex_);
      while (!transfer.has(layer) && transfer.error.empty()) {
        inbox_.arrived_.wait_until(lock, transfer.deadline());
        if (Clock::now() >= transfer.deadline()) inbox_.fail(transfer, "nothing of it came for too long");
      }
      if (!transfer.error.empty()) return false;
    }
    // What is here is not written again: this needs no lock.
    const std::span bytes(transfer.bytes.get() + transfer.begins[layer], static_cast<size_t>(transfer.size(layer)));
    unpack(inbox_.model_.backend(), inbox_.pools_, transfer.layers[layer], bytes, to_);
    return true;
  }
  bool fails() override {
    const std::scoped_lock lock(inbox_.mutex_);
    return !transfer_->error.empty();
  }

 private:
  Inbox& inbox_;
  const std::shared_ptr<Transfer> transfer_;
  const Placement to_;
};

std::unique_ptr<Arrival> Inbox::accept(const Tokens& tokens, int32_t first, int32_t tail, const Placement& to) {
  if (first != mode_.operator_first() || tail != mode_.tail) return nullptr;
  const std::scoped_lock lock(mutex_);
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const auto& one) {
    return one.second->error.empty() && one.second->tokens == tokens;
  });
  if (found == open_.end()) return nullptr;
  return std::make_unique<Coming>(*this, found->second, to);
}

}  // namespace hypic
