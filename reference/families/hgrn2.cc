// HGRN2: "HGRN2: Gated Linear RNNs with State Expansion", arXiv 2404.07904, section 3.2.
//   S ← Diag(f) S + (1 − f) vᵀ,  o = d_k^-½ Sᵀq;  the forget gate f in (0, 1] also makes the key
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class Hgrn2 final : public FamilyReference {
 public:
  Hgrn2() : FamilyReference(Family::hgrn2) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"f", {d.T, d.Hv, d.dk}, Role::decay},
            {"v", {d.T, d.Hv, d.dv}, Role::value}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &f = in.at("f"), &v = in.at("v");
    const double scale = 1 / std::sqrt(f.last());
    run_heads(q[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      S.scale_rows(f.row(t, h));
      S.add_outer(1.0 - f.row(t, h), v.row(t, h));
      return scale * S.read(q.row(t, kh));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.v = in.at("v");
    table.q = for_value_heads(in.at("q"), table.v[1]);
    table.k = map_elements(in.at("f"), [](double f) { return 1 - f; });
    table.g = map_elements(in.at("f"), [](double f) { return std::log(f); });
    table.scale = 1 / std::sqrt(table.k.last());
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_hgrn2() { return std::make_unique<Hgrn2>(); }

}  // namespace hypic::reference
