// GLA: "Gated Linear Attention Transformers with Hardware-Efficient Training", arXiv 2312.06635,
// section 4.1.
//   S ← Diag(α) S + k vᵀ,  o = d_k^-½ Sᵀq;  α = e^g in (0, 1), one gate a key dimension
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class Gla final : public FamilyReference {
 public:
  Gla() : FamilyReference(Family::gla) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {"g", {d.T, d.Hv, d.dk}, Role::log_decay}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &g = in.at("g");
    const double scale = 1 / std::sqrt(k.last());
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      S.scale_rows(std::exp(g.row(t, h)));
      S.add_outer(k.row(t, kh), v.row(t, h));
      return scale * S.read(q.row(t, kh));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = in.at("q");
    table.k = in.at("k");
    table.v = in.at("v");
    table.g = in.at("g");
    table.scale = 1 / std::sqrt(table.k.last());
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_gla() { return std::make_unique<Gla>(); }

}  // namespace hypic::reference
