// What a model with its pools takes, from sizes alone: whether a prompt fits is said before any memory is
// taken.
#pragma once

#include <cstdint>
#include <string>

#include "core/dtype.h"
#include "models/pools.h"
#include "models/spec.h"

namespace hypic {

// Bytes.
struct MemoryNeed {
  int64_t weights = 0;
  int64_t pages = 0;      // K, V
  int64_t operators = 0;  // of residues, with their convolution tails
  int64_t states = 0;     // of running requests and of saved prefixes, with their convolution windows
  int64_t activations = 0;
  int64_t rows = 0;  // of the forward that they are of
  int64_t total() const { return weights + pages + operators + states + activations; }
};

// Activations: at most what a forward holds for one request, kernels' own memory among it. It has no more
// than `max_rows` rows, and no more than there are pages for.
MemoryNeed memory_need(const ModelSpec& spec, DType compute, DType state, const PoolSizes& pools,
                       int32_t max_rows);

// OutOfMemory where `need` is more than `available` bytes in all: one line with every summand, and what to
// lower.
void require_memory(const std::string& model, const MemoryNeed& need, int64_t available);

}  // namespace hypic
