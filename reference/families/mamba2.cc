// Mamba-2: "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured
// State Space Duality", arXiv 2405.21060, section 6 (SSD) and 7 (heads; B, C shared by a group of
// them).
//   S ← exp(Δ A) S + (Δ B) xᵀ,  o = SᵀC + D x;  A < 0 and D constants of each head
// o includes D x; the table does not, TableInputs::skip holds it.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class Mamba2 final : public FamilyReference {
 public:
  Mamba2() : FamilyReference(Family::mamba2) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"C", {d.T, d.Hk, d.dk}, Role::query},
            {"B", {d.T, d.Hk, d.dk}, Role::key},
            {"x", {d.T, d.Hv, d.dv}, Role::value},
            {"delta", {d.T, d.Hv}, Role::step},
            {.name = "A", .shape = {d.Hv}, .role = Role::rate, .per_token = false},
            {.name = "D", .shape = {d.Hv}, .role = Role::weight, .per_token = false}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &C = in.at("C"), &B = in.at("B"), &x = in.at("x"), &delta = in.at("delta"),
                &A = in.at("A"), &D = in.at("D");
    run_heads(B[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      S.scale(std::exp(delta(t, h) * A(h)));
      S.add_outer(delta(t, h) * B.row(t, kh), x.row(t, h));
      return S.read(C.row(t, kh)) + D(h) * x.row(t, h);
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = in.at("C");
    table.k = in.at("B");
    table.v = table.skip = in.at("x");
    table.g = table.beta = in.at("delta");
    const Array &A = in.at("A"), &D = in.at("D");
    for (int64_t t = 0; t < table.v[0]; ++t)
      for (int64_t h = 0; h < table.v[1]; ++h) {
        table.g(t, h) *= A(h);
        table.skip.set_row(D(h) * table.skip.row(t, h), t, h);
      }
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_mamba2() { return std::make_unique<Mamba2>(); }

}  // namespace hypic::reference
