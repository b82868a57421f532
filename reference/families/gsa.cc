// Gated Slot Attention: "Gated Slot Attention for Efficient Linear-Time Sequence Modeling", arXiv
// 2409.07146, section 3. m slots; K [m, d_k] and V [m, d_v].
//   K ← Diag(α) K + (1 − α) kᵀ,  V ← Diag(α) V + (1 − α) vᵀ,  o = Vᵀ softmax(K q)
// The state is [K | V], one gla state: its keys are 1 − α, its values [k | v].
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

Vector softmax(Vector x) {
  x = std::exp(x - x.max());
  return x / x.sum();
}

class Gsa final : public FamilyReference {
 public:
  Gsa() : FamilyReference(Family::gsa) {}

  Dims fit(Dims dims) const override { return dims; }

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {"alpha", {d.T, d.Hv, d.extra}, Role::decay}};
  }

  std::vector<int64_t> state_shape(const Dims& d) const override {
    return {d.Hv, d.extra, d.dk + d.dv};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &alpha = in.at("alpha");
    const int64_t dk = k.last(), dv = v.last();
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix KV) -> Vector {
      const Matrix K = KV.columns(0, dk), V = KV.columns(dk, dk + dv);
      K.scale_rows(alpha.row(t, h));
      K.add_outer(1.0 - alpha.row(t, h), k.row(t, kh));
      V.scale_rows(alpha.row(t, h));
      V.add_outer(1.0 - alpha.row(t, h), v.row(t, h));
      return V.read(softmax(K.times(q.row(t, kh))));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    const Array& alpha = in.at("alpha");
    const int64_t Hv = alpha[1];
    const Array k = for_value_heads(in.at("k"), Hv), &v = in.at("v");
    const int64_t dk = k.last(), dv = v.last();
    TableInputs table;
    table.q = for_value_heads(in.at("q"), Hv);
    table.k = map_elements(alpha, [](double x) { return 1 - x; });
    table.g = map_elements(alpha, [](double x) { return std::log(x); });
    table.v = Array({k[0], Hv, dk + dv});
    for (int64_t t = 0; t < k[0]; ++t)
      for (int64_t h = 0; h < Hv; ++h) {
        for (int64_t j = 0; j < dk; ++j) table.v(t, h, j) = k(t, h, j);
        for (int64_t j = 0; j < dv; ++j) table.v(t, h, dk + j) = v(t, h, j);
      }
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_gsa() { return std::make_unique<Gsa>(); }

}  // namespace hypic::reference
