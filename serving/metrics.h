// What a server counts, as Prometheus reads it. For several threads.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serving/engine.h"

namespace hypic {

class Histogram {
 public:
  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                         0.5,   1.0,    2.5,   5.0,  10.0,  25.0, 50.0, 100.0};  // seconds
  void add(double seconds);
  std::string text(const std::string& name, const std::string& help) const;

 private:
  std::array<int64_t, kBounds.size() + 1> counts_{};  // the last beyond all bounds
  double sum_ = 0;
};

// How things stand with a router's workers, and what became of missing segments since the beginning.
struct RouterLoad {
  int64_t workers_up = 0, retried = 0;
  std::vector<std::pair<const char*, int64_t>> segments;
};

// How things stand.
struct Load {
  int64_t running = 0, waiting = 0;  // requests
  std::string why_not_ready = "it is warming up";  // empty: ready
  bool draining = false;
  bool ready() const { return why_not_ready.empty(); }
  std::optional<CacheUsage> cache;  // of who has one
  std::optional<RouterLoad> router;
};

class Metrics {
 public:
  void answered(int status);  // a request over HTTP
  void prompt(int64_t tokens, const Reused& reused);
  void together(int64_t prompts);                         // that start in one submission
  void first_token(double seconds);                       // since it came
  void next_token(double seconds);                        // since the one before
  void finished(double seconds, const std::string& why);  // done; cancelled, as by a stop text; error

  std::string text(const Load& load) const;
  double prompts_together() const;  // mean of what together() was told; NaN before

 private:
  mutable std::mutex mutex_;
  std::map<int, int64_t> answered_;
  std::map<std::string, int64_t> finished_;
  Histogram first_, next_, whole_;
  int64_t prompt_tokens_ = 0, answer_tokens_ = 0, prompts_ = 0, submissions_ = 0;
  Reused reused_;
};

}  // namespace hypic
