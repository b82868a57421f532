// Operator error apart from context drift. A composed state differs from full recompute for two
// reasons: the algebra of operators (what we implement) and the inputs, which an isolated segment
// computes without its context (what the method accepts). Replaying the plain recurrence in float64
// over the very inputs that the residues were made from separates the two.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/chain.h"
#include "core/tap.h"
#include "models/spec.h"

namespace hypic {

// Keeps the inputs of every linear layer of a forward, in float64. Tensors must be in host memory.
class InputRecorder : public Tap {
 public:
  void see(const std::string& name, const Tensor& tensor) override;
  // [R, …] flattened, of the last forward; empty where the layer has no such input.
  const std::vector<double>& get(int layer, const char* letter) const;

 private:
  std::map<std::string, std::vector<double>> seen_;
};

// The state of `layer` before the last item of the table's last chain, by recurrence over the
// inputs of all that the chain computed or jumped over, in prompt order. Everything jumped over
// must have been built in the same table (a cold run in one forward).
std::vector<double> replayed_state(const ModelSpec& spec, const ChainTable& table,
                                   const InputRecorder& inputs, int layer);

}  // namespace hypic
