// Many clients, one engine: a thread of its own admits requests as there is room and runs the engine step by step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "serving/command_queue.h"
#include "serving/engine.h"
#include "serving/metrics.h"
#include "serving/request_handler.h"

namespace hypic {

struct SchedulerOptions {
  Mode mode;
  int64_t max_waiting = 256;     // requests; more are turned away
  int64_t prompt_rows = 8192;    // that prompts which start together are likely to take, unless one alone takes more
};

class Scheduler final : public RequestHandler {
 public:
  // Starts the thread, which first runs a small request, so that the first client does not wait for what happens once.
  // The engine is the scheduler's alone until its end.
  Scheduler(Engine& engine, Metrics& metrics, const SchedulerOptions& options);
  // Ends what runs; owners hear nothing more.
  ~Scheduler() override;

  // A number for cancel(); 0: the queue is full, or it drains. Requests wait their turn, but those whose segments are
  // all cached go before others, and all before one whose files are still being read: at most kMostPassed of them.
  uint64_t submit(Request request, Listener listener) override;
  // Its owner hears nothing more, except what is being said at this moment.
  void cancel(uint64_t id) override;
  // Empties the cache between two steps, and waits for that.
  void flush() override;
  // From now on nothing new is taken; what runs or waits goes on.
  void drain() override;
  // Waits until it is warm. Error: what the first request ran into.
  void wait_until_warm();

  Load load() const override;

  static constexpr int kMostPassed = 16;

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    uint64_t id = 0;
    Request request;
    Listener listener;
    Clock::time_point arrived, latest;         // latest token
    int passed = 0;                            // by how many that came later
    int64_t prompt = 0;                        // tokens
    std::optional<SegmentCache::Ahead> ahead;  // its files, since the thread has first seen it
    bool waits_for_room = false;               // for some of them
    bool started = false;
    Reused reused;
  };

  void run();
  void warm_up();
  void read_ahead();
  void admit();
  bool start(std::vector<Job> group);
  void step();
  void fail(Job& job, int status, const std::string& error);
  void end(const Job& job, const std::string& why);
  void publish();

  Engine& engine_;
  Metrics& metrics_;
  const SchedulerOptions options_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable woken_, said_;
  std::deque<Job> arrived_;
  std::vector<uint64_t> cancelled_;
  CommandQueue commands_{mutex_, woken_};
  uint64_t last_id_ = 0;
  int64_t waiting_ = 0;  // here and on the thread
  bool stopping_ = false, draining_ = false, warm_ = false;
  bool read_ = false;  // some file has been
  std::string warm_error_;
  Load load_{.cache = CacheUsage{}};

  // The thread's own.
  std::deque<Job> queue_;
  std::map<uint64_t, Job> running_;  // by ticket
  Clock::time_point counted_{};
  bool blocked_ = false;  // there is no room for the next one, until something ends
  bool reading_ = false;  // all that may start wait for files
  std::thread thread_;
};

}  // namespace hypic
