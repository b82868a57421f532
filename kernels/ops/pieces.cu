#include "kernels/ops/pieces.cuh"

#include <algorithm>
#include <bit>

#include "kernels/common/launch_next.cuh"
#include "kernels/common/piece.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

using bf16 = __nv_bfloat16;
using Eight = Piece<bf16>;
constexpr int kPiece = Eight::kSize;
constexpr int kThreads = 256;
constexpr int kRows = 2;         // of a thread at a time, where rows are independent
constexpr int kMaxPieces = 4 * kThreads;  // of a row that is normalised as a whole

bool in_pieces_of_bf16(const Tensor& t) {
  return t.dtype == DType::bf16 && (t.rank == 2 || t.rank == 3) && in_pieces(t) && t[0] < (1 << 30) &&
         t.size() / std::max<int64_t>(t[0], 1) < (1 << 30);
}

bool aligned(const Tensor& weight) {
  return weight.dtype == DType::bf16 && weight.contiguous() && reinterpret_cast<uintptr_t>(weight.data) % 16 == 0;
}

struct Shape {
  int R, H, D;  // D in pieces
};

Shape shape_of(const Tensor& t) {
  const int64_t D = t[t.rank - 1] / kPiece;
  return {static_cast<int>(t[0]), static_cast<int>(t.rank == 3 ? t[1] : 1), static_cast<int>(D)};
}

// Every piece of [R, H, D] by body.load(r, h, d), d the first element, then body.store(what it gave, r, h, d). Thread
// x: a piece of a row, thread y and block x: kRows rows, whose loads are all under way before the first store.
template <class Body>
__global__ void __launch_bounds__(kThreads) pieces_kernel(Shape shape, Body body) {
  follow();
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (i >= shape.H * shape.D) return;
  const int h = shape.H == 1 ? 0 : i / shape.D, d = (i - h * shape.D) * kPiece;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kRows * blockDim.y) + threadIdx.y;
  decltype(body.load(0, 0, 0)) loaded[kRows];
#pragma unroll
  for (int n = 0; n < kRows; ++n)
    if (const int64_t r = first + n * blockDim.y; r < shape.R) loaded[n] = body.load(r, h, d);
#pragma unroll
  for (int n = 0; n < kRows; ++n)
    if (const int64_t r = first + n * blockDim.y; r < shape.R) body.store(loaded[n], r, h, d);
}

template <class Body>
void for_each_piece(const Shape& shape, cudaStream_t stream, const char* name, const Body& body) {
  const int row = shape.H * shape.D;
  if (shape.R == 0 || row == 0) return;
  const unsigned x = std::min(std::bit_ceil(static_cast<unsigned>(row)), static_cast<unsigned>(kThreads));
  const unsigned y = kThreads / x;
  launch_next(name, pieces_kernel<Body>,
              dim3(static_cast<unsigned>(ceil_div(shape.R, kRows * y)), static_cast<unsigned>(ceil_div(row, x))),
              dim3(x, y), 0, stream, shape, body);
}

struct Pair {
  uint4 x, y;
};

struct AddBody {  // x ← alpha · x + beta · y
  View<bf16> x, y;
  float alpha, beta;
  __device__ Pair load(int64_t r, int h, int d) const {
    return {Eight::bits(x.row(r, h) + d), Eight::bits(y.row(r, h) + d)};
  }
  __device__ void store(const Pair& loaded, int64_t r, int h, int d) const {
    Eight sum(loaded.x);
    const Eight more(loaded.y);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) sum.at[i] = alpha * sum.at[i] + beta * more.at[i];
    sum.store(x.row(r, h) + d);
  }
};

struct GateMulBody {  // out = x ⊙ activation(gate), x optional
  View<bf16> x, gate, out;
  int activation;
  __device__ Pair load(int64_t r, int h, int d) const {
    return {x ? Eight::bits(x.row(r, h) + d) : uint4{}, Eight::bits(gate.row(r, h) + d)};
  }
  __device__ void store(const Pair& loaded, int64_t r, int h, int d) const {
    Eight product(loaded.y);
    activate_all(product, activation);
    if (x) {
      const Eight values(loaded.x);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) product.at[i] *= values.at[i];
    }
    product.store(out.row(r, h) + d);
  }
};

struct RowGateBody {  // out = x · activation(gate of the row), or out += that
  View<bf16> x, gate, out;
  int activation;
  bool adds;
  struct Loaded {
    uint4 x, out;
    float gate;
  };
  __device__ Loaded load(int64_t r, int h, int d) const {
    return {Eight::bits(x.row(r, h) + d), adds ? Eight::bits(out.row(r, h) + d) : uint4{},
            hypic::cuda::load(gate.row(r))};
  }
  __device__ void store(const Loaded& loaded, int64_t r, int h, int d) const {
    const float g = activate(loaded.gate, activation);
    const Eight values(loaded.x), before(loaded.out);
    Eight sum;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) sum.at[i] = adds ? before.at[i] + g * values.at[i] : g * values.at[i];
    sum.store(out.row(r, h) + d);
  }
};

// kWarps warps a row, kLanePieces of it a lane.
template <int kWarps, int kLanePieces>
__global__ void __launch_bounds__(kThreads)
    add_rms_norm_kernel(View<bf16> residual, View<bf16> update, const bf16* weight, View<bf16> out, int R, int pieces,
                        float scale, float offset, float eps) {
  __shared__ float sums[kThreads / 32];
  constexpr int kLanes = 32 * kWarps;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  follow();
  const auto here = [&](int n) { return r < R && n * kLanes + lane < pieces; };
  const auto at = [&](int n) { return (n * kLanes + lane) * kPiece; };
  uint4 row[kLanePieces], more[kLanePieces];
#pragma unroll
  for (int n = 0; n < kLanePieces; ++n) {
    if (!here(n)) continue;
    row[n] = Eight::bits(residual.row(r) + at(n));
    if (update) more[n] = Eight::bits(update.row(r) + at(n));
  }
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kLanePieces; ++n) {
    if (!here(n)) continue;
    if (update) {
      Eight whole(row[n]);
      const Eight part(more[n]);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) whole.at[i] += scale * part.at[i];
      row[n] = whole.rounded();
      *reinterpret_cast<uint4*>(residual.row(r) + at(n)) = row[n];
    }
    sum += Eight(row[n]).squares();
  }
  sum = warp_sum(sum);
  if constexpr (kWarps > 1) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[warp / kWarps * kWarps + w];
  }
  const float factor = rsqrtf(sum / static_cast<float>(pieces * kPiece) + eps);
#pragma unroll
  for (int n = 0; n < kLanePieces; ++n) {
    if (!here(n)) continue;
    Eight whole(row[n]);
    const Eight w = Eight::load(weight + at(n));
#pragma unroll
    for (int i = 0; i < kPiece; ++i) whole.at[i] *= factor * (offset + w.at[i]);
    whole.store(out.row(r) + at(n));
  }
}

// kLanes lanes a vector, one piece each; kRows vectors a thread.
template <int kLanes>
__global__ void __launch_bounds__(kThreads)
    gated_norm_kernel(View<bf16> x, View<bf16> gate, const bf16* weight, int weight_h, View<bf16> out, int R, int H,
                      float eps, int activation, bool gate_first) {
  constexpr int kVectors = kThreads / kLanes;  // of a block at a time
  const uint32_t first = blockIdx.x * (kRows * kVectors) + threadIdx.x / kLanes;
  const uint32_t vectors = static_cast<uint32_t>(R) * H;
  const int at = static_cast<int>(threadIdx.x % kLanes) * kPiece;
  follow();
  uint4 values[kRows], gates[kRows];
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    const uint32_t v = min(first + n * kVectors, vectors - 1), r = v / H, h = v - r * H;  // all lanes take part in sums
    values[n] = Eight::bits(x.row(r, h) + at);
    gates[n] = Eight::bits(gate.row(r, h) + at);
  }
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    const uint32_t v = min(first + n * kVectors, vectors - 1), r = v / H, h = v - r * H;
    Eight p(values[n]), g(gates[n]);
    activate_all(g, activation);
#pragma unroll
    for (int i = 0; i < kPiece; ++i)
      if (gate_first) p.at[i] *= g.at[i];
    const float factor = rsqrtf(lanes_sum(p.squares(), kLanes) / (kLanes * kPiece) + eps);
    const Eight w = Eight::load(weight + h * weight_h + at);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) p.at[i] *= factor * w.at[i] * (gate_first ? 1.0f : g.at[i]);
    if (first + n * kVectors < vectors) p.store(out.row(r, h) + at);
  }
}

bool is_row_gate(const Tensor& gate, const Tensor& x) {
  return gate.rank == 2 && gate[1] == 1 && gate.dtype == DType::bf16 && gate[0] == x[0];
}

}  // namespace

bool add_pieces_takes(const AddArgs& a) { return in_pieces_of_bf16(a.x) && in_pieces_of_bf16(a.y); }

void add_pieces(const AddArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(add_pieces_takes(a) && a.x.shape == a.y.shape, a.x.shape_string(), " and ", a.y.shape_string());
  for_each_piece(
      shape_of(a.x), stream, "add",
      AddBody{view<bf16>(a.x), view<bf16>(a.y), static_cast<float>(a.alpha), static_cast<float>(a.beta)});
}

bool gate_mul_pieces_takes(const GateMulArgs& a) {
  return in_pieces_of_bf16(a.out) && (!a.x || (in_pieces_of_bf16(a.x) && a.x.shape == a.out.shape)) &&
         ((a.x && is_row_gate(a.gate, a.out)) || (in_pieces_of_bf16(a.gate) && a.gate.shape == a.out.shape));
}

void gate_mul_pieces(const GateMulArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(gate_mul_pieces_takes(a), a.out.shape_string(), ", gate ", a.gate.shape_string());
  const View<bf16> x = view<bf16>(a.x), gate = view<bf16>(a.gate), out = view<bf16>(a.out);
  const int activation = static_cast<int>(a.activation);
  if (a.gate.shape == a.out.shape)
    for_each_piece(shape_of(a.out), stream, "gate_mul", GateMulBody{x, gate, out, activation});
  else
    for_each_piece(shape_of(a.out), stream, "gate_mul", RowGateBody{x, gate, out, activation, false});
}

bool add_gated_pieces_takes(const AddGatedArgs& a) {
  return in_pieces_of_bf16(a.x) && in_pieces_of_bf16(a.y) && a.x.shape == a.y.shape && is_row_gate(a.gate, a.x);
}

void add_gated_pieces(const AddGatedArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(add_gated_pieces_takes(a), a.x.shape_string(), ", gate ", a.gate.shape_string());
  for_each_piece(
      shape_of(a.x), stream, "add_gated",
      RowGateBody{view<bf16>(a.y), view<bf16>(a.gate), view<bf16>(a.x), static_cast<int>(a.activation), true});
}

bool add_rms_norm_pieces_takes(const AddRmsNormArgs& a) {
  return a.residual.rank == 2 && a.residual[1] <= kMaxPieces * kPiece && in_pieces_of_bf16(a.residual) &&
         (!a.update || in_pieces_of_bf16(a.update)) && in_pieces_of_bf16(a.out) && a.weight.rank == 1 &&
         aligned(a.weight);
}

void add_rms_norm_pieces(const AddRmsNormArgs& a, cudaStream_t stream) {
  Shapes shapes("add_rms_norm");
  shapes.bind(a.residual, "residual", {"R", "N"}).bind(a.out, "out", {"R", "N"}).bind(a.weight, "weight", {"N"});
  if (a.update) shapes.bind(a.update, "update", {"R", "N"});
  HYPIC_CHECK(add_rms_norm_pieces_takes(a));
  const auto R = static_cast<int>(shapes["R"]), pieces = static_cast<int>(shapes["N"] / kPiece);
  if (R == 0) return;
  const auto launch = [&]<int kWarps, int kLanePieces>() {
    launch_next("add_rms_norm", add_rms_norm_kernel<kWarps, kLanePieces>,
                dim3(static_cast<unsigned>(ceil_div(R, kThreads / 32 / kWarps))), dim3(kThreads), 0, stream,
                view<bf16>(a.residual), view<bf16>(a.update), static_cast<const bf16*>(a.weight.data),
                view<bf16>(a.out), R, pieces, static_cast<float>(a.scale), a.plus_one ? 1.0f : 0.0f,
                static_cast<float>(a.eps));
  };
  if (pieces <= kThreads / 4) return launch.template operator()<1, 2>();
  if (pieces <= kThreads / 2) return launch.template operator()<2, 2>();
  if (pieces <= kThreads) return launch.template operator()<4, 2>();
  if (pieces <= 2 * kThreads) return launch.template operator()<8, 2>();
  launch.template operator()<8, 4>();
}

bool gated_norm_pieces_takes(const GatedNormArgs& a) {
  if (!a.weight || a.x.rank != 3 || !in_pieces_of_bf16(a.x) || !in_pieces_of_bf16(a.gate) ||
      !in_pieces_of_bf16(a.out) || !aligned(a.weight))
    return false;
  const int64_t D = a.x[2];
  return (D == 64 || D == 128 || D == 256) && a.x[0] * a.x[1] < (1 << 30) && a.x.shape == a.gate.shape &&
         a.x.shape == a.out.shape && a.weight[a.weight.rank - 1] == D &&
         (a.weight.rank == 1 || (a.weight.rank == 2 && a.weight[0] == a.x[1]));
}

void gated_norm_pieces(const GatedNormArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(gated_norm_pieces_takes(a), a.x.shape_string(), ", weight ", a.weight.shape_string());
  const Shape shape = shape_of(a.x);
  const int64_t vectors = static_cast<int64_t>(shape.R) * shape.H;
  if (vectors == 0) return;
  const auto launch = [&]<int kLanes>(std::integral_constant<int, kLanes>) {
    launch_next("gated_norm", gated_norm_kernel<kLanes>,
                dim3(static_cast<unsigned>(ceil_div(vectors, kRows * kThreads / kLanes))), dim3(kThreads), 0, stream,
                view<bf16>(a.x), view<bf16>(a.gate), static_cast<const bf16*>(a.weight.data),
                a.weight.rank == 2 ? shape.D * kPiece : 0, view<bf16>(a.out), shape.R, shape.H,
                static_cast<float>(a.eps), static_cast<int>(a.activation), a.gate_first);
  };
  if (shape.D == 8) return launch(std::integral_constant<int, 8>{});
  if (shape.D == 16) return launch(std::integral_constant<int, 16>{});
  launch(std::integral_constant<int, 32>{});
}

}  // namespace hypic::cuda
