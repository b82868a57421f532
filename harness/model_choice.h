// Which model a case runs, on which backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "harness/driver.h"
#include "models/model.h"
#include "serving/planner.h"

namespace hypic {

struct ModelChoice {
  std::string model, backend;
};

// The parameters model (random:qwen3.5-tiny) and backend (cpu), unless the context names others.
// Error: unknown backend.
ModelChoice read_model_choice(Parameters& parameters, const DriverContext& context);

// Token ids drawn from a seed: for models without a tokenizer, and where only numbers matter.
Tokens random_tokens(int64_t count, int32_t vocabulary, uint64_t seed);

}  // namespace hypic
