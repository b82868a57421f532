#include "harness/bench/measure.h"

#include <algorithm>
#include <map>

#include "core/check.h"

namespace hypic::bench {
namespace {

std::string names_of(const std::map<std::string, int64_t>& before,
                     const std::map<std::string, int64_t>& after) {
  std::string text;
  for (const auto& [name, count] : after) {
    const auto was = before.find(name);
    const int64_t times = count - (was == before.end() ? 0 : was->second);
    if (times > 0) text += str(text.empty() ? "" : ", ", name, times > 1 ? str(" × ", times) : "");
  }
  return text;
}

}  // namespace

double median(const std::vector<double>& sorted) {
  HYPIC_CHECK(!sorted.empty());
  const size_t n = sorted.size();
  return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

Measured measure(const Bench& bench, Backend& backend, const ReplayOptions& options) {
  Measured out{.name = bench.name};
  try {
    Job job(backend);
    bench.prepare(job);
    out.cost = job.cost;
    const auto before = backend.launches();
    job.enqueue();
    out.kernels = names_of(before, backend.launches());
    out.failure = job.fault();
    if (!out.failure.empty()) return out;
    ReplayOptions replay = options;
    replay.graph &= job.graph;
    std::vector<double> seconds = replay_seconds(backend, job.enqueue, replay);
    out.failure = job.fault();  // a replay that goes wrong is often fast
    if (!out.failure.empty()) {
      out.failure += " after the replays";
      return out;
    }
    if (seconds.size() == 1 && options.replays > 1)
      out.kernels += " (one run only: over the budget)";
    std::sort(seconds.begin(), seconds.end());
    out.seconds = std::move(seconds);
  } catch (const std::exception& error) {
    out.failure = error.what();
  }
  return out;
}

Ceilings measure_ceilings(Backend& backend, const Sizes& sizes, const ReplayOptions& options) {
  const auto fastest = [&](const Bench& bench) {
    Measured m = measure(bench, backend, options);
    require(m.failure.empty(), bench.name, ": ", m.failure);
    return m;
  };
  const Measured copy = fastest(copy_bench(sizes)), product = fastest(product_bench(sizes));
  return {copy.cost.bytes / copy.seconds.front(),
          product.cost.operations / product.seconds.front()};
}

}  // namespace hypic::bench
