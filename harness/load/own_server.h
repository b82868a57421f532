// hypic's server in this process, and what a trace allows it to find in its cache.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "datasets/trace.h"
#include "models/model.h"
#include "models/pools.h"
#include "serving/mode.h"

namespace hypic::load {

struct OwnServerOptions {
  Mode mode;
  int64_t cache_bytes = 0, host_bytes = 0;  // of cached segments, on the device and in host memory
  int64_t at_once = 16;                     // requests that run at once
  int32_t chunk = 8192;                     // rows of a forward
  // Of the prompts that come: by these pools are sized.
  int64_t longest = 0;        // tokens of one, with its answer
  int64_t most_segments = 0;  // of one
  double segment_tokens = 0;  // mean length of a segment that can be cached
};

// Pools for the requests that run and for as many cached segments as the budget holds.
PoolSizes pools_of(const OwnServerOptions& options, const ReuseCosts& costs);
// What a cached segment takes on the device.
ReuseCosts costs_of(const Model& model);

// On a free port of 127.0.0.1. It stores what comes a second time, as a server does, and nobody is turned away.
class OwnServer {
 public:
  // OutOfMemory: the pools do not fit.
  OwnServer(const Model& model, const OwnServerOptions& options);
  ~OwnServer();
  std::string url() const;
  double prompts_together() const;  // mean number of prompts that started in one forward

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Of the prompt tokens of requests first … first + count − 1 the share that a mode finds in its cache and need not
// compute, seams taken off: by simulation, from request first − prime on, of a cache that stores what comes a second
// time and drops what was used least lately. `budget` in bytes.
double trace_share(const Trace& trace, int64_t first, int64_t count, int64_t prime, const Mode& mode, int64_t budget,
                   const ReuseCosts& costs);

}  // namespace hypic::load
