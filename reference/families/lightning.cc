// Lightning attention: "Lightning Attention-2: A Free Lunch for Handling Unlimited Sequence Lengths
// in Large Language Models", arXiv 2401.04658, section 3; slopes of Ring-linear-2.0, arXiv
// 2510.19338.
//   S ← e^(−s) S + k vᵀ,  o = d_k^-½ Sᵀq;  s > 0 a constant of each head and layer (MiniMax scales
//   by 1)
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class Lightning final : public FamilyReference {
 public:
  Lightning() : FamilyReference(Family::lightning) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {.name = "s", .shape = {d.Hv}, .role = Role::slope, .per_token = false}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &s = in.at("s");
    const double scale = 1 / std::sqrt(k.last());
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix S) -> Vector {
      S.scale(std::exp(-s(h)));
      S.add_outer(k.row(t, kh), v.row(t, h));
      return scale * S.read(q.row(t, kh));
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = in.at("q");
    table.k = in.at("k");
    table.v = in.at("v");
    table.g = for_tokens(map_elements(in.at("s"), [](double x) { return -x; }), table.v[0]);
    table.scale = 1 / std::sqrt(table.k.last());
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_lightning() { return std::make_unique<Lightning>(); }

}  // namespace hypic::reference
