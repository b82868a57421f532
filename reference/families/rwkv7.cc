// RWKV-7: "RWKV-7 "Goose" with Expressive Dynamic State Evolution", arXiv 2503.14456, section 4.1
// (there the state is transposed).
//   S ← (Diag(w) − (κ ⊙ a) κᵀ) S + k vᵀ,  o = Sᵀr
// κ has length 1, a in (0, 1) is the in-context learning rate; κ reads the undecayed state. The
// paper's bonus (Σ r ⊙ k ⊙ r_k) v is added after the normalisation of o, outside the recurrence.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class Rwkv7 final : public FamilyReference {
 public:
  Rwkv7() : FamilyReference(Family::rwkv7) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"r", {d.T, d.Hk, d.dk}, Role::query},        {"k", {d.T, d.Hk, d.dk}, Role::key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},        {"w", {d.T, d.Hv, d.dk}, Role::decay},
            {"kappa", {d.T, d.Hk, d.dk}, Role::unit_key}, {"a", {d.T, d.Hv, d.dk}, Role::write}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &r = in.at("r"), &k = in.at("k"), &v = in.at("v"), &w = in.at("w"),
                &kappa = in.at("kappa"), &a = in.at("a");
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      const Vector removed = S.read(kappa.row(t, kh));
      S.scale_rows(w.row(t, h));
      S.add_outer(-(kappa.row(t, kh) * a.row(t, h)), removed);
      S.add_outer(k.row(t, kh), v.row(t, h));
      return S.read(r.row(t, kh));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = in.at("r");
    table.k = in.at("k");
    table.v = in.at("v");
    table.g = map_elements(in.at("w"), [](double w) { return std::log(w); });
    table.b = for_value_heads(in.at("kappa"), table.v[1]);
    table.a = elementwise_product(table.b, in.at("a"));
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_rwkv7() { return std::make_unique<Rwkv7>(); }

}  // namespace hypic::reference
