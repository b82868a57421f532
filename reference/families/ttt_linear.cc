// TTT-Linear: "Learning to (Learn at Test Time): RNNs with Expressive Hidden States", arXiv
// 2407.04620, section 2; online gradient descent (mini-batch 1), f(x; W) = x + LN(Wᵀx), d_k = d_v.
//   W ← W − η ∇_W ½ ‖f(k; W) − v‖²,  o = f(q; W)
// LN makes the gradient nonlinear in W: there is no affine operator that does not depend on the
// prefix. Without LN it is the delta rule with the target v − k.
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

constexpr double kEps = 1e-6;

// The normalisation inside f, of one vector.
struct LayerNorm {
  Vector unit;  // (x − mean) / deviation
  double deviation;
  explicit LayerNorm(const Vector& x) {
    const double n = x.size();
    const Vector centred = x - x.sum() / n;
    deviation = std::sqrt(dot(centred, centred) / n + kEps);
    unit = centred / deviation;
  }
  // The gradient with respect to x from that with respect to unit.
  Vector backward(const Vector& d_unit) const {
    const double n = unit.size();
    return (d_unit - d_unit.sum() / n - unit * (dot(d_unit, unit) / n)) / deviation;
  }
};

class TttLinear final : public FamilyReference {
 public:
  explicit TttLinear(bool norm) : FamilyReference(Family::ttt_linear), norm_(norm) {}

  Dims fit(Dims dims) const override {
    dims.extra = 1;
    dims.dv = dims.dk;
    return dims;
  }

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::unit_key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {"eta", {d.T, d.Hv}, Role::write},
            {.name = "gamma", .shape = {d.Hv, d.dv}, .role = Role::weight, .per_token = false},
            {.name = "beta", .shape = {d.Hv, d.dv}, .role = Role::weight, .per_token = false}};
  }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &eta = in.at("eta"),
                &gamma = in.at("gamma"), &beta = in.at("beta");
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix W) -> Vector {
      const Vector target = v.row(t, h) - k.row(t, kh), inner = W.read(k.row(t, kh));
      if (!norm_) {
        W.add_outer(-eta(t, h) * k.row(t, kh), inner - target);
        return q.row(t, kh) + W.read(q.row(t, kh));
      }
      const LayerNorm norm(inner);
      const Vector error = gamma.row(h) * norm.unit + beta.row(h) - target;
      W.add_outer(-eta(t, h) * k.row(t, kh), norm.backward(gamma.row(h) * error));
      return q.row(t, kh) + gamma.row(h) * LayerNorm(W.read(q.row(t, kh))).unit + beta.row(h);
    });
  }

  TableInputs to_table(const Inputs&) const override {
    HYPIC_CHECK(false, "ttt_linear is not a point of the table");
  }

 private:
  bool norm_;
};

}  // namespace

std::unique_ptr<FamilyReference> make_ttt_linear() { return std::make_unique<TttLinear>(true); }

std::unique_ptr<FamilyReference> make_ttt_linear_without_norm() {
  return std::make_unique<TttLinear>(false);
}

}  // namespace hypic::reference
