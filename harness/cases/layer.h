// One linear-attention layer run twice: by a backend over chains, and token by token by the
// family's own definition in float64.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/chain.h"
#include "harness/cases/case.h"
#include "reference/families/family.h"

namespace hypic::conformance {

using reference::Dims;
using reference::FamilyReference;
using reference::Inputs;

// Whether an input has the backend's state dtype, not its compute dtype.
bool is_gate(reference::Role role);

// Every value rounded once, up or down, by `eps` relative. A decay's rounding is that of its logarithm.
Inputs moved_once(const FamilyReference& family, const Dims& dims, Inputs inputs, double eps, Draw& draw);

// Chains in tokens, written one after another.
class Plan {
 public:
  Plan& chain(int32_t state, bool fresh = false, int32_t level = 0);
  // `earlier`: tokens that the operator's slot already holds.
  Plan& step(int64_t tokens, int32_t op = kNone, int64_t earlier = 0);
  Plan& jump(int32_t op, int64_t span, Compose compose = Compose::transfer, int64_t shift = 0);
  // Of the item before.
  Plan& without_keep();
  Plan& save(int32_t slot);

  int64_t tokens() const { return tokens_; }
  const std::vector<Chain>& chains() const { return chains_; }
  const std::vector<ChainItem>& items() const { return items_; }  // rows are tokens
  // Its pages are all page 0; slots are those of the plan after so many others.
  ChainTable table(int64_t rows_per_token, int32_t states_before = 0, int32_t operators_before = 0) const;

 private:
  Plan& add(const ChainItem& item);
  std::vector<Chain> chains_;
  std::vector<ChainItem> items_;
  int64_t tokens_ = 0;
};

// RoPE on the first dims of keys and queries.
struct Rope {
  int share = 1;  // 1 / share of the dims turn
  double theta = reference::kRopeTheta;
  int dims(int64_t d) const { return reference::rotary_dim_of(d / share); }
};

struct LayerSetup {
  int32_t states = 1;
  int32_t operators = 0;
  bool repeated = false;  // one input over and over on slow heads
  std::optional<Rope> rope = {};  // keys carry RoPE: a jump relocates
  int64_t gap = 0;        // elements between rows
  int64_t lead = 0;       // of them before the first row
  bool skip = false;      // the outputs add skip · v
  int32_t states_before = 0, operators_before = 0;  // slots of the pools before the first one
};

class Layer {
 public:
  // The inputs are rounded to the backend's dtypes first, so that both sides see the same ones.
  Layer(Context& context, const FamilyReference& family, const Dims& dims, Inputs inputs,
        const LayerSetup& setup);
  ~Layer();

  // The family's own layout.
  void set_state(int32_t slot, const Array& state);
  // One forward over the tokens from `first` on.
  void run(const Plan& plan, int64_t first = 0);
  // The same forward, from its first token, `times` times from the same memory: each must leave the same bits.
  void run_repeatedly(const std::string& what, const Plan& plan, int times);
  // Everything that was computed so far against the definition.
  void check(const std::string& what);
  // Outputs of these tokens, states and operators as another run gave them, of whose tokens ours begin with `first`;
  // heads are groups.
  void check_same(const std::string& what, const Layer& other, int64_t begin, int64_t end,
                  const std::vector<std::pair<int32_t, int32_t>>& states,
                  const std::vector<std::pair<int32_t, int32_t>>& operators, int64_t first = 0);

  Array outputs(int64_t begin, int64_t end) const;  // [tokens, Hv, d_o], with the skip
  Array state(int32_t slot) const;                  // the family's own layout
  const Array& expected_outputs();
  const Array& expected_state(int32_t slot);

 private:
  class Oracle;
  struct Operator {
    Array log_scale, T, U;  // one slot
  };
  std::vector<Oracle*> oracles() const;
  LinearAttentionArgs arguments(Arena& arena, int64_t begin, int64_t end) const;  // rows [begin, end)
  void keep(const Plan& plan, int64_t first, const Arena& arena, const Tensor& o);
  void settle();
  std::vector<double> output_floors() const;
  Operator operator_at(int32_t slot) const;
  Tensor state_at(int32_t slot) const { return state_.at(setup_.states_before + slot); }
  Array read(const Tensor& slot) const;
  ChainTable table_of(const Plan& plan) const;
  void check_operator(const std::string& what, int32_t slot);
  void check_untouched(const std::string& what, const Array& slot);
  std::vector<double> bounds(const Array& want, const Array& moved, int axis,
                             const std::vector<double>& floors = {}) const;

  Context& context_;
  const FamilyReference& family_;
  const Dims dims_;
  const LayerSetup setup_;
  const double tolerance_;
  reference::TableInputs table_;
  Array skip_;   // [Hv]
  Arena pools_;  // states and operators live as long as the layer
  std::vector<Buffer> far_pools_;  // with slots before the first one
  Tensor state_;
  TransferOperator operators_;
  Array outputs_;
  std::vector<bool> computed_;                     // by token
  std::vector<std::pair<Plan, int64_t>> pending_;  // forwards that the definition has yet to run
  // The definition; after one rounding of every input; and, of quotients, also of the state once a
  // token.
  std::unique_ptr<Oracle> oracle_, moved_, moved_quotient_;
};

// The inputs of tokens [begin, end) alone.
Inputs tokens_of(const FamilyReference& family, const Dims& dims, const Inputs& inputs, int64_t begin, int64_t end);

// Whether the definition rotates by itself.
bool has_position(const FamilyReference& family, const Dims& dims);

// The inputs with their keys and queries at these positions (by token): the definition's input
// `position` where it has one, which takes no other than Rope{}, else RoPE put on the rows.
Inputs at_positions(const FamilyReference& family, const Dims& dims, Inputs inputs,
                    const std::vector<int64_t>& positions, const Rope& rope);

}  // namespace hypic::conformance
