#include "reference/ops/pointwise.h"

#include <algorithm>

#include "reference/ops/threads.h"

namespace hypic::reference {
namespace {

// Row pointer and width of a tensor [R, N] or [R, H, D] with dense rows.
template <class T>
T* row(const Tensor& t, int64_t r) {
  return t.as<T>() + r * t.stride[0];
}

int64_t width(const Tensor& t) {
  HYPIC_CHECK(t.rank >= 1 && (t[0] == 0 || t.at(0).contiguous()), "rows of ", t.shape_string());
  return t[0] == 0 ? 0 : t.size() / t[0];
}

void check_same(const Tensor& x, const Tensor& y) {
  HYPIC_CHECK(x[0] == y[0] && x.size() == y.size(), x.shape_string(), " and ", y.shape_string());
}

template <class T>
T softplus(T x) {
  return std::max(x, T{0}) + std::log1p(std::exp(-std::abs(x)));
}

template <class T>
void copy_rows(const Tensor& from, const Tensor& index, const Tensor& out) {
  Shapes("row copy").bind(from, "rows", {"n", "N"}).bind(index, "index", {"R"}).bind(out, "out", {"R", "N"});
  for (int64_t r = 0; r < out[0]; ++r) {
    const int32_t i = index.as<int32_t>()[r];
    HYPIC_CHECK(0 <= i && i < from[0], "row ", i, " of ", from[0]);
    std::copy_n(row<T>(from, i), from[1], row<T>(out, r));
  }
}

}  // namespace

template <class T>
void embedding(const EmbeddingArgs& args) {
  copy_rows<T>(args.table, args.tokens, args.out);
}

template <class T>
void gather_rows(const GatherRowsArgs& args) {
  copy_rows<T>(args.x, args.rows, args.out);
}

template <class T>
void add(const AddArgs& args) {
  check_same(args.x, args.y);
  check_dtype<T>(args.x, args.y);
  const int64_t N = width(args.x);
  HYPIC_CHECK(width(args.y) == N);
  for (int64_t r = 0; r < args.x[0]; ++r)
    for (int64_t i = 0; i < N; ++i) row<T>(args.x, r)[i] += row<T>(args.y, r)[i];
}

template <class T>
void gate_mul(const GateMulArgs& args) {
  check_same(args.x, args.gate);
  check_same(args.x, args.out);
  check_dtype<T>(args.x, args.gate, args.out);
  // [R, N] is one head of N; heads may be strided, as in [q | gate] per head.
  const auto per_head = [](const Tensor& t) { return t.rank == 3 ? t : t.reshape({t[0], 1, t[1]}); };
  const Tensor x = per_head(args.x), gate = per_head(args.gate), out = per_head(args.out);
  HYPIC_CHECK(x.shape == gate.shape && x.shape == out.shape && x.stride[2] == 1 && gate.stride[2] == 1 &&
              out.stride[2] == 1);
  parallel_for(x[0], 8 * x.size(), [&](int64_t r) {
    for (int64_t h = 0; h < x[1]; ++h)
      for (int64_t i = 0; i < x[2]; ++i)
        row<T>(out, r)[h * out.stride[1] + i] =
            row<T>(x, r)[h * x.stride[1] + i] *
            activate(row<T>(gate, r)[h * gate.stride[1] + i], args.activation);
  });
}

template <class T>
void decay_gate(const DecayGateArgs& args) {
  Shapes("decay_gate").bind(args.x, "x", {"R", "H"}).bind(args.A_log, "A_log", {"H"})
      .bind(args.dt_bias, "dt_bias", {"H"}).bind(args.out, "out", {"R", "H"});
  for (int64_t r = 0; r < args.x[0]; ++r)
    for (int64_t h = 0; h < args.x[1]; ++h)
      row<T>(args.out, r)[h] = -std::exp(args.A_log.as<T>()[h]) *
                               softplus(row<T>(args.x, r)[h] + args.dt_bias.as<T>()[h]);
}

template <class T>
void sigmoid(const SigmoidArgs& args) {
  check_same(args.x, args.out);
  const int64_t N = width(args.x);
  HYPIC_CHECK(width(args.out) == N);
  for (int64_t r = 0; r < args.x[0]; ++r)
    for (int64_t i = 0; i < N; ++i)
      row<T>(args.out, r)[i] = activate(row<T>(args.x, r)[i], Activation::sigmoid);
}

template <class T>
void argmax(const ArgmaxArgs& args) {
  Shapes("argmax").bind(args.x, "x", {"R", "N"}).bind(args.out, "out", {"R"});
  for (int64_t r = 0; r < args.x[0]; ++r) {
    const T* x = row<T>(args.x, r);
    args.out.as<int32_t>()[r] = static_cast<int32_t>(std::max_element(x, x + args.x[1]) - x);
  }
}

#define HYPIC_INSTANTIATE(T)                         \
  template void embedding<T>(const EmbeddingArgs&);  \
  template void add<T>(const AddArgs&);              \
  template void gate_mul<T>(const GateMulArgs&);     \
  template void decay_gate<T>(const DecayGateArgs&); \
  template void sigmoid<T>(const SigmoidArgs&);      \
  template void gather_rows<T>(const GatherRowsArgs&); \
  template void argmax<T>(const ArgmaxArgs&);
HYPIC_INSTANTIATE(float)
HYPIC_INSTANTIATE(double)
#undef HYPIC_INSTANTIATE

}  // namespace hypic::reference
