// How long enqueued operations take on the device, without the host's part: a backend with a stream
// has them captured into a CUDA graph, which is replayed between events. On others it is wall-clock
// time.
#pragma once

#include <functional>
#include <vector>

#include "core/backend.h"

namespace hypic {

struct ReplayOptions {
  int warmup = 3;
  int replays = 20;
  bool cold_l2 = false;  // 256 MiB are written before each replay, outside of its time
  bool graph =
      true;  // false: enqueued anew each time, for what a graph makes slower (plain copies)
  double budget = 0;  // seconds, or 0: fewer replays where they would take longer, at least one
};

// The seconds of each replay. `enqueue` must have run once before, so that nothing is set up while
// it is captured; it may not synchronise, upload, download or call begin().
std::vector<double> replay_seconds(Backend& backend, const std::function<void()>& enqueue,
                                   const ReplayOptions& options = {});

namespace cuda {

// Captures `enqueue` on a cudaStream_t; the result runs it so many times and returns the seconds of
// each.
std::function<std::vector<double>(int)> record(void* stream, const std::function<void()>& enqueue,
                                               const ReplayOptions& options);

}  // namespace cuda
}  // namespace hypic
