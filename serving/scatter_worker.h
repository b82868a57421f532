// A worker that scatters: computes residues of segments, one forward for those that wait, and sends them on, layer by
// layer while the later layers are computed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serving/command_queue.h"
#include "serving/engine.h"
#include "serving/host_memory.h"
#include "serving/residue_store.h"
#include "serving/transport.h"

namespace hypic {

struct ScatterOptions {
  Mode mode;
  int64_t rows = 8192;                       // of segments computed together; one alone may have more
  int64_t staging_bytes = int64_t{1} << 30;  // of host memory for residues on their way
  // Of the device's memory for those that go device to device, where a receiver gives windows; 0, a backend that shares
  // none, or several tensor-parallel ranks: all go through host memory.
  int64_t device_bytes = 0;
  int64_t max_waiting = 4096;                // segments; more are turned away
  // Where segments that are not cached are looked for before they are computed, and go once they were; null: nowhere.
  // Used by one of the worker's threads; outlives it.
  ResidueStore* store = nullptr;
  Sha256::Digest identity{};                    // of model, dtypes and backend, for names in the store
  std::function<void(const std::string&)> say;  // hears what is wrong with the store; may be empty
};

// Segments of one request for one receiver.
struct PrefillJob {
  struct Segment {
    Tokens tokens;
    uint64_t transfer = 0, generation = 0;
  };
  std::string destination;  // an address of the worker's Transports
  std::vector<Segment> segments;
  std::chrono::steady_clock::time_point deadline;  // what has not begun by then is not computed
};

// What became of them, once all that could be sent has left.
struct PrefillReport {
  struct Segment {
    bool cached = false;  // or from the store
    std::string error;    // empty: it has been sent
  };
  std::vector<Segment> segments;
  // Seconds: until its first segment began; computing its share of the forwards; from the last layer's end until all
  // was sent.
  double waited = 0, computed = 0, sent = 0;
  int64_t computed_tokens = 0;
};

class ScatterWorker {
 public:
  // Starts two threads, one that computes and one that sends. The engine is this worker's alone until its end.
  // OutOfMemory: the device has not as much.
  ScatterWorker(Engine& engine, const Model& model, Transports& transports, const ScatterOptions& options);
  // What waits is answered with an error; what is being computed is sent.
  ~ScatterWorker();

  // `done` is called once, on a thread of the worker.
  void prefill(PrefillJob job, std::function<void(const PrefillReport&)> done);
  void flush();             // empties the cache between two forwards, and waits for that
  int64_t waiting() const;  // segments
  // Residues that came from the store, and that went there.
  int64_t fetched() const { return fetched_; }
  int64_t kept() const { return kept_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Job;
  struct Group;
  struct Sending;
  class Sink;

  void compute();
  void run(std::shared_ptr<Group> group);
  void ask_for_windows(Group& group);
  bool fetch(const std::shared_ptr<Group>& group, size_t index);
  void keep(const Group& group, size_t index);
  void send();
  void send(const Sending& sending);

  Engine& engine_;
  const Model& model_;
  Transports& transports_;
  const ScatterOptions options_;
  HostArena staging_;
  // Residues on the device, and their copies from there to windows, which only the sending thread makes; null: none.
  const std::unique_ptr<SharedMemory> device_memory_;
  const std::unique_ptr<ByteArena> device_staging_;
  const std::unique_ptr<Copies> copies_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  struct Waiting {
    std::shared_ptr<Job> job;
    size_t segment;
    std::shared_ptr<Window> window = nullptr;  // of the receiver; null: by packets
  };
  std::deque<Waiting> queue_;
  std::deque<Sending> sendings_;
  CommandQueue commands_{mutex_, changed_};
  bool stopping_ = false, computed_ = false;  // computed_: nothing more comes to be sent
  std::atomic<int64_t> fetched_ = 0, kept_ = 0;
  std::thread computing_, sending_;
};

}  // namespace hypic
