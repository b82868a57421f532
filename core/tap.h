// Watching a forward from outside: Tap sees named tensors, LayerHooks run around each layer.
#pragma once

#include <string>
#include <string_view>

#include "core/tensor.h"

namespace hypic {

// Receives tensors by name, such as layers.3.linear.state; they are valid only during the call and may
// be on the device. A forward without a tap costs nothing.
class Tap {
 public:
  virtual ~Tap() = default;
  virtual void see(const std::string& name, const Tensor& tensor) = 0;
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
