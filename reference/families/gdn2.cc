// Gated DeltaNet-2: "Gated DeltaNet-2: Decoupling Erase and Write in Linear Attention", arXiv
// 2605.22791.
//   S ← Diag(e^g) S,  S ← S + k (w ⊙ v − Sᵀ(b ⊙ k))ᵀ,  o = d_k^-½ Sᵀq
// k of length 1; b the erase gate of each key dimension, w the write gate of each value dimension,
// both ≤ 1.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class Gdn2 final : public FamilyReference {
 public:
  Gdn2() : FamilyReference(Family::gdn2) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query}, {"k", {d.T, d.Hk, d.dk}, Role::unit_key},
            {"v", {d.T, d.Hv, d.dv}, Role::value}, {"g", {d.T, d.Hv, d.dk}, Role::log_decay},
            {"b", {d.T, d.Hv, d.dk}, Role::write}, {"w", {d.T, d.Hv, d.dv}, Role::write}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &g = in.at("g"), &b = in.at("b"),
                &w = in.at("w");
    const double scale = 1 / std::sqrt(k.last());
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      S.scale_rows(std::exp(g.row(t, h)));
      const Vector erased = S.read(b.row(t, h) * k.row(t, kh));
      S.add_outer(k.row(t, kh), w.row(t, h) * v.row(t, h) - erased);
      return scale * S.read(q.row(t, kh));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = in.at("q");
    table.k = in.at("k");
    table.v = elementwise_product(in.at("w"), in.at("v"));
    table.g = in.at("g");
    table.b = elementwise_product(in.at("b"), for_value_heads(table.k, table.v[1]));
    table.scale = 1 / std::sqrt(table.k.last());
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_gdn2() { return std::make_unique<Gdn2>(); }

}  // namespace hypic::reference
