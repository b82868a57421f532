#include "harness/measure/roofline.h"

#include <cmath>

#include "core/transfer_operator.h"

namespace hypic {
namespace {

// A tensor whose shape counts and whose bytes do not: nothing here touches memory, and what has
// none is not moved.
Tensor unmoved(DType dtype, std::initializer_list<int64_t> shape) {
  return {nullptr, dtype, shape};
}

Tensor moved(DType dtype, std::initializer_list<int64_t> shape) {
  static char memory;  // never read
  return {&memory, dtype, shape};
}

class Counter {
 public:
  Counter(const ModelSpec& spec, const RooflineSettings& settings)
      : spec_(spec), settings_(settings) {
    for (TensorSpec& tensor : tensor_specs(spec)) {
      const bool matrix = tensor.init == Init::matrix || tensor.init == Init::output_matrix ||
                          tensor.init == Init::gate_matrix || tensor.init == Init::router;
      const bool expert = tensor.name.ends_with(".moe.up") || tensor.name.ends_with(".moe.down");
      if (matrix && !expert && !tensor.name.ends_with(".linear.conv"))
        matrices_.push_back({tensor.size() / tensor.shape.back(), tensor.shape.back()});
    }
  }

  void count(const ChainTable& table, double touched) {
    const int64_t rows = table.row_count(), wanted = static_cast<int64_t>(table.logit_rows.size());
    for (const auto& [N, K] : matrices_) matmul(rows, N, K);
    if (wanted > 0) matmul(wanted, spec_.vocabulary, spec_.hidden);
    for (const Layer& layer : spec_.layers)
      if (layer.ffn == Ffn::moe) experts(rows, touched);
    // Every layer of a kind costs the same.
    if (spec_.linear_layers() > 0)
      add("linear_attention", linear_attention(table), spec_.linear_layers());
    if (spec_.attention_layers() > 0) add("attention", attention(table), spec_.attention_layers());
  }

  Roofline take() { return std::move(sum_); }

 private:
  void add(const char* operation, const bench::Cost& cost, int times = 1) {
    sum_.cost.bytes += times * cost.bytes;
    sum_.cost.operations += times * cost.operations;
    const double seconds = times * bench::limit_seconds(cost, settings_.ceilings);
    sum_.by_operation[operation] += seconds;
    sum_.seconds += seconds;
  }

  void matmul(int64_t rows, int64_t N, int64_t K) {
    const DType c = settings_.compute;
    add("matmul",
        bench::matmul_cost({unmoved(c, {rows, K}), moved(c, {N, K}), unmoved(c, {rows, N})}));
  }

  void experts(int64_t rows, double touched) {
    const MoeSpec& moe = spec_.moe;
    const DType c = settings_.compute;
    const double size = static_cast<double>(moe.inner) * spec_.hidden * (moe.gated ? 3 : 2);
    add("experts",
        {touched * size * size_of(c), 2 * static_cast<double>(rows) * moe.active * size});
  }

  bench::Cost linear_attention(const ChainTable& table) const {
    const LinearSpec& a = spec_.linear;
    const FamilyTraits& family = traits(a.family);
    const DType c = settings_.compute, s = settings_.state;
    const int64_t H = a.value_heads, dk = a.key_dim, dv = a.value_dim;
    TransferOperator operators{
        operator_kind(family.decay, family.update), {}, {}, moved(s, {1, H, dk, dv})};
    if (has_log_scale(family.decay, family.update)) operators.log_scale = moved(s, {1, H});
    if (operators.kind == OperatorKind::diagonal) operators.T = moved(s, {1, H, dk});
    if (operators.kind == OperatorKind::elementwise) operators.T = moved(s, {1, H, dk, dv});
    if (operators.kind == OperatorKind::dense) operators.T = moved(s, {1, H, dk, dk});
    const int64_t R = table.row_count();
    return bench::linear_attention_cost({.decay = family.decay,
                                         .update = family.update,
                                         .readout = family.readout,
                                         .scale = 1,
                                         .k = unmoved(c, {R, a.key_heads, dk}),
                                         .v = unmoved(c, {R, H, dv}),
                                         .state = moved(s, {1, H, dk, dv}),
                                         .operators = operators,
                                         .side = family.side},
                                        table);
  }

  bench::Cost attention(const ChainTable& table) const {
    const AttentionSpec& a = spec_.attention;
    const DType c = settings_.compute;
    const int64_t R = table.row_count(), value = a.latent() ? a.latent_dim : a.head_dim;
    return bench::attention_cost(
        {.q = unmoved(c, {R, a.q_heads, a.key_width()}),
         .k_pages = unmoved(c, {1, 1, a.latent() ? 1 : a.kv_heads, a.key_width()}),
         // A latent V is a part of K.
         .v_pages = unmoved(c, {1, 1, a.latent() ? 0 : a.kv_heads, value}),
         .rotary_dim = 0,
         .theta = 0,
         .scale = 1,
         .out = unmoved(c, {R, a.q_heads, value})},
        table);
  }

  const ModelSpec& spec_;
  const RooflineSettings& settings_;
  std::vector<std::pair<int64_t, int64_t>> matrices_;  // [N, K], of every layer
  Roofline sum_;
};

}  // namespace

double expected_touched(const MoeSpec& moe, int64_t rows) {
  if (moe.experts == 0) return 0;
  const double missed = 1 - static_cast<double>(moe.active) / moe.experts;
  return moe.experts * (1 - std::pow(missed, static_cast<double>(rows)));
}

Roofline roofline(const ModelSpec& spec, const std::vector<ChainTable>& tables,
                  const RooflineSettings& settings) {
  Counter counter(spec, settings);
  for (size_t t = 0; t < tables.size(); ++t)
    counter.count(tables[t], settings.touched.empty()
                                 ? expected_touched(spec.moe, tables[t].row_count())
                                 : settings.touched[t]);
  return counter.take();
}

}  // namespace hypic
