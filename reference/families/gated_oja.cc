// Gated Oja rule: flash-linear-attention, pull request 730 and its note
// fla/ops/gated_oja_rule/OJA.pdf (there is no paper on arXiv). Oja's rule with v as the output: the
// decay and the correction act on the value side of S.
//   S ← S Diag(e^g),  S ← S + β (k − S v) vᵀ,  o = d_k^-½ Sᵀq
// v of length 1; g one gate a value dimension. The table holds Sᵀ: its keys are v, its values k,
// and T acts on d_v.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class GatedOja final : public FamilyReference {
 public:
  GatedOja() : FamilyReference(Family::gated_oja) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::key},
            {"v", {d.T, d.Hv, d.dv}, Role::unit_value},
            {"g", {d.T, d.Hv, d.dv}, Role::log_decay},
            {"beta", {d.T, d.Hv}, Role::write}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &g = in.at("g"),
                &beta = in.at("beta");
    const double scale = 1 / std::sqrt(k.last());
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      S.scale_cols(std::exp(g.row(t, h)));
      S.add_outer(beta(t, h) * (k.row(t, kh) - S.times(v.row(t, h))), v.row(t, h));
      return scale * S.read(q.row(t, kh));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.k = in.at("v");
    const int64_t Hv = table.k[1];
    table.q = for_value_heads(in.at("q"), Hv);
    table.v = for_value_heads(in.at("k"), Hv);
    table.g = in.at("g");
    table.beta = in.at("beta");
    table.scale = 1 / std::sqrt(table.v.last());
    return table;
  }

  Array to_table_state(const Array& S) const override { return transposed(S); }
  Array from_table_state(const Array& S) const override { return transposed(S); }
};

}  // namespace

std::unique_ptr<FamilyReference> make_gated_oja() { return std::make_unique<GatedOja>(); }

}  // namespace hypic::reference
