// RetNet: "Retentive Network: A Successor to Transformer for Large Language Models", arXiv
// 2307.08621, section 2.1, the recurrent form.
//   S ← γ S + k vᵀ,  o = d_k^-½ Sᵀq;  γ a constant of each head, 1 − 2^(−5−h) in the paper
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class RetNet final : public FamilyReference {
 public:
  RetNet() : FamilyReference(Family::retnet) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {.name = "gamma", .shape = {d.Hv}, .role = Role::decay, .per_token = false}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &gamma = in.at("gamma");
    const double scale = 1 / std::sqrt(k.last());
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      S.scale(gamma(h));
      S.add_outer(k.row(t, kh), v.row(t, h));
      return scale * S.read(q.row(t, kh));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = in.at("q");
    table.k = in.at("k");
    table.v = in.at("v");
    table.g =
        for_tokens(map_elements(in.at("gamma"), [](double x) { return std::log(x); }), table.v[0]);
    table.scale = 1 / std::sqrt(table.k.last());
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_retnet() { return std::make_unique<RetNet>(); }

}  // namespace hypic::reference
