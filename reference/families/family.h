// The families of core/families.def by definition: each file of this folder is one paper's
// recurrence, token by token in float64, and the same layer written as inputs of the table
// (core/backend.h). The laws (reference/laws.h) compare the two; nothing here calls reference/ops.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "core/family.h"
#include "reference/families/array.h"

namespace hypic::reference {

struct Dims {
  int64_t T = 0;   // tokens
  int64_t Hk = 1;  // key heads; value head h reads key head h / (Hv / Hk)
  int64_t Hv = 1;  // value heads, a multiple of Hk
  int64_t dk = 1;
  int64_t dv = 1;
  int64_t extra = 1;  // gated_delta_product: steps n_h a token · gsa: slots m
};

// What an input is, so that a generator can choose values for it. Log decays are ≤ 0; "decay" is
// their exponential, "slope" their negative; step × rate is a log decay given in two factors, Δ ≥ 0
// and A ≤ 0.
enum class Role {
  query,
  key,
  unit_key,
  value,
  unit_value,
  log_decay,
  decay,
  slope,
  step,
  rate,
  write,
  logit,
  weight,
  position
};

struct InputSpec {
  std::string name;  // the paper's letter
  std::vector<int64_t> shape;
  Role role;
  double max = 1;         // write: the values lie in [0, max]
  bool per_token = true;  // the leading axis is T
};

using Inputs = std::map<std::string, Array, std::less<>>;

// A layer's inputs as the table takes them: owning, float64, with what the caller must know about
// rows. The table has rows_per_token rows a token; the last one holds its query and its output.
struct TableInputs {
  int64_t rows_per_token = 1;
  double scale = 1;
  Array q, k, v, g, A, beta, a, b, u;  // empty where the family has none
  Array skip;  // [T, Hv, d_o]: to be added to o, outside the table (the D·x of mamba)

  // Views of the arrays; state, operators, o and RoPE are left to the caller.
  LinearAttentionArgs args(const FamilyTraits& traits) const;
  // The size d_o of the table's output.
  int64_t output_dim(const FamilyTraits& traits) const;
};

class FamilyReference {
 public:
  explicit FamilyReference(Family family) : traits_(hypic::traits(family)) {}
  virtual ~FamilyReference() = default;

  const FamilyTraits& traits() const { return traits_; }

  // The nearest dims that the family takes.
  virtual Dims fit(Dims dims) const {
    dims.extra = 1;
    return dims;
  }
  virtual std::vector<InputSpec> inputs(const Dims& dims) const = 0;

  // The family's own state: [Hv, d_k, d_v] unless it says otherwise.
  virtual std::vector<int64_t> state_shape(const Dims& dims) const {
    return {dims.Hv, dims.dk, dims.dv};
  }

  // The definition: tokens [begin, end) from state S, which ends as their final state; o [T, Hv,
  // d_v] receives their rows.
  virtual void run(const Inputs& inputs, int64_t begin, int64_t end, Array& S, Array& o) const = 0;

  // The same layer as a point of the table; not for Update::nonlinear.
  virtual TableInputs to_table(const Inputs& inputs) const = 0;

  // Between the family's own state and the table's: the same unless the table holds it transposed.
  virtual Array to_table_state(const Array& S) const { return S; }
  virtual Array from_table_state(const Array& S) const { return S; }

 private:
  const FamilyTraits& traits_;
};

// make_linear(), make_retnet(), …: one for every line of families.def.
#define HYPIC_FAMILY(name, ...) std::unique_ptr<FamilyReference> make_##name();
#include "core/families.def"
#undef HYPIC_FAMILY

// ttt_linear with the LayerNorm of its inner loss taken out: affine again, which shows what breaks
// affinity.
std::unique_ptr<FamilyReference> make_ttt_linear_without_norm();

std::unique_ptr<FamilyReference> make_family(Family family);

// Helpers of the definitions
// ----------------------------------------------------------------------------

// step(t, h, kh, S) → the output row of token t, value head h, which reads key head kh; S is head
// h's state.
template <class Step>
void run_heads(int64_t Hk, int64_t begin, int64_t end, Array& S, Array& o, Step step) {
  const int64_t Hv = S[0], size = S.product(1), group = Hv / Hk;
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < Hv; ++h)
      o.set_row(step(t, h, h / group, Matrix{S.data.data() + h * size, S[1], S[2], S[2]}), t, h);
}

// x [T, Hk, d] seen by the value heads: [T, Hv, d].
Array for_value_heads(const Array& x, int64_t Hv);

// f of every element.
template <class F>
Array map_elements(Array x, F f) {
  for (double& element : x.data) element = f(element);
  return x;
}

// x [T, H, d] with a column of ones: [T, H, d + 1].
Array append_ones(const Array& x);

Array elementwise_product(Array x, const Array& y);

// The same elements in another shape.
Array reshaped(Array x, std::vector<int64_t> shape);

// A constant of each head as a value of each token: x [H] → [T, H].
Array for_tokens(const Array& x, int64_t T);

// [Hv, m, n] → [Hv, n, m].
Array transposed(const Array& S);

// RoPE (RoFormer, arXiv 2104.09864 eq. 15) in NeoX pairs (i, i + rotary_dim/2) of x; the rest
// stays.
void rotate(Vector& x, double position, int rotary_dim, double theta);

// The RoPE of an input `position` and of the laws: every pair of a vector of d.
inline constexpr double kRopeTheta = 1e4;
constexpr int rotary_dim_of(int64_t d) { return static_cast<int>(d / 2 * 2); }

}  // namespace hypic::reference
