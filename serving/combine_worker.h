// A worker that combines: answers requests on its engine, with residues that other workers send it meanwhile.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serving/inbox.h"
#include "serving/scheduler.h"

namespace hypic {

class CombineWorker {
 public:
  // The engine is this worker's alone until its end.
  CombineWorker(Engine& engine, const Model& model, Metrics& metrics, const SchedulerOptions& scheduling,
                const InboxOptions& receiving);
  // Owners hear nothing more.
  ~CombineWorker();

  struct Remote {
    uint64_t transfer = 0;
    size_t segment = 0;  // of the request
  };
  struct Opened {
    uint64_t id = 0;                    // for cancel()
    std::vector<uint64_t> generations;  // by remote segment; 0: it is not to be sent, for there is no place for it
  };
  // The request starts when each of these segments has begun to arrive or does not come. Error: a remote segment that
  // is none of the request's.
  Opened submit(Request request, const std::vector<Remote>& remote, Listener listener);
  void cancel(uint64_t id);
  // A segment does not come, for a reason: it is computed here.
  void fail(uint64_t transfer, const std::string& why) { inbox_.fail(transfer, why); }

  PacketSink& sink() { return inbox_; }
  const Inbox& inbox() const { return inbox_; }
  Scheduler& scheduler() { return scheduler_; }

 private:
  struct Job {
    Request request;
    Listener listener;
    std::vector<uint64_t> transfers;
    uint64_t scheduled = 0;  // with the scheduler; 0: not yet
  };
  using Jobs = std::map<uint64_t, Job>;

  // Requests ask the inbox for residues as long as this lives.
  struct Receiving {
    Receiving(Engine& engine, Inbox& inbox) : engine(engine) { engine.receive_from(&inbox); }
    ~Receiving() { engine.receive_from(nullptr); }
    Engine& engine;
  };

  void wait();
  void start(Jobs::iterator job);
  void end(uint64_t id);
  void forget(Jobs::iterator job);

  Inbox inbox_;
  const Receiving receiving_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Jobs jobs_;
  uint64_t last_id_ = 0;
  bool moved_ = false, stopping_ = false;
  Scheduler scheduler_;  // calls into what is above
  std::thread thread_;
};

}  // namespace hypic
