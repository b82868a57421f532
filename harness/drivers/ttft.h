// The TTFT driver, with a place where tests can reach in.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/driver.h"
#include "harness/measure/workload.h"
#include "serving/engine.h"

namespace hypic::ttft {

// The title of the table of times in a report.
inline constexpr const char* kTimes = "Time to first token";

// Pools for the prompts of a cell one by one: for what any of the modes, on its cache state, holds at once,
// with `new_tokens` of an answer.
EngineOptions engine_options(const std::vector<CellPrompt>& prompts, const std::vector<CellMode>& modes,
                             int32_t chunk, int64_t new_tokens = 1);

// As prepare_ttft; `primed` is called after each priming. Tests only: what changes the cache there
// must not go unseen.
Work prepare(const SuiteCase& suite_case, const std::string& where, const DriverContext& context,
             std::function<void(Engine&)> primed);

}  // namespace hypic::ttft
