// DeltaNet: "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", arXiv
// 2406.06484, section 2.2.
//   S ← S + β k (v − Sᵀk)ᵀ,  o = d_k^-½ Sᵀq;  k of length 1, β ≤ 1, or ≤ 2 with negative
//   eigenvalues
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class DeltaNet final : public FamilyReference {
 public:
  DeltaNet() : FamilyReference(Family::delta_net) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::unit_key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {"beta", {d.T, d.Hv}, Role::write, 2}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &beta = in.at("beta");
    const double scale = 1 / std::sqrt(k.last());
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      S.add_outer(beta(t, h) * k.row(t, kh), v.row(t, h) - S.read(k.row(t, kh)));
      return scale * S.read(q.row(t, kh));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = in.at("q");
    table.k = in.at("k");
    table.v = in.at("v");
    table.beta = in.at("beta");
    table.scale = 1 / std::sqrt(table.k.last());
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_delta_net() { return std::make_unique<DeltaNet>(); }

}  // namespace hypic::reference
