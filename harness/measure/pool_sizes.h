// What an engine's pools must hold while a mode answers prompts, from lengths alone.
#pragma once

#include <cstdint>
#include <span>

#include "harness/measure/workload.h"
#include "models/pools.h"

namespace hypic {

// For prompts that run at once, each with `new_tokens` of an answer, on a cache that holds what `mode.cache` says of
// all of them, or a part of it, and nothing else; forwards of at most `chunk` rows.
PoolSizes pools_for(std::span<const CellPrompt> at_once, const CellMode& mode, int32_t chunk, int64_t new_tokens);

// Makes `pools` large enough for what `need` is for, too.
void raise(PoolSizes& pools, const PoolSizes& need);

}  // namespace hypic
