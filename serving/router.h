// Answers requests with workers: chooses one that combines, lets others compute the segments that it misses and send
// them there, and passes its answer on. It computes nothing and holds nothing but what the workers said.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "serving/assignment.h"
#include "serving/combine_worker.h"
#include "serving/hit_directory.h"
#include "serving/request_handler.h"
#include "serving/scatter_worker.h"

namespace hypic {

// A worker that scatters, as the router calls it.
class ScatterPeer {
 public:
  virtual ~ScatterPeer() = default;
  // `done` is called once, on any thread, if only with errors because the worker cannot be reached or the deadline is
  // over.
  virtual void prefill(PrefillJob job, std::function<void(const PrefillReport&)> done) = 0;
  virtual void flush() = 0;
};

// A worker that combines.
class CombinePeer {
 public:
  virtual ~CombinePeer() = default;
  struct Events {
    std::function<void(const std::vector<uint64_t>& generations)> opened;  // as CombineWorker::Opened
    Listener notice;  // of status kLost where the worker cannot be reached any more
  };
  // Events come on any thread, perhaps before it returns. A number for cancel().
  virtual uint64_t generate(Request request, std::vector<CombineWorker::Remote> remote, Events events) = 0;
  virtual void cancel(uint64_t call) = 0;
  virtual void fail(uint64_t transfer, const std::string& why) = 0;
  virtual void flush() = 0;

  static constexpr int kLost = 503;
  // What the owner of a request is told then. `why` names the worker.
  static std::string lost(const std::string& why);
};

struct RouterOptions {
  Mode mode;
  Policy policy = Policy::lpt;
  int64_t max_waiting = 1024;  // requests that run or wait
  std::chrono::milliseconds prefill_timeout{30'000};
  int attempts = 3;  // at a request, with other workers where there are, as long as none of its tokens is out
};

struct RouterCounters {
  int64_t requests = 0, retried = 0;
  int64_t sent = 0, sent_cached = 0;  // segments that workers sent; of them without computing
  int64_t own = 0;                    // that the combining worker computed by plan
  int64_t recomputed = 0;             // that were to be sent and failed
  int64_t held = 0;                   // that it is known to have
};

class Router final : public RequestHandler {
 public:
  Router(Metrics& metrics, const RouterOptions& options);
  // Owners hear nothing more.
  ~Router() override;

  // Workers are up or down from time to time, at first down. The number is the worker's until it is removed.
  int add_scatter(const std::string& name, std::shared_ptr<ScatterPeer> peer);
  int add_combine(const std::string& name, std::shared_ptr<CombinePeer> peer);
  void remove(int worker);  // down first, if it is not
  // Why workers that combine are not even known, by what stands for them, with its name; empty: they are. Said where
  // none is up.
  void unknown(const std::string& name, const std::string& why);
  struct Life {
    uint64_t incarnation = 0;  // of its process; never 0
    std::string address;       // of what it receives, if it combines
  };
  void up(int worker, const Life& life);
  void down(int worker, const std::string& why);
  void residues(int worker, uint64_t incarnation, bool snapshot, std::span<const ResidueChange> changes);

  uint64_t submit(Request request, Listener listener) override;
  void cancel(uint64_t id) override;
  void flush() override;
  void drain() override;
  Load load() const override;
  RouterCounters counters() const;
  int64_t workers_up() const;

 private:
  struct Core;
  std::shared_ptr<Core> core_;  // what calls that are under way hold as well
};

}  // namespace hypic
