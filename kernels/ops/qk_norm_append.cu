#include "kernels/ops/qk_norm_append.cuh"

#include "kernels/common/launch_next.cuh"
#include "kernels/common/piece.cuh"
#include "kernels/common/rotation_table.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

using bf16 = __nv_bfloat16;
using Eight = Piece<bf16>;
constexpr int kPiece = Eight::kSize;
constexpr int kThreads = 128;
constexpr int kVectors = 2;  // of a thread at a time

struct Pages {  // [P, page size, H, D]
  bf16* data;
  int64_t stride_page, stride_token, stride_h;
  explicit Pages(const Tensor& t)
      : data(static_cast<bf16*>(t.data)), stride_page(t.stride[0]), stride_token(t.stride[1]), stride_h(t.stride[2]) {}
  __device__ bf16* at(int64_t page, int32_t token, int h) const {
    return data + page * stride_page + token * stride_token + h * stride_h;
  }
};

struct Args {
  View<bf16> q, k, v, q_out, k_out;
  Pages k_pages, v_pages;
  const bf16 *q_weight, *k_weight;  // null: no norm
  const int32_t* positions;
  RotationTable rotations;
  int Hq, Hk;
  uint32_t vectors;  // Hq + 2 · Hk of each row: heads of q, of k, of v
  float offset, eps;
  DeviceTable table;
};

// kLanes lanes a head, one piece each.
template <int kLanes>
__global__ void __launch_bounds__(kThreads) heads_kernel(Args a) {
  constexpr int kAtOnce = kThreads / kLanes;  // vectors of a block
  const uint32_t first = blockIdx.x * (kVectors * kAtOnce) + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x % kLanes), at = lane * kPiece, heads = a.Hq + 2 * a.Hk;
  follow();
  uint4 values[kVectors];
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    const uint32_t i = min(first + n * kAtOnce, a.vectors - 1);  // all lanes take part in sums
    const uint32_t r = i / heads;
    const int h = static_cast<int>(i - r * heads);
    values[n] = Eight::bits(at + (h < a.Hq          ? a.q.row(r, h)
                                  : h < a.Hq + a.Hk ? a.k.row(r, h - a.Hq)
                                                    : a.v.row(r, h - a.Hq - a.Hk)));
  }
#pragma unroll
  for (int n = 0; n < kVectors; ++n) {
    const uint32_t i = min(first + n * kAtOnce, a.vectors - 1);
    const uint32_t r = i / heads;
    const int h = static_cast<int>(i - r * heads);
    const bool is_q = h < a.Hq, is_k = !is_q && h < a.Hq + a.Hk, valid = first + n * kAtOnce < a.vectors;
    Eight p(values[n]);
    const float sum = lanes_sum(p.squares(), kLanes);
    const bf16* const weight = is_q ? a.q_weight : is_k ? a.k_weight : nullptr;
    if (weight) {
      const float factor = rsqrtf(sum / (kLanes * kPiece) + a.eps);
      const Eight w = Eight::load(weight + at);
#pragma unroll
      for (int j = 0; j < kPiece; ++j) p.at[j] *= factor * (a.offset + w.at[j]);
    }
    if (a.rotations.pairs > 0) {
      const int half = a.rotations.pairs / kPiece;  // lanes that hold the first of each pair
      const int partner = lane < half ? lane + half : lane < 2 * half ? lane - half : lane;
      Eight other;
#pragma unroll
      for (int j = 0; j < kPiece; ++j) other.at[j] = __shfl_sync(0xffffffffu, p.at[j], partner, kLanes);
      if (is_k && lane < 2 * half) {
        const int32_t position = a.positions[r];
#pragma unroll
        for (int j = 0; j < kPiece; ++j) {
          const float2 rotation = a.rotations.at(position, min(lane, partner) * kPiece + j);
          p.at[j] = rotation.x * p.at[j] + (lane < half ? -rotation.y : rotation.y) * other.at[j];
        }
      }
    }
    if (!valid) continue;
    if (is_q) {
      p.store(a.q_out.row(r, h) + at);
      continue;
    }
    const Chain chain = a.table.chains[a.table.chain_of[r]];
    const int32_t token = chain.kv_begin + (static_cast<int32_t>(r) - chain.row_begin);
    const int64_t page = a.table.pages[chain.page_begin + token / a.table.page_size];
    const int32_t in_page = token % a.table.page_size;
    if (is_k) {
      p.store(a.k_pages.at(page, in_page, h - a.Hq) + at);
      p.store(a.k_out.row(r, h - a.Hq) + at);
    } else {
      p.store(a.v_pages.at(page, in_page, h - a.Hq - a.Hk) + at);
    }
  }
}

}  // namespace

bool qk_norm_append_heads_takes(const QkNormAppendArgs& a, const TableUpload& table) {
  const auto heads = [](const Tensor& t) { return t.rank == 3 && t.dtype == DType::bf16 && in_pieces(t); };
  const auto pages = [&](const Tensor& t) {
    return t.rank == 4 && t.dtype == DType::bf16 && in_pieces(t) && t[3] == a.k[2];
  };
  const auto weight = [&](const Tensor& w) {
    return !w || (w.rank == 1 && w[0] == a.k[2] && w.dtype == DType::bf16 && w.contiguous() &&
                  reinterpret_cast<uintptr_t>(w.data) % 16 == 0);
  };
  if (!heads(a.q) || !heads(a.k) || !heads(a.v) || !heads(a.q_out) || !heads(a.k_out)) return false;
  const int64_t D = a.k[2];
  return (D == 64 || D == 128 || D == 256) && a.v.shape == a.k.shape && pages(a.k_pages) && pages(a.v_pages) &&
         weight(a.q_weight) && weight(a.k_weight) && a.rotary_dim % 16 == 0 && 0 <= a.rotary_dim &&
         a.rotary_dim <= D && (a.rotary_dim == 0 || table.max_position() <= kMaxRotation) &&
         a.q[0] * (a.q[1] + 2 * a.k[1]) < (1 << 30);
}

void qk_norm_append_heads(const QkNormAppendArgs& a, const TableUpload& table, cudaStream_t stream) {
  Shapes shapes("qk_norm_append");
  shapes.bind(a.q, "q", {"R", "Hq", "D"}).bind(a.k, "k", {"R", "Hkv", "D"}).bind(a.q_out, "q_out", {"R", "Hq", "D"})
      .bind(a.k_out, "k_out", {"R", "Hkv", "D"}).bind(a.positions, "positions", {"R"})
      .bind(a.k_pages, "k_pages", {"P", "page", "Hkv", "D"}).bind(a.v_pages, "v_pages", {"P", "page", "Hkv", "D"});
  HYPIC_CHECK(qk_norm_append_heads_takes(a, table) && shapes["R"] == table.rows() &&
              shapes["page"] == table.page_size());
  const int64_t vectors = shapes["R"] * (shapes["Hq"] + 2 * shapes["Hkv"]), D = shapes["D"];
  if (vectors == 0) return;
  const Args args = {.q = view<bf16>(a.q),
                     .k = view<bf16>(a.k),
                     .v = view<bf16>(a.v),
                     .q_out = view<bf16>(a.q_out),
                     .k_out = view<bf16>(a.k_out),
                     .k_pages = Pages(a.k_pages),
                     .v_pages = Pages(a.v_pages),
                     .q_weight = static_cast<const bf16*>(a.q_weight.data),
                     .k_weight = static_cast<const bf16*>(a.k_weight.data),
                     .positions = a.positions.as<int32_t>(),
                     .rotations = rotation_table(a.rotary_dim, a.theta),
                     .Hq = static_cast<int>(shapes["Hq"]),
                     .Hk = static_cast<int>(shapes["Hkv"]),
                     .vectors = static_cast<uint32_t>(vectors),
                     .offset = a.plus_one ? 1.0f : 0.0f,
                     .eps = static_cast<float>(a.eps),
                     .table = table.device()};
  const auto launch = [&]<int kLanes>(std::integral_constant<int, kLanes>) {
    launch_next("qk_norm_append", heads_kernel<kLanes>,
                dim3(static_cast<unsigned>(ceil_div(vectors, kVectors * kThreads / kLanes))), dim3(kThreads), 0, stream,
                args);
  };
  if (D == 64) return launch(std::integral_constant<int, 8>{});
  if (D == 128) return launch(std::integral_constant<int, 16>{});
  launch(std::integral_constant<int, 32>{});
}

}  // namespace hypic::cuda
