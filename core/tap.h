// Watching a forward from outside: Tap sees named tensors, LayerHooks run around each layer.
#pragma once

#include <string>
#include <string_view>

#include "core/chain.h"
#include "core/tensor.h"

namespace hypic {

// Receives tensors by name, such as layers.3.linear.state; they are valid only during the call and may
// be on the device. A forward without a tap costs nothing.
class Tap {
 public:
  virtual ~Tap() = default;
  virtual void see(const std::string& name, const Tensor& tensor) = 0;
};

// Stands between a router and its experts. Rounding, which differs from batch to batch, sends some rows of a mixture of
// experts elsewhere, and what follows may then differ by any amount; two runs compare where one follows the other.
class RouteHook {
 public:
  virtual ~RouteHook() = default;
  // Before each forward of the prefill: its rows, in the order of the tensors below.
  virtual void begin(const ChainTable& table) = 0;
  // After routing: experts [R, k] i32, weights [R, k] state dtype, on the device; both may be overwritten. Of
  // tensor-parallel ranks the first one's, which the others follow.
  virtual void routed(int layer, const Tensor& experts, const Tensor& weights) = 0;
};

// Called before and after each layer of a forward. Implementations only enqueue waits and sends: a residue
// becomes ready layer by layer, and leaves layer by layer.
class LayerHooks {
 public:
  virtual ~LayerHooks() = default;
  virtual void before(int layer) = 0;
  virtual void after(int layer) = 0;
};

}  // namespace hypic
