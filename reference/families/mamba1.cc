// Mamba: "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", arXiv 2312.00752,
// section 3, the selective SSM with Ā = exp(ΔA), B̄ = ΔB. Channels c are value columns, state
// entries n key rows.
//   S_nc ← exp(Δ_c A_nc) S_nc + Δ_c B_n x_c,  o = SᵀC + D ⊙ x
// o includes D ⊙ x; the table does not, TableInputs::skip holds it.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class Mamba1 final : public FamilyReference {
 public:
  Mamba1() : FamilyReference(Family::mamba1) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"C", {d.T, d.Hk, d.dk}, Role::query},
            {"B", {d.T, d.Hk, d.dk}, Role::key},
            {"x", {d.T, d.Hv, d.dv}, Role::value},
            {"delta", {d.T, d.Hv, d.dv}, Role::step},
            {.name = "A", .shape = {d.Hv, d.dk, d.dv}, .role = Role::rate, .per_token = false},
            {.name = "D", .shape = {d.Hv, d.dv}, .role = Role::weight, .per_token = false}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &C = in.at("C"), &B = in.at("B"), &x = in.at("x"), &delta = in.at("delta"),
                &A = in.at("A"), &D = in.at("D");
    run_heads(B[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      for (int64_t n = 0; n < S.rows; ++n)
        for (int64_t c = 0; c < S.cols; ++c)
          S(n, c) = std::exp(delta(t, h, c) * A(h, n, c)) * S(n, c) +
                    delta(t, h, c) * B(t, kh, n) * x(t, h, c);
      return S.read(C.row(t, kh)) + D.row(h) * x.row(t, h);
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = in.at("C");
    table.k = in.at("B");
    table.v = table.skip = in.at("x");
    table.g = in.at("delta");
    table.A = in.at("A");
    const Array& D = in.at("D");
    for (int64_t t = 0; t < table.v[0]; ++t)
      for (int64_t h = 0; h < table.v[1]; ++h)
        for (int64_t c = 0; c < table.v[2]; ++c) {
          table.v(t, h, c) *= table.g(t, h, c);
          table.skip(t, h, c) *= D(h, c);
        }
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_mamba1() { return std::make_unique<Mamba1>(); }

}  // namespace hypic::reference
