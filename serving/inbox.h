// The receiving end of a worker that combines: residues that others compute arrive here in host memory, or in windows
// on the device, and go from there to the engine's slots, layer by layer. Nothing that arrives is ever required: what
// is late, damaged or does not come is computed by the engine itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"
#include "serving/mode.h"
#include "serving/residue_stream.h"
#include "serving/transport.h"

namespace hypic {

struct InboxOptions {
  int64_t bytes = int64_t{1} << 30;  // of residues on their way
  // Of the device's memory for windows; 0, a backend that shares none, or several tensor-parallel ranks: no windows.
  int64_t device_bytes = 0;
  // With a residue of which nothing has come yet: its worker may be busy with others. And once it has begun to come.
  std::chrono::milliseconds first_patience{30'000}, patience{2'000};
};

// Since the beginning. Transfers end as complete, failed or closed before either.
struct InboxCounters {
  int64_t opened = 0, refused = 0;  // refused: no room
  int64_t complete = 0, failed = 0;
  int64_t landed = 0;     // of the complete ones those that came device to device
  int64_t stale = 0;      // packets of transfers that are closed, or of an earlier one in their place
  int64_t duplicate = 0;  // packets that were here already
};

class Inbox final : public PacketSink, public ResidueSource {
 public:
  // Residues of this model and mode. OutOfMemory: the device has not as much.
  Inbox(const Model& model, const Mode& mode, const InboxOptions& options);

  // From now on packets with this number and the generation returned are taken; 0: there is no room. A number that is
  // open already is refused. Generations never come again, not even in another life of the process.
  uint64_t open(uint64_t transfer, const Tokens& tokens);
  // It does not come, for a reason. Unknown ones are ignored.
  void fail(uint64_t transfer, const std::string& why);
  // A forward that waits for it is given up. Its memory goes once no arrival is under way.
  void close(uint64_t transfer);
  // Whether each of them has its first layer here, or has failed: a forward that waits for them waits no longer than
  // the layers are apart. Unknown ones have failed.
  bool begun(std::span<const uint64_t> transfers);
  // Called, on any thread and without locks, when `begun` may have changed. Set before anything is opened.
  void on_change(std::function<void()> changed) { changed_ = std::move(changed); }
  // When the next of them runs out of patience if nothing comes; empty: none is under way.
  std::optional<std::chrono::steady_clock::time_point> next_deadline();

  InboxCounters counters() const;
  int64_t bytes_in_use() const;

  void take(const Packet& packet) override;
  std::shared_ptr<Window> window(uint64_t transfer, uint64_t generation, int64_t bytes) override;
  void lost(std::span<const uint64_t> transfers, const std::string& why) override;
  std::shared_ptr<Arrival> accept(const Tokens& tokens, int32_t first, int32_t tail) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Transfer;
  struct Stage;
  struct Place;
  class Coming;

  std::shared_ptr<Transfer> find(uint64_t transfer, uint64_t generation) const;
  bool intact(const Packet& packet);
  void came(Transfer& transfer, int32_t layer, int64_t bytes);
  void fail(Transfer& transfer, const std::string& why);
  void expire();

  const Model& model_;
  const Mode mode_;
  const InboxOptions options_;
  std::shared_ptr<Stage> stage_;  // of windows; null: there are none
  std::function<void()> changed_;

  mutable std::mutex mutex_;  // of what follows, and of transfers
  std::condition_variable arrived_;
  uint64_t next_generation_;
  int64_t bytes_ = 0;
  InboxCounters counters_;
  std::map<uint64_t, std::shared_ptr<Transfer>> open_;
  std::vector<std::unique_ptr<Copies>> checking_;  // of no thread at the moment
};

}  // namespace hypic
