#include "kernels/ops/pointwise.cuh"

#include <algorithm>

#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kThreads = 256;

// Elements of [R, H, D], one a thread.
struct Shape {
  int64_t R, H, D;
  int64_t size() const { return R * H * D; }
};

Shape shape_of(const Tensor& t) {
  HYPIC_CHECK(t.rank == 2 || t.rank == 3, t.shape_string());
  return t.rank == 3 ? Shape{t[0], t[1], t[2]} : Shape{t[0], 1, t[1]};
}

template <class Body>
__global__ void for_each_kernel(Shape shape, Body body) {
  const int64_t n = shape.R * shape.H * shape.D;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    body(i / (shape.H * shape.D), i / shape.D % shape.H, i % shape.D);
}

template <class Body>
void for_each(const Shape& shape, cudaStream_t stream, const char* name, Body body) {
  if (shape.size() == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(shape.size(), kThreads), 1 << 16));
  for_each_kernel<<<blocks, kThreads, 0, stream>>>(shape, body);
  check_launch(name);
}

template <class T>
void copy_rows(const Tensor& from, const Tensor& index, const Tensor& out, float scale, cudaStream_t stream) {
  Shapes("row copy").bind(from, "rows", {"n", "N"}).bind(index, "index", {"R"}).bind(out, "out", {"R", "N"});
  const View<T> x = view<T>(from), y = view<T>(out);
  const int32_t* rows = index.as<int32_t>();
  for_each(shape_of(out), stream, "copy_rows", [=] __device__(int64_t r, int64_t, int64_t d) {
    T* to = y.row(r) + d;
    const T value = x.row(rows[r])[d];
    if (scale == 1)
      *to = value;
    else
      store(to, scale * load(&value));
  });
}

}  // namespace

void embedding(const EmbeddingArgs& a, cudaStream_t stream) {
  visit_device(a.out.dtype, [&](auto zero) {
    copy_rows<decltype(zero)>(a.table, a.tokens, a.out, static_cast<float>(a.scale), stream);
  });
}

void gather_rows(const GatherRowsArgs& a, cudaStream_t stream) {
  visit_device(a.out.dtype, [&](auto zero) { copy_rows<decltype(zero)>(a.x, a.rows, a.out, 1, stream); });
}

namespace {

template <class T>
void add_as(const AddArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(a.x.shape == a.y.shape, a.x.shape_string(), " and ", a.y.shape_string());
  const View<T> x = view<T>(a.x), y = view<T>(a.y);
  const auto alpha = static_cast<float>(a.alpha), beta = static_cast<float>(a.beta);
  for_each(shape_of(a.x), stream, "add", [=] __device__(int64_t r, int64_t h, int64_t d) {
    T* at = x.row(r, h) + d;
    store(at, alpha * load(at) + beta * load(y.row(r, h) + d));
  });
}

}  // namespace

void add(const AddArgs& a, cudaStream_t stream) {
  visit_device(a.x.dtype, [&](auto zero) { add_as<decltype(zero)>(a, stream); });
}

namespace {

template <class T>
void gate_mul_as(const GateMulArgs& a, cudaStream_t stream) {
  const Shape shape = shape_of(a.out), gate_shape = shape_of(a.gate);
  const bool by_row = a.x && gate_shape.H * gate_shape.D == 1;
  HYPIC_CHECK((!a.x || shape_of(a.x).size() == shape.size()) && gate_shape.R == shape.R &&
                  (by_row || gate_shape.size() == shape.size()),
              "gate_mul: out ", a.out.shape_string(), ", gate ", a.gate.shape_string());
  const View<T> x = view<T>(a.x), gate = view<T>(a.gate), out = view<T>(a.out);
  const int activation = static_cast<int>(a.activation);
  for_each(shape, stream, "gate_mul", [=] __device__(int64_t r, int64_t h, int64_t d) {
    const float g = activate(load(by_row ? gate.row(r) : gate.row(r, h) + d), activation);
    store(out.row(r, h) + d, x ? load(x.row(r, h) + d) * g : g);
  });
}

}  // namespace

void gate_mul(const GateMulArgs& a, cudaStream_t stream) {
  visit_device(a.out.dtype, [&](auto zero) { gate_mul_as<decltype(zero)>(a, stream); });
}

namespace {

template <class T>
void decay_gate_as(const DecayGateArgs& a, cudaStream_t stream) {
  const Shape shape = a.x.rank == 3 ? shape_of(a.x) : Shape{a.x[0], a.x[1], 1};
  HYPIC_CHECK(a.A_log.rank == 1 && a.A_log[0] == shape.H && a.dt_bias.size() == shape.H * shape.D &&
                  a.dt_bias.contiguous() && a.A_log.contiguous() && a.out.shape == a.x.shape,
              "decay_gate: x ", a.x.shape_string(), ", A_log ", a.A_log.shape_string());
  const auto rows = [](const Tensor& t) {  // [R, H] as [R, H, 1]
    return t && t.rank == 2 ? t.reshape({t[0], t[1], 1}) : t;
  };
  const View<T> x = view<T>(rows(a.x));
  const View<float> out = view<float>(rows(a.out)), step = view<float>(rows(a.step));
  const float *A_log = a.A_log.as<float>(), *bias = a.dt_bias.as<float>();
  const auto low = static_cast<float>(a.step_min), high = static_cast<float>(a.step_max);
  const int64_t D = shape.D;
  for_each(shape, stream, "decay_gate", [=] __device__(int64_t r, int64_t h, int64_t d) {
    const float delta = decay_step(load(x.row(r, h) + d) + bias[h * D + d], low, high);
    if (step) step.row(r, h)[d] = delta;
    out.row(r, h)[d] = -expf(A_log[h]) * delta;
  });
}

}  // namespace

void decay_gate(const DecayGateArgs& a, cudaStream_t stream) {
  visit_device(a.x.dtype, [&](auto zero) { decay_gate_as<decltype(zero)>(a, stream); });
}

namespace {

template <class T>
void sigmoid_as(const SigmoidArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(a.x.shape == a.out.shape, a.x.shape_string(), " and ", a.out.shape_string());
  const View<T> x = view<T>(a.x);
  const View<float> out = view<float>(a.out);
  const auto scale = static_cast<float>(a.scale);
  for_each(shape_of(a.x), stream, "sigmoid", [=] __device__(int64_t r, int64_t h, int64_t d) {
    out.row(r, h)[d] = scale * activate(load(x.row(r, h) + d), 2);
  });
}

}  // namespace

void sigmoid(const SigmoidArgs& a, cudaStream_t stream) {
  visit_device(a.x.dtype, [&](auto zero) { sigmoid_as<decltype(zero)>(a, stream); });
}

namespace {

__global__ void copy_kernel(char* to, const char* from, Shape shape, int64_t to_r, int64_t to_h, int64_t from_r,
                            int64_t from_h) {
  const int64_t n = shape.R * shape.H * shape.D;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t r = i / (shape.H * shape.D), h = i / shape.D % shape.H, d = i % shape.D;
    to[r * to_r + h * to_h + d] = from[r * from_r + h * from_h + d];
  }
}

}  // namespace

void copy(const Tensor& to, const Tensor& from, cudaStream_t stream) {
  HYPIC_CHECK(to.dtype == from.dtype && to.rank == from.rank && to.shape == from.shape, to.shape_string(), " from ",
              from.shape_string());
  if (to.size() == 0) return;
  if (to.contiguous() && from.contiguous()) {
    check(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDeviceToDevice, stream), "copy");
    return;
  }
  HYPIC_CHECK(to.rank == 2 || to.rank == 3, to.shape_string());
  const int last = to.rank - 1;
  HYPIC_CHECK((to.stride[last] == 1 && from.stride[last] == 1) || to[last] == 1, "the last axis must be contiguous");
  const int64_t size = size_of(to.dtype);
  const Shape shape = to.rank == 3 ? Shape{to[0], to[1], to[2] * size} : Shape{to[0], 1, to[1] * size};
  const auto middle = [&](const Tensor& t) { return t.rank == 3 ? t.stride[1] * size : 0; };
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(shape.size(), kThreads), 1 << 16));
  copy_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<char*>(to.data), static_cast<const char*>(from.data), shape,
                                               to.stride[0] * size, middle(to), from.stride[0] * size, middle(from));
  check_launch("copy");
}

}  // namespace hypic::cuda
