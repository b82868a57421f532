#include "kernels/replay.h"

#include <algorithm>
#include <chrono>

#include "kernels/cuda_backend.h"

namespace hypic {
namespace {

std::vector<double> wall_seconds(const std::function<void()>& enqueue, int runs) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const auto begin = Clock::now();
    enqueue();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return seconds;
}

}  // namespace

std::vector<double> replay_seconds(Backend& backend, const std::function<void()>& enqueue,
                                   const ReplayOptions& options) {
  void* const stream = cuda::stream_of(backend);
  const std::function<std::vector<double>(int)> run =
      stream ? cuda::record(stream, enqueue, options)
             : [&](int runs) { return wall_seconds(enqueue, runs); };
  int replays = options.replays;
  if (options.budget > 0) {
    const std::vector<double> first = run(1);
    const double fit = options.budget / std::max(first[0], 1e-9) - 1 - options.warmup;
    if (fit < 1) return first;
    replays = static_cast<int>(std::min<double>(replays, fit));
  }
  run(options.warmup);
  return run(replays);
}

}  // namespace hypic
