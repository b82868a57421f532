// One forward of a model over a chain table: every row of every chain through every layer, once.
#pragma once

#include "core/chain.h"
#include "core/tap.h"
#include "models/model.h"
#include "models/pools.h"

namespace hypic {

struct ForwardOptions {
  Tap* tap = nullptr;
  LayerHooks* hooks = nullptr;
  RouteHook* routes = nullptr;
};

// Reads and writes the slots and pages that the table names. `logits` [logit rows, vocabulary],
// compute dtype; may be empty where the table wants none.
//
// Taps, for layer N: layers.N.linear.{qkv, q, k, v, g, beta, o, state}, layers.N.attention.{q, k,
// v, o}, layers.N.moe.{logits, experts, weights}, layers.N.residual (after the layer), each where the layer has
// it; and embedding, logits. Of latent attention q, k, o are those of the absorbed form.
void forward(const Model& model, Pools& pools, const ChainTable& table, const Tensor& logits,
             const ForwardOptions& options = {});

// InternalError where the table names what the pools do not have.
void check_table(const Pools& pools, const ChainTable& table);

// The same as forward without its check and begin(table): operations alone, which a backend can replay.
void enqueue_forward(const Model& model, Pools& pools, const Rows& rows, const Tensor& logits,
                     const ForwardOptions& options = {});

}  // namespace hypic
