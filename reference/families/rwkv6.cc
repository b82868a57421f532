// RWKV-6: "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence", arXiv
// 2404.05892, section 4.2 (Finch time mixing).
//   o = (S + Diag(u) k vᵀ)ᵀ r,  then  S ← Diag(w) S + k vᵀ
// w in (0, 1), u the bonus of the current token.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class Rwkv6 final : public FamilyReference {
 public:
  Rwkv6() : FamilyReference(Family::rwkv6) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"r", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {"w", {d.T, d.Hv, d.dk}, Role::decay},
            {.name = "u", .shape = {d.Hv, d.dk}, .role = Role::weight, .per_token = false}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &r = in.at("r"), &k = in.at("k"), &v = in.at("v"), &w = in.at("w"), &u = in.at("u");
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      const Vector out =
          S.read(r.row(t, kh)) + dot(u.row(h) * k.row(t, kh), r.row(t, kh)) * v.row(t, h);
      S.scale_rows(w.row(t, h));
      S.add_outer(k.row(t, kh), v.row(t, h));
      return out;
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = in.at("r");
    table.k = in.at("k");
    table.v = in.at("v");
    table.g = map_elements(in.at("w"), [](double w) { return std::log(w); });
    table.u = in.at("u");
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_rwkv6() { return std::make_unique<Rwkv6>(); }

}  // namespace hypic::reference
