#include "harness/bench/cost.h"

#include <algorithm>

namespace hypic::bench {
namespace {

constexpr int32_t kChunk = 64;

double slot_bytes(const Tensor& pool) {
  return pool ? bytes_of({pool}) / static_cast<double>(pool[0]) : 0;
}

// Slots of a pool that a chain's items and ends read or write.
double state_uses(const ChainTable& table) {
  double uses = 0;
  for (const Chain& chain : table.chains) uses += chain.fresh ? 1 : 2;
  for (const ChainItem& item : table.items) uses += item.save != kNone;
  return uses;
}

bool is_step(const ChainItem& item) { return item.kind == ChainItem::Kind::step; }

// A step that extends its operator reads it as well.
double operator_uses(const ChainItem& item) {
  if (item.op == kNone) return 0;
  return is_step(item) && item.span > 0 ? 2 : 1;
}

}  // namespace

double limit_seconds(const Cost& cost, const Ceilings& ceilings) {
  return std::max(cost.bytes / ceilings.bytes_per_second,
                  cost.operations / ceilings.operations_per_second);
}

double bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& tensor : tensors) {
    if (!tensor) continue;
    double size = size_of(tensor.dtype);
    for (int axis = 0; axis < tensor.rank; ++axis)
      if (tensor.stride[axis] != 0 || tensor[axis] == 0) size *= static_cast<double>(tensor[axis]);
    bytes += size;
  }
  return bytes;
}

Cost linear_attention_cost(const LinearAttentionArgs& a, const ChainTable& table) {
  const auto heads = static_cast<double>(a.v[1]), dk = static_cast<double>(a.k[2]),
             dv = static_cast<double>(a.v[2]);
  const OperatorKind kind = operator_kind(a.decay, a.update);
  const bool dense = kind == OperatorKind::dense;
  Cost cost;
  cost.bytes = bytes_of({a.q, a.k, a.v, a.g, a.A, a.beta, a.a, a.b, a.u, a.o, a.skip}) +
               slot_bytes(a.state) * state_uses(table);
  for (const ChainItem& item : table.items) {
    double parts = 0;
    if (is_step(item) || item.compose != Compose::zero) parts += slot_bytes(a.operators.U);
    if (is_step(item) || item.compose == Compose::transfer)
      parts += slot_bytes(a.operators.T) + slot_bytes(a.operators.log_scale);
    cost.bytes += parts * operator_uses(item);
    if (!is_step(item)) {
      if (item.compose == Compose::transfer)
        cost.operations += 2 * heads * dk * dv * (dense ? dk : 1);
      continue;
    }
    // Per token and head: S is read by q and grows by k vᵀ; the chunk's q kᵀ, and that times v. A
    // delta rule reads S by k as well, and has k kᵀ and its inverse times v.
    const double tokens = item.end - item.begin, chunk = std::min(item.end - item.begin, kChunk);
    double each = 4 * dk * dv + 2 * chunk * (dk + dv);
    if (a.update != Update::add) each = 6 * dk * dv + 4 * chunk * (dk + dv);
    if (a.decay == Decay::elementwise) each = 4 * dk * dv;  // no products of chunks
    if (item.op != kNone && dense) each += 4 * dk * dk;     // T ← T + a (bᵀ T), from factors
    cost.operations += heads * tokens * each;
  }
  return cost;
}

Cost attention_cost(const AttentionArgs& a, const ChainTable& table) {
  double stored = 0, seen = 0;  // tokens of K, V; pairs of row and token
  for (const Chain& chain : table.chains) {
    stored += chain.kv_begin + (chain.row_end - chain.row_begin);
    for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i)
      stored += table.residues[i].last - table.residues[i].first;
    for (int32_t r = chain.row_begin; r < chain.row_end; ++r) {
      seen += chain.kv_begin + (r - chain.row_begin) + 1;
      for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i) {
        const ResidueRef& residue = table.residues[i];
        if (table.positions[r] < residue.start + residue.last) break;  // ordered by start
        seen += residue.last - residue.first;
      }
    }
  }
  const auto heads = static_cast<double>(a.q[1]), D = static_cast<double>(a.q[2]),
             Dv = static_cast<double>(a.out[2]);
  const double token = (a.k_pages[2] * D + a.v_pages[2] * Dv) * size_of(a.k_pages.dtype);
  return {bytes_of({a.q, a.out}) + stored * token, 2 * heads * (D + Dv) * seen};
}

Cost causal_conv_cost(const CausalConvArgs& a, const ChainTable& table) {
  Cost cost{bytes_of({a.x, a.w, a.bias, a.out}) + slot_bytes(a.window) * state_uses(table), 0};
  for (const ChainItem& item : table.items) cost.bytes += slot_bytes(a.tail) * operator_uses(item);
  return cost;
}

Cost experts_cost(const ExpertsArgs& a, int64_t touched) {
  const auto choices = static_cast<double>(a.experts.size());
  const double weights = static_cast<double>(touched) * (slot_bytes(a.up) + slot_bytes(a.down));
  return {bytes_of({a.x, a.experts, a.weights, a.out}) + weights,
          2 * choices * static_cast<double>(a.up[1] * a.up[2] + a.down[1] * a.down[2])};
}

Cost matmul_cost(const MatmulArgs& a) {
  return {bytes_of({a.x, a.w, a.out}), 2.0 * static_cast<double>(a.x[0] * a.w[0] * a.w[1])};
}

}  // namespace hypic::bench
