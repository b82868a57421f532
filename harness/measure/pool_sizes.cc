#include "harness/measure/pool_sizes.h"

#include <algorithm>
#include <vector>

#include "serving/planner.h"

namespace hypic {
namespace {

// Of a prefix cache that only has to find the first ones.
constexpr int64_t kSnapshots = 64;

// States for the builds of any of the segments, in any order: at worst the short ones follow one another.
int64_t most_build_states(std::vector<int64_t> lengths, int32_t chunk) {
  std::sort(lengths.begin(), lengths.end());
  BuildStates builds(chunk);
  for (const int64_t length : lengths) builds.next(length);
  return std::min<int64_t>(builds.count() + 1, static_cast<int64_t>(lengths.size()));
}

}  // namespace

PoolSizes pools_for(std::span<const CellPrompt> at_once, const CellMode& mode, int32_t chunk, int64_t new_tokens) {
  PoolSizes pools;
  std::vector<int64_t> lengths;  // of all segments but the questions
  for (const CellPrompt& prompt : at_once) {
    const auto segments = static_cast<int64_t>(prompt.segments.size()) - 1;
    const int64_t seams = mode.mode.head + mode.mode.tail;
    int64_t tokens = new_tokens;
    for (const Tokens& segment : prompt.segments) tokens += static_cast<int64_t>(segment.size());
    for (int64_t i = 0; i < segments; ++i) lengths.push_back(static_cast<int64_t>(prompt.segments[i].size()));
    pools.state_slots += 1;
    pools.pages += tokens / pools.page_size + 2;
    if (mode.mode.reuse == Reuse::prefix) {
      const bool whole = mode.cache.kind == CacheState::Kind::warm_prefix;
      pools.state_slots += 1 + (whole ? segments : std::min(segments, kSnapshots));
    }
    if (mode.mode.reuse == Reuse::segments) {
      pools.operator_slots += segments;
      pools.pages += segments * (seams + pools.page_size) / pools.page_size;
    }
  }
  if (mode.mode.reuse == Reuse::segments) pools.state_slots += most_build_states(std::move(lengths), chunk);
  return pools;
}

void raise(PoolSizes& pools, const PoolSizes& need) {
  pools.state_slots = std::max(pools.state_slots, need.state_slots);
  pools.operator_slots = std::max(pools.operator_slots, need.operator_slots);
  pools.pages = std::max(pools.pages, need.pages);
}

}  // namespace hypic
