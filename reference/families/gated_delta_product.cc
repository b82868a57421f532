// Gated DeltaProduct: "DeltaProduct: Improving State-Tracking in Linear RNNs via Householder
// Products", arXiv 2502.10297, section 3, with the gate of Gated DeltaNet.
//   S ← e^g S,  then for j = 1 … n_h:  S ← S + β_j k_j (v_j − Sᵀk_j)ᵀ,  o = d_k^-½ Sᵀq;  β ≤ 2
// In the table a token is n_h rows: the first carries g, the last q and o.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class GatedDeltaProduct final : public FamilyReference {
 public:
  GatedDeltaProduct() : FamilyReference(Family::gated_delta_product) {}

  Dims fit(Dims dims) const override { return dims; }

  std::vector<InputSpec> inputs(const Dims& d) const override {
    const int64_t n_h = d.extra;
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, n_h, d.Hk, d.dk}, Role::unit_key},
            {"v", {d.T, n_h, d.Hv, d.dv}, Role::value},
            {"g", {d.T, d.Hv}, Role::log_decay},
            {"beta", {d.T, n_h, d.Hv}, Role::write, 2}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &g = in.at("g"),
                &beta = in.at("beta");
    const double scale = 1 / std::sqrt(k.last());
    run_heads(q[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      S.scale(std::exp(g(t, h)));
      for (int64_t j = 0; j < k[1]; ++j)
        S.add_outer(beta(t, j, h) * k.row(t, j, kh), v.row(t, j, h) - S.read(k.row(t, j, kh)));
      return scale * S.read(q.row(t, kh));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &g = in.at("g"),
                &beta = in.at("beta");
    const int64_t T = k[0], n_h = k[1], Hk = k[2], dk = k[3], Hv = v[2], dv = v[3];
    TableInputs table;
    table.rows_per_token = n_h;
    table.k = reshaped(k, {T * n_h, Hk, dk});
    table.v = reshaped(v, {T * n_h, Hv, dv});
    table.beta = reshaped(beta, {T * n_h, Hv});
    table.q = Array({T * n_h, Hk, dk});
    table.g = Array({T * n_h, Hv});
    for (int64_t t = 0; t < T; ++t) {
      table.g.set_row(g.row(t), t * n_h);
      for (int64_t h = 0; h < Hk; ++h) table.q.set_row(q.row(t, h), t * n_h + n_h - 1, h);
    }
    table.scale = 1 / std::sqrt(dk);
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_gated_delta_product() {
  return std::make_unique<GatedDeltaProduct>();
}

}  // namespace hypic::reference
