// The laws that the families, the table and the transfer operators obey, as numbers: each family's
// own definition (reference/families) against the table (reference/ops), and operators against
// both.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/families/family.h"
#include "reference/ops/linear_attention.h"
#include "reference/ops/transfer_operator.h"

namespace hypic::reference {

// How inputs are drawn.
enum class Style {
  random,        // decays between 1e-3 and 1 a token
  no_decay,      // every decay exactly 1
  strong_decay,  // log decay −20 everywhere, −100 at one token
  equal_keys,    // one key for all tokens, writes at their maximum, slow heads
  zero_keys,
  slow,      // memory lengths log-uniform in 64 … 65,536 tokens
  repeated,  // slow heads, one token over and over
};
inline constexpr std::array kStyles = {Style::random,     Style::no_decay,  Style::strong_decay,
                                       Style::equal_keys, Style::zero_keys, Style::slow,
                                       Style::repeated};
std::string_view name_of(Style style);

Inputs make_inputs(const FamilyReference& family, const Dims& dims, Style style, uint64_t seed);

// A state that the family can be in: normal entries, the normaliser positive.
Array make_state(const FamilyReference& family, const Dims& dims, uint64_t seed);

struct Law {
  std::string name;
  double error;
  double bound = 1e-12;
  bool applies = true;
  bool differs =
      false;  // the law says that two things are not the same: it holds when error > bound

  bool holds() const {
    return !applies || (differs ? std::isfinite(error) && error > bound : error <= bound);
  }
};

// The implementation that the laws judge; by default reference/ops in float64.
struct TableOps {
  std::function<void(const LinearAttentionArgs&, const ChainTable&)> linear_attention =
      reference::linear_attention<double>;
  std::function<void(const TransferOperator&)> set_identity = reference::set_identity<double>;
  std::function<void(const TransferOperator&, const Tensor&)> apply = reference::apply<double>;
  std::function<void(const TransferOperator&, const TransferOperator&, const TransferOperator&)>
      compose = reference::compose<double>;
  std::function<void(const TransferOperator&, int64_t, int, double, Side)> relocate =
      reference::relocate<double>;
};

// Every law for one layer with inputs of that style. dims are fitted to the family first.
std::vector<Law> check_laws(const FamilyReference& family, Dims dims, Style style, uint64_t seed,
                            const TableOps& ops = {});

// How far S ↦ run(S) over all tokens is from affine, relative to the states involved.
double affinity_defect(const FamilyReference& family, const Dims& dims, const Inputs& inputs,
                       uint64_t seed);

// RetNet with one γ over two segments of L tokens: ‖S_add − S‖ / ‖S₁‖ where S_add is the sum of the
// states that each segment leaves from zero. It is 1 − γ^L.
double retnet_addition_error(double gamma, int64_t L);

// A convolution over T random rows, cut at a random point, against the whole: outputs and tail.
double conv_split_error(int64_t T, int64_t C, int64_t W, uint64_t seed);

// linear_attention<float> against <double> on the same float32 inputs, from zero: the largest
// relative error of a head's final state or outputs.
double float32_error(const FamilyReference& family, Dims dims, Style style, uint64_t seed);

}  // namespace hypic::reference
