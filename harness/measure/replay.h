// What a forward should have computed, from its own inputs. A composed state differs from full recompute for
// two reasons: the algebra of operators (what we implement) and the inputs, which an isolated segment computes
// without its context (what the method accepts). Replaying plain recurrences and plain attention in float64
// over the very inputs that the residues were made from separates the two.
//
// Everything that the table's last chain jumped over or saw must have been built in the same table: a cold run
// in one forward.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/chain.h"
#include "core/tap.h"
#include "models/spec.h"

namespace hypic {

// Keeps the inputs and outputs of every layer of a forward, in float64.
class InputRecorder : public Tap {
 public:
  explicit InputRecorder(Backend& backend) : backend_(backend) {}
  void see(const std::string& name, const Tensor& tensor) override;
  // [R, …] flattened, of the last forward, such as (3, "linear.k") or (0, "residual"); empty where the layer
  // has no such tensor.
  const std::vector<double>& get(int layer, const char* name) const;

 private:
  Backend& backend_;
  std::map<std::string, std::vector<double>> seen_;
};

// The state of `layer` before the last item of the table's last chain, by recurrence over the inputs of all
// that the chain computed or jumped over, in prompt order: what any mode tries to come near.
std::vector<double> replayed_state(const ModelSpec& spec, const ChainTable& table,
                                   const InputRecorder& inputs, int layer);

// The same by the mode's own definition: `add` adds what each segment leaves by itself, `last` takes that of
// the last one, `zero` nothing.
std::vector<double> composed_state(const ModelSpec& spec, const ChainTable& table,
                                   const InputRecorder& inputs, int layer);

// Outputs of softmax attention for the rows of the last chain, [rows · Hq · Dv], each over the keys that it
// must see: its own chain's up to itself, and residues that lie wholly before it, moved by their shift.
std::vector<double> replayed_attention(const ModelSpec& spec, const ChainTable& table,
                                       const InputRecorder& inputs, int layer);

// The rows of the last chain in a recorded [R, …].
std::vector<double> last_chain_rows(const ChainTable& table, const std::vector<double>& all);

}  // namespace hypic
