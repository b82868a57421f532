// mLSTM: "xLSTM: Extended Long Short-Term Memory", arXiv 2405.04517, section 2.3 and the
// stabilisation of section 2.2 and appendix A. log f is log σ(f̃) or f̃ itself, i the logarithm of
// the input gate, m the stabiliser.
//   m' = max(log f + m, i),  C ← e^(log f + m − m') C + e^(i − m') (k d_k^-½) vᵀ,
//   n the same with v = 1,  o = Cᵀq / max(|nᵀq|, e^(−m'))
// The state in and out is e^m [C | n], which does not depend on m.
#include <algorithm>
#include <cmath>

#include "reference/families/family.h"

namespace hypic::reference {
namespace {

class Mlstm final : public FamilyReference {
 public:
  Mlstm() : FamilyReference(Family::mlstm) {}

  std::vector<InputSpec> inputs(const Dims& d) const override {
    return {{"q", {d.T, d.Hk, d.dk}, Role::query},
            {"k", {d.T, d.Hk, d.dk}, Role::key},
            {"v", {d.T, d.Hv, d.dv}, Role::value},
            {"log_f", {d.T, d.Hv}, Role::log_decay},
            {"i", {d.T, d.Hv}, Role::logit}};
  }

  std::vector<int64_t> state_shape(const Dims& d) const override { return {d.Hv, d.dk, d.dv + 1}; }

  void run(const Inputs& in, int64_t begin, int64_t end, Array& S, Array& o) const override {
    const Array &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &log_f = in.at("log_f"),
                &i = in.at("i");
    const int64_t dv = v.last();
    const double key_scale = 1 / std::sqrt(k.last());
    Vector m(0.0, S[0]);
    run_heads(k[1], begin, end, S, o, [&](int64_t t, int64_t h, int64_t kh, Matrix Cn) -> Vector {
      const Matrix C = Cn.columns(0, dv), n = Cn.columns(dv, dv + 1);
      const double m_before = m[h];
      m[h] = std::max(log_f(t, h) + m_before, i(t, h));
      const double f = std::exp(log_f(t, h) + m_before - m[h]), input = std::exp(i(t, h) - m[h]);
      C.scale(f);
      C.add_outer(input * key_scale * k.row(t, kh), v.row(t, h));
      n.scale(f);
      n.add_outer(input * key_scale * k.row(t, kh), Vector{1.0});
      const double divisor = std::max(std::abs(n.read(q.row(t, kh))[0]), std::exp(-m[h]));
      return C.read(q.row(t, kh)) / divisor;
    });
    for (int64_t h = 0; h < S[0]; ++h) Matrix{&S(h, 0, 0), S[1], S[2], S[2]}.scale(std::exp(m[h]));
  }

  TableInputs to_table(const Inputs& in) const override {
    const double key_scale = 1 / std::sqrt(in.at("k").last());
    TableInputs table;
    table.q = in.at("q");
    table.k = in.at("k");
    table.v = append_ones(in.at("v"));
    table.g = in.at("log_f");
    // The scale of k goes with the gate, which is not rounded to the operands' dtype.
    table.beta = map_elements(in.at("i"), [&](double i) { return key_scale * std::exp(i); });
    return table;
  }
};

}  // namespace

std::unique_ptr<FamilyReference> make_mlstm() { return std::make_unique<Mlstm>(); }

}  // namespace hypic::reference
