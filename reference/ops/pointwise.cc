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
  int64_t n = 1;
  for (int axis = 1; axis < t.rank; ++axis) n *= t[axis];
  return n;
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
  if (args.scale == 1) return;
  for (int64_t r = 0; r < args.out[0]; ++r)
    for (int64_t i = 0; i < args.out[1]; ++i) row<T>(args.out, r)[i] *= static_cast<T>(args.scale);
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
  const T alpha = static_cast<T>(args.alpha), beta = static_cast<T>(args.beta);
  for (int64_t r = 0; r < args.x[0]; ++r)
    for (int64_t i = 0; i < N; ++i) {
      T& x = row<T>(args.x, r)[i];
      x = alpha * x + beta * row<T>(args.y, r)[i];
    }
}

template <class T>
void gate_mul(const GateMulArgs& args) {
  check_dtype<T>(args.x, args.gate, args.out);
  // [R, N] is one head of N; heads may be strided, as in [q | gate] per head.
  const auto per_head = [](const Tensor& t) { return t.rank == 3 ? t : t.reshape({t[0], 1, t[1]}); };
  const Tensor out = per_head(args.out), gate = per_head(args.gate);
  const Tensor x = args.x ? per_head(args.x) : out;
  const bool by_row = args.x && gate[1] * gate[2] == 1;
  HYPIC_CHECK(x.shape == out.shape && (by_row ? gate[0] == x[0] : gate.shape == x.shape) && x.stride[2] == 1 &&
                  gate.stride[2] == 1 && out.stride[2] == 1,
              "gate_mul: out ", args.out.shape_string(), ", gate ", args.gate.shape_string());
  parallel_for(out[0], 8 * out.size(), [&](int64_t r) {
    for (int64_t h = 0; h < out[1]; ++h)
      for (int64_t i = 0; i < out[2]; ++i) {
        const T factor = args.x ? row<T>(x, r)[h * x.stride[1] + i] : T{1};
        const T g = row<T>(gate, r)[by_row ? 0 : h * gate.stride[1] + i];
        row<T>(out, r)[h * out.stride[1] + i] = factor * activate(g, args.activation);
      }
  });
}

template <class T>
void decay_gate(const DecayGateArgs& args) {
  check_same(args.x, args.out);
  if (args.step) check_same(args.x, args.step);
  check_dtype<T>(args.x, args.A_log, args.dt_bias, args.out, args.step);
  const int64_t N = width(args.x), H = args.A_log[0];
  HYPIC_CHECK(args.A_log.rank == 1 && H > 0 && args.x[1] == H && width(args.out) == N &&
                  args.dt_bias.size() == N && args.dt_bias.contiguous() && (!args.step || width(args.step) == N),
              "decay_gate: x ", args.x.shape_string(), ", A_log ", args.A_log.shape_string(), ", dt_bias ",
              args.dt_bias.shape_string());
  const T low = static_cast<T>(args.step_min), high = static_cast<T>(args.step_max);
  for (int64_t r = 0; r < args.x[0]; ++r)
    for (int64_t i = 0; i < N; ++i) {
      T step = softplus(row<T>(args.x, r)[i] + args.dt_bias.as<T>()[i]);
      if (step < low) step = low;  // written so that a NaN stays one
      if (step > high) step = high;
      if (args.step) row<T>(args.step, r)[i] = step;
      row<T>(args.out, r)[i] = -std::exp(args.A_log.as<T>()[i / (N / H)]) * step;
    }
}

template <class T>
void sigmoid(const SigmoidArgs& args) {
  check_same(args.x, args.out);
  const int64_t N = width(args.x);
  HYPIC_CHECK(width(args.out) == N);
  for (int64_t r = 0; r < args.x[0]; ++r)
    for (int64_t i = 0; i < N; ++i)
      row<T>(args.out, r)[i] =
          static_cast<T>(args.scale) * activate(row<T>(args.x, r)[i], Activation::sigmoid);
}

#define HYPIC_INSTANTIATE(T)                         \
  template void embedding<T>(const EmbeddingArgs&);  \
  template void add<T>(const AddArgs&);              \
  template void gate_mul<T>(const GateMulArgs&);     \
  template void decay_gate<T>(const DecayGateArgs&); \
  template void sigmoid<T>(const SigmoidArgs&);      \
  template void gather_rows<T>(const GatherRowsArgs&);
HYPIC_INSTANTIATE(float)
HYPIC_INSTANTIATE(double)
#undef HYPIC_INSTANTIATE

}  // namespace hypic::reference
