#include "kernels/ops/pieces.cuh"

#include <algorithm>

#include "kernels/common/mma.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

using bf16 = __nv_bfloat16;
constexpr int kPiece = 8;
constexpr int kThreads = 256;
constexpr int kMaxPieces = 4;  // of a row a thread

// Eight bf16 as floats.
struct Piece {
  float at[kPiece];
  __device__ static Piece load(const bf16* from) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    Piece p;
    const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack_bf16(words[i]);
      p.at[2 * i] = pair.x;
      p.at[2 * i + 1] = pair.y;
    }
    return p;
  }
  // Stores it, and is what was stored.
  __device__ void store(bf16* to) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack_bf16(at[2 * i], at[2 * i + 1]);
      const float2 pair = unpack_bf16(words[i]);
      at[2 * i] = pair.x;
      at[2 * i + 1] = pair.y;
    }
    *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
  }
  __device__ float squares() const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) sum += at[i] * at[i];
    return sum;
  }
};

struct Shape {
  int R, H, D;  // D in pieces
};

bool in_pieces(const Tensor& t) {
  if (t.dtype != DType::bf16 || (t.rank != 2 && t.rank != 3) || t[t.rank - 1] % kPiece != 0 ||
      reinterpret_cast<uintptr_t>(t.data) % 16 != 0 || (t[t.rank - 1] > 1 && t.stride[t.rank - 1] != 1))
    return false;
  for (int axis = 0; axis + 1 < t.rank; ++axis)
    if (t[axis] > 1 && t.stride[axis] % kPiece != 0) return false;
  return t.size() < (int64_t{1} << 34);
}

bool aligned(const Tensor& weight) {
  return weight.dtype == DType::bf16 && weight.contiguous() && reinterpret_cast<uintptr_t>(weight.data) % 16 == 0;
}

Shape shape_of(const Tensor& t) {
  const int64_t D = t[t.rank - 1] / kPiece;
  return {static_cast<int>(t[0]), static_cast<int>(t.rank == 3 ? t[1] : 1), static_cast<int>(D)};
}

// body(r, h, first element) of every piece.
template <class Body>
__global__ void __launch_bounds__(kThreads) pieces_kernel(Shape shape, int64_t pieces, Body body) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= pieces) return;
  const auto vector = static_cast<uint32_t>(i / shape.D);
  body(vector / shape.H, vector % shape.H, static_cast<int>(i % shape.D) * kPiece);
}

template <class Body>
void for_each_piece(const Shape& shape, cudaStream_t stream, const char* name, Body body) {
  const int64_t pieces = static_cast<int64_t>(shape.R) * shape.H * shape.D;
  if (pieces == 0) return;
  pieces_kernel<<<static_cast<unsigned>(ceil_div(pieces, kThreads)), kThreads, 0, stream>>>(shape, pieces, body);
  check_launch(name);
}

// One block a row.
__global__ void __launch_bounds__(kThreads)
    add_rms_norm_kernel(View<bf16> residual, View<bf16> update, const bf16* weight, View<bf16> out, int pieces,
                        float scale, float offset, float eps) {
  __shared__ float sums[kThreads / 32];
  const int64_t r = blockIdx.x;
  Piece row[kMaxPieces];
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kMaxPieces; ++n) {
    const int at = (n * kThreads + static_cast<int>(threadIdx.x)) * kPiece;
    if (at >= pieces * kPiece) break;
    row[n] = Piece::load(residual.row(r) + at);
    if (update) {
      const Piece more = Piece::load(update.row(r) + at);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) row[n].at[i] += scale * more.at[i];
      row[n].store(residual.row(r) + at);
    }
    sum += row[n].squares();
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) sum += sums[w];
  const float factor = rsqrtf(sum / static_cast<float>(pieces * kPiece) + eps);
#pragma unroll
  for (int n = 0; n < kMaxPieces; ++n) {
    const int at = (n * kThreads + static_cast<int>(threadIdx.x)) * kPiece;
    if (at >= pieces * kPiece) break;
    const Piece w = Piece::load(weight + at);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) row[n].at[i] *= factor * (offset + w.at[i]);
    row[n].store(out.row(r) + at);
  }
}

// kLanes lanes a vector, one piece each.
template <int kLanes>
__global__ void __launch_bounds__(kThreads)
    gated_norm_kernel(View<bf16> x, View<bf16> gate, const bf16* weight, int weight_h, View<bf16> out, int R, int H,
                      float eps, int activation, bool gate_first) {
  const auto vector = static_cast<uint32_t>(blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes);
  const int at = static_cast<int>(threadIdx.x % kLanes) * kPiece;
  const bool valid = vector < static_cast<uint32_t>(R) * H;  // all lanes take part in the sum
  const uint32_t r = valid ? vector / H : 0, h = valid ? vector % H : 0;
  Piece p = Piece::load(x.row(r, h) + at);
  Piece g = Piece::load(gate.row(r, h) + at);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    g.at[i] = activate(g.at[i], activation);
    if (gate_first) p.at[i] *= g.at[i];
  }
  float sum = p.squares();
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  const float factor = rsqrtf(sum / (kLanes * kPiece) + eps);
  const Piece w = Piece::load(weight + h * weight_h + at);
#pragma unroll
  for (int i = 0; i < kPiece; ++i) p.at[i] *= factor * w.at[i] * (gate_first ? 1.0f : g.at[i]);
  if (valid) p.store(out.row(r, h) + at);
}

}  // namespace

bool add_pieces_takes(const AddArgs& a) { return in_pieces(a.x) && in_pieces(a.y); }

void add_pieces(const AddArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(add_pieces_takes(a) && a.x.shape == a.y.shape, a.x.shape_string(), " and ", a.y.shape_string());
  const View<bf16> x = view<bf16>(a.x), y = view<bf16>(a.y);
  const auto alpha = static_cast<float>(a.alpha), beta = static_cast<float>(a.beta);
  for_each_piece(shape_of(a.x), stream, "add", [=] __device__(int64_t r, int64_t h, int d) {
    Piece p = Piece::load(x.row(r, h) + d);
    const Piece more = Piece::load(y.row(r, h) + d);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) p.at[i] = alpha * p.at[i] + beta * more.at[i];
    p.store(x.row(r, h) + d);
  });
}

bool gate_mul_pieces_takes(const GateMulArgs& a) {
  const bool by_row = a.x && a.gate.rank == 2 && a.gate[1] == 1 && a.gate.dtype == DType::bf16;
  return in_pieces(a.out) && (!a.x || (in_pieces(a.x) && a.x.shape == a.out.shape)) &&
         ((by_row && a.gate[0] == a.out[0]) || (in_pieces(a.gate) && a.gate.shape == a.out.shape));
}

void gate_mul_pieces(const GateMulArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(gate_mul_pieces_takes(a), a.out.shape_string(), ", gate ", a.gate.shape_string());
  const View<bf16> x = view<bf16>(a.x), gate = view<bf16>(a.gate), out = view<bf16>(a.out);
  const bool by_row = a.gate.shape != a.out.shape;
  const int activation = static_cast<int>(a.activation);
  for_each_piece(shape_of(a.out), stream, "gate_mul", [=] __device__(int64_t r, int64_t h, int d) {
    Piece p;
    if (by_row) {
      const float g = activate(load(gate.row(r)), activation);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) p.at[i] = g;
    } else {
      p = Piece::load(gate.row(r, h) + d);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) p.at[i] = activate(p.at[i], activation);
    }
    if (x) {
      const Piece values = Piece::load(x.row(r, h) + d);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) p.at[i] *= values.at[i];
    }
    p.store(out.row(r, h) + d);
  });
}

bool add_rms_norm_pieces_takes(const AddRmsNormArgs& a) {
  return a.residual.rank == 2 && a.residual[1] <= kMaxPieces * kThreads * kPiece && in_pieces(a.residual) &&
         (!a.update || in_pieces(a.update)) && in_pieces(a.out) && a.weight.rank == 1 && aligned(a.weight);
}

void add_rms_norm_pieces(const AddRmsNormArgs& a, cudaStream_t stream) {
  Shapes shapes("add_rms_norm");
  shapes.bind(a.residual, "residual", {"R", "N"}).bind(a.out, "out", {"R", "N"}).bind(a.weight, "weight", {"N"});
  if (a.update) shapes.bind(a.update, "update", {"R", "N"});
  HYPIC_CHECK(add_rms_norm_pieces_takes(a));
  if (shapes["R"] == 0) return;
  add_rms_norm_kernel<<<static_cast<unsigned>(shapes["R"]), kThreads, 0, stream>>>(
      view<bf16>(a.residual), view<bf16>(a.update), static_cast<const bf16*>(a.weight.data), view<bf16>(a.out),
      static_cast<int>(shapes["N"] / kPiece), static_cast<float>(a.scale), a.plus_one ? 1.0f : 0.0f,
      static_cast<float>(a.eps));
  check_launch("add_rms_norm");
}

bool gated_norm_pieces_takes(const GatedNormArgs& a) {
  if (!a.weight || a.x.rank != 3 || !in_pieces(a.x) || !in_pieces(a.gate) || !in_pieces(a.out) || !aligned(a.weight))
    return false;
  const int64_t D = a.x[2];
  return (D == 64 || D == 128 || D == 256) && a.x.shape == a.gate.shape && a.x.shape == a.out.shape &&
         a.weight[a.weight.rank - 1] == D && (a.weight.rank == 1 || (a.weight.rank == 2 && a.weight[0] == a.x[1]));
}

void gated_norm_pieces(const GatedNormArgs& a, cudaStream_t stream) {
  HYPIC_CHECK(gated_norm_pieces_takes(a), a.x.shape_string(), ", weight ", a.weight.shape_string());
  const Shape shape = shape_of(a.x);
  const int64_t vectors = static_cast<int64_t>(shape.R) * shape.H;
  if (vectors == 0) return;
  const auto launch = [&]<int kLanes>(std::integral_constant<int, kLanes>) {
    gated_norm_kernel<kLanes><<<static_cast<unsigned>(ceil_div(vectors, kThreads / kLanes)), kThreads, 0, stream>>>(
        view<bf16>(a.x), view<bf16>(a.gate), static_cast<const bf16*>(a.weight.data),
        a.weight.rank == 2 ? shape.D * kPiece : 0, view<bf16>(a.out), shape.R, shape.H, static_cast<float>(a.eps),
        static_cast<int>(a.activation), a.gate_first);
    check_launch("gated_norm");
  };
  if (shape.D == 8) return launch(std::integral_constant<int, 8>{});
  if (shape.D == 16) return launch(std::integral_constant<int, 16>{});
  launch(std::integral_constant<int, 32>{});
}

}  // namespace hypic::cuda
