// A server that only waits: it calibrates the client, and stands in for an engine in tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace hypic::load {

struct MockOptions {
  uint16_t port = 0;        // on 127.0.0.1; 0: any that is free
  double ttft = 0.02;       // seconds from when a request is taken up to its first token, mean
  double itl = 0.005;       // seconds between tokens, mean
  double cv = 0;            // of both: standard deviation over mean, of a gamma distribution; 0: constant
  int64_t capacity = 0;     // requests taken up at once, the rest waits in order; 0: no bound
  double error_share = 0;   // of requests, answered by 503
  double hang_share = 0;    // of requests, never answered
  double cached_speed = 1;  // TTFT is divided by this for a prompt that is cached whole, in proportion for a part
  std::string separator = "\n\n";  // between passages; each that came before counts as cached until POST /flush_cache
  bool usage = true;               // says how many tokens there were
  uint64_t seed = 1;
};

// Answers POST /v1/completions and /generate by streams of events, POST /flush_cache, GET /health and /v1/models, from
// a thread of its own, until it is destroyed. A token of its counts is a word, or an id.
class MockServer {
 public:
  explicit MockServer(const MockOptions& options);  // Error: the port is taken
  ~MockServer();
  MockServer(const MockServer&) = delete;
  MockServer& operator=(const MockServer&) = delete;

  uint16_t port() const;
  std::string url() const;   // "http://127.0.0.1:PORT"
  int64_t requests() const;  // so far, of both kinds

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hypic::load
