// Linear attention: "Transformers are RNNs: Fast Autoregressive Transformers with Linear
// Attention", arXiv 2006.16236, section 3.4, with its feature map φ(x) = elu(x) + 1.
//   S ← S + φ(k) vᵀ,  z ← z + φ(k),  o = Sᵀφ(q) / (zᵀφ(q) + eps)
// The state is [S | z]. An optional input `position` puts RoPE on φ(q) and φ(k), that of z
// included, so that the pair (S, z) moves as one.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

double elu_plus_one(double x) { return x > 0 ? x + 1 : std::exp(x); }

// φ of one token's query or key, with its RoPE.
Vector feature(const Inputs& in, const Array& x, int64_t t, int64_t h) {
  Vector row = x.row(t, h).apply(elu_plus_one);
  if (const auto position = in.find("position"); position != in.end())
    rotate(row, position->second(t), rotary_dim_of(x.last()), kRopeTheta);
  return row;
}

Array features(const Inputs& in, Array x) {
  for (int64_t t = 0; t < x[0]; ++t)
    for (int64_t h = 0; h < x[1]; ++h) x.set_row(feature(in, x, t, h), t, h);
  return x;
}

class Linear final : public FamilyReference {
 public:
  Linear() : FamilyReference(Family::linear) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {"position", {d.T}, Role::position}};
  }

  std::vector<int64_t> state_shape(const Dims& d) const override { return {d.Hv, d.dk, d.dv + 1}; }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v");
    const int64_t dv = v.last();
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix Sz) -> Vector {
      const Matrix S = Sz.columns(0, dv), z = Sz.columns(dv, dv + 1);
      const Vector phi_q = feature(in, q, t, kh), phi_k = feature(in, k, t, kh);
      S.add_outer(phi_k, v.row(t, h));
      z.add_outer(phi_k, Vector{1.0});
      return S.read(phi_q) / (z.read(phi_q)[0] + kNormaliserEps);
    });
  }

  TableInputs to_table(const Inputs& in) const override {
    TableInputs table;
    table.q = features(in, in.at("q"));
    table.k = features(in, in.at("k"));
    table.v = append_ones(in.at("v"));
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_linear() { return std::make_unique<Linear>(); }

}  // namespace hypic::reference
