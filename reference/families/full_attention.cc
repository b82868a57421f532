// "Attention Is All You Need", arXiv 1706.03762, section 3.2.1, with grouped queries (arXiv
// 2305.13245), RoPE (arXiv 2104.09864) and the output gate of "Gated Attention for Large Language
// Models", arXiv 2505.06708.
//   o = softmax(scale · K rope(norm(q)))ᵀ V ⊙ σ(gate),  K the rows rope(norm(k)) that q sees
#include "reference/families/full_attention.h"

#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

// The rows of x as they enter the product: normalised, then rotated.
Array prepared(const FullAttention& layer, const Array& x, const Array& weight,
               const std::vector<int64_t>& positions) {
  Array out = x;
  for (int64_t r = 0; r < x[0]; ++r)
    for (int64_t h = 0; h < x[1]; ++h) {
      Vector row = x.row(r, h);
      if (weight) {
        const double mean_square = dot(row, row) / row.size();
        const Vector w(weight.data.data(), weight.data.size());
        row *= (layer.plus_one ? Vector(1.0 + w) : w) / std::sqrt(mean_square + layer.eps);
      }
      if (layer.rotary_dim > 0) rotate(row, positions[r], layer.rotary_dim, layer.theta);
      out.set_row(row, r, h);
    }
  return out;
}

}  // namespace

Array full_attention(const FullAttention& layer, const FullAttentionInputs& in) {
  const Array q = prepared(layer, in.q, in.q_weight, in.q_positions);
  const Array k = prepared(layer, in.k, in.k_weight, in.k_positions);
  HYPIC_CHECK(in.sees || q[0] == k[0], "rows ", q[0], " of q, ", k[0], " of k");
  const int64_t group = q[1] / k[1];
  Array out(q.shape);
  for (int64_t i = 0; i < q[0]; ++i)
    for (int64_t h = 0; h < q[1]; ++h) {
      std::vector<int64_t> seen;
      for (int64_t j = 0; j < k[0]; ++j)
        if (in.sees ? in.sees(i, j) : j <= i) seen.push_back(j);
      if (seen.empty()) continue;
      Vector logits(seen.size());
      for (size_t n = 0; n < seen.size(); ++n)
        logits[n] = layer.scale * dot(q.row(i, h), k.row(seen[n], h / group));
      Vector p = std::exp(logits - logits.max());
      p /= p.sum();
      Vector o(0.0, in.v.last());
      for (size_t n = 0; n < seen.size(); ++n) o += p[n] * in.v.row(seen[n], h / group);
      if (in.gate) o *= 1.0 / (1.0 + std::exp(-in.gate.row(i, h)));
      out.set_row(o, i, h);
    }
  return out;
}

}  // namespace hypic::reference
