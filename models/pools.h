// What a model keeps between forwards: states, convolution windows, operators and K, V pages, each
// a pool of slots that planners hand out. Slots are the caller's to manage; the pools only hold the
// memory.
#pragma once

#include <vector>

#include "core/backend.h"
#include "models/spec.h"

namespace hypic {

struct PoolSizes {
  int64_t state_slots = 0;     // running requests and saved states
  int64_t operator_slots = 0;  // residues
  int64_t pages = 0;           // K, V of page_size tokens in every attention layer
  int32_t page_size = 16;
};

// Memory of one linear layer: state [S, Hv, d_k, d_v], window [S, W−1, C], and the operator pool
// with its convolution tails [operators, W−1, C].
struct LinearPool {
  Buffer state, window, tail;
  Buffer log_scale, T, U;
  TransferOperator operators() const;
  OperatorKind kind;
};

struct AttentionPool {
  Buffer k, v;  // [P, page size, Hkv, D]; of latent attention k alone, [P, page size, 1, latent + shared]
};

struct Pools {
  Pools(Backend& backend, const ModelSpec& spec, const PoolSizes& sizes);

  PoolSizes sizes;
  std::vector<LinearPool> linear;        // by layer; empty where it has none
  std::vector<AttentionPool> attention;  // by layer; empty where it has none

  // Bytes of one operator slot, of one state slot and of one page, over all layers.
  int64_t operator_bytes() const;
  int64_t state_bytes() const;
  int64_t page_bytes() const;
};

}  // namespace hypic
