// Comba: "Comba: Improving Bilinear RNNs with Closed-loop Control", arXiv 2506.02475, section 3.
//   S ← (e^g I − β k pᵀ) S + β k vᵀ,  o = d_k^-½ Sᵀ(q − D p),  p = σ(c) k;  k of length 1
// p reads the undecayed state; c (state feedback) and D (output feedback) are constants of a key
// head.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class Comba final : public FamilyReference {
 public:
  Comba() : FamilyReference(Family::comba) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::unit_key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {"g", {d.T, d.Hv}, Role::log_decay},
            {"beta", {d.T, d.Hv}, Role::write},
            {.name = "c", .shape = {d.Hk}, .role = Role::weight, .per_token = false},
            {.name = "D", .shape = {d.Hk}, .role = Role::weight, .per_token = false}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &g = in.at("g"),
                &beta = in.at("beta"), &c = in.at("c"), &D = in.at("D");
    const double scale = 1 / std::sqrt(k.last());
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      const Vector p = sigmoid(c(kh)) * k.row(t, kh);
      const Vector error = v.row(t, h) - S.read(p);
      S.scale(std::exp(g(t, h)));
      S.add_outer(beta(t, h) * k.row(t, kh), error);
      return scale * S.read(q.row(t, kh) - D(kh) * p);
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    const Array &k = in.at("k"), &c = in.at("c"), &D = in.at("D");
    TableInputs table;
    table.q = in.at("q");
    table.k = k;
    table.v = in.at("v");
    table.g = in.at("g");
    table.beta = in.at("beta");
    table.b = for_value_heads(k, table.v[1]);
    const int64_t group = table.v[1] / k[1];
    for (int64_t t = 0; t < k[0]; ++t) {
      for (int64_t h = 0; h < k[1]; ++h)
        table.q.set_row(table.q.row(t, h) - D(h) * sigmoid(c(h)) * k.row(t, h), t, h);
      for (int64_t h = 0; h < table.v[1]; ++h)
        table.b.set_row(table.beta(t, h) * sigmoid(c(h / group)) * table.b.row(t, h), t, h);
    }
    table.scale = 1 / std::sqrt(k.last());
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_comba() { return std::make_unique<Comba>(); }

}  // namespace hypic::reference
