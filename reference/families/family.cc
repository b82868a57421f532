#include "reference/families/family.h"

#include <cmath>

namespace hypic::reference {
namespace {

Tensor view(const Array& x) {
  if (!x) return {};
  Tensor t;
  t.data = const_cast<double*>(x.data.data());
  t.dtype = DType::f64;
  t.rank = static_cast<int>(x.shape.size());
  int64_t stride = 1;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    t.shape[axis] = x[axis];
    t.stride[axis] = stride;
    stride *= x[axis];
  }
  return t;
}

}  // namespace

LinearAttentionArgs TableInputs::args(const FamilyTraits& traits) const {
  LinearAttentionArgs args{};
  args.decay = traits.decay;
  args.update = traits.update;
  args.readout = traits.readout;
  args.side = traits.side;
  args.scale = scale;
  args.q = view(q);
  args.k = view(k);
  args.v = view(v);
  args.g = view(g);
  args.A = view(A);
  args.beta = view(beta);
  args.a = view(a);
  args.b = view(b);
  args.u = view(u);
  return args;
}

int64_t TableInputs::output_dim(const FamilyTraits& traits) const {
  if (traits.side == Side::value) return k.last();
  switch (traits.readout) {
    case Readout::normalised:
    case Readout::bounded:
      return v.last() - 1;
    case Readout::softmax:
      return v.last() - q.last();
    default:
      return v.last();
  }
}

std::unique_ptr<FamilyReference> make_family(Family family) {
  switch (family) {
#define HYPIC_FAMILY(name, ...) \
  case Family::name:            \
    return make_##name();
#include "core/families.def"
#undef HYPIC_FAMILY
  }
  fail("unknown family");
}

Array for_value_heads(const Array& x, int64_t Hv) {
  const int64_t T = x[0], group = Hv / x[1];
  Array out({T, Hv, x[2]});
  for (int64_t t = 0; t < T; ++t)
    for (int64_t h = 0; h < Hv; ++h) out.set_row(x.row(t, h / group), t, h);
  return out;
}

Array append_ones(const Array& x) {
  Array out({x[0], x[1], x[2] + 1}, 1.0);
  for (int64_t t = 0; t < x[0]; ++t)
    for (int64_t h = 0; h < x[1]; ++h)
      for (int64_t j = 0; j < x[2]; ++j) out(t, h, j) = x(t, h, j);
  return out;
}

Array elementwise_product(Array x, const Array& y) {
  HYPIC_CHECK(x.shape == y.shape);
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] *= y.data[i];
  return x;
}

Array reshaped(Array x, std::vector<int64_t> shape) {
  x.shape = std::move(shape);
  HYPIC_CHECK(static_cast<int64_t>(x.data.size()) == x.product(0));
  return x;
}

Array for_tokens(const Array& x, int64_t T) {
  Array out({T, x[0]});
  for (int64_t t = 0; t < T; ++t)
    for (int64_t h = 0; h < x[0]; ++h) out(t, h) = x(h);
  return out;
}

Array transposed(const Array& S) {
  Array out({S[0], S[2], S[1]});
  for (int64_t h = 0; h < S[0]; ++h)
    for (int64_t i = 0; i < S[1]; ++i)
      for (int64_t j = 0; j < S[2]; ++j) out(h, j, i) = S(h, i, j);
  return out;
}

void rotate(Vector& x, double position, int rotary_dim, double theta) {
  const int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = position * std::pow(theta, -2.0 * i / rotary_dim);
    const double a = x[i], b = x[i + half];
    x[i] = std::cos(angle) * a - std::sin(angle) * b;
    x[i + half] = std::sin(angle) * a + std::cos(angle) * b;
  }
}

}  // namespace hypic::reference
