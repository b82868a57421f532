#include "kernels/ops/attention.cuh"

#include "kernels/common/rotation.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxPerLane = 32;  // V dims a lane: heads of up to 1024

template <class T>
struct Pages {  // [P, page size, H, D]
  T* data = nullptr;
  int64_t stride_page = 0, stride_token = 0, stride_h = 0;
  explicit Pages(const Tensor& t)
      : data(static_cast<T*>(t.data)), stride_page(t.stride[0]), stride_token(t.stride[1]), stride_h(t.stride[2]) {
    HYPIC_CHECK(t.rank == 4 && t.stride[3] == 1 && t.dtype == kDeviceDType<T>, t.shape_string());
  }
  __device__ T* token(const DeviceTable& table, int32_t page_begin, int32_t i, int64_t h) const {
    return data + table.pages[page_begin + i / table.page_size] * stride_page + (i % table.page_size) * stride_token +
           h * stride_h;
  }
};

template <class T>
__global__ void append_kernel(View<T> x, Pages<T> pages, int H, int D, DeviceTable table) {
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const Chain chain = table.chains[table.chain_of[r]];
  const int32_t i = chain.kv_begin + (r - chain.row_begin);
  for (int e = threadIdx.x; e < H * D; e += blockDim.x)
    pages.token(table, chain.page_begin, i, e / D)[e % D] = x.row(r, e / D)[e % D];
}

// One block a row and query head. Each warp takes every kWarps-th key with a softmax of its own, each lane some
// dims; the warps' parts are joined in the end. No part is ever empty for good: a row sees itself.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    attention_kernel(View<T> q, Pages<T> k_pages, Pages<T> v_pages, View<T> out, int D, int Dv, int group,
                     int rotary_dim, double theta, float scale, DeviceTable table) {
  extern __shared__ float shared[];  // [D] rotated q · [kWarps][Dv] sums · [kWarps] tops · [kWarps] divisors
  float* rotated = shared;
  float* sums = rotated + D;
  float* tops = sums + kWarps * Dv;
  float* divisors = tops + kWarps;
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int h = static_cast<int>(blockIdx.y), kv = h / group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Chain chain = table.chains[table.chain_of[r]];
  const int32_t position = table.positions[r];
  float top = -INFINITY, divisor = 0, sum[kMaxPerLane];
  const int per_lane = (Dv + 31) / 32;
#pragma unroll
  for (int j = 0; j < kMaxPerLane; ++j) sum[j] = 0;

  const auto part = [&](int32_t page_begin, int32_t first, int32_t last, int64_t distance) {
    __syncthreads();
    for (int i = threadIdx.x; i < D; i += blockDim.x) {
      const int half = rotary_dim / 2;
      const float x = load(q.row(r, h) + i);
      if (i >= rotary_dim) {
        rotated[i] = x;
      } else {
        const int pair = i < half ? i : i - half;
        const float other = load(q.row(r, h) + (i < half ? i + half : i - half));
        float s, c;
        rotation(distance, pair, rotary_dim, theta, &s, &c);
        rotated[i] = i < half ? c * x - s * other : s * other + c * x;
      }
    }
    __syncthreads();
    for (int32_t i = first + warp; i < last; i += kWarps) {
      const T* key = k_pages.token(table, page_begin, i, kv);
      float dot = 0;
      for (int d = lane; d < D; d += 32) dot += rotated[d] * load(key + d);
      const float score = scale * warp_sum(dot);
      const float raised = fmaxf(top, score), keep = expf(top - raised), p = expf(score - raised);
      top = raised;
      divisor = divisor * keep + p;
      const T* value = v_pages.token(table, page_begin, i, kv);
#pragma unroll
      for (int j = 0; j < kMaxPerLane; ++j)
        if (j < per_lane) {
          const int d = j * 32 + lane;
          sum[j] = sum[j] * keep + (d < Dv ? p * load(value + d) : 0.0f);
        }
    }
  };
  for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i) {
    const ResidueRef residue = table.residues[i];
    if (position < residue.start + residue.last) break;
    part(residue.page_begin, residue.first, residue.last, position - residue.shift);
  }
  part(chain.page_begin, 0, chain.kv_begin + (r - chain.row_begin) + 1, position);

  __syncthreads();
#pragma unroll
  for (int j = 0; j < kMaxPerLane; ++j)
    if (j < per_lane && j * 32 + lane < Dv) sums[warp * Dv + j * 32 + lane] = sum[j];
  if (lane == 0) {
    tops[warp] = top;
    divisors[warp] = divisor;
  }
  __syncthreads();
  float all = -INFINITY;
  for (int w = 0; w < kWarps; ++w) all = fmaxf(all, tops[w]);
  for (int d = threadIdx.x; d < Dv; d += blockDim.x) {
    float total = 0, weight = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float share = tops[w] == -INFINITY ? 0 : expf(tops[w] - all);  // a warp without keys
      total += share * sums[w * Dv + d];
      weight += share * divisors[w];
    }
    store(out.row(r, h) + d, total / weight);
  }
}

template <class T>
void append(const Tensor& x, const Tensor& pages, const TableUpload& table, cudaStream_t stream) {
  Shapes("append_kv").bind(x, "x", {"R", "H", "D"}).bind(pages, "pages", {"P", "page", "H", "D"});
  HYPIC_CHECK(x[0] == table.rows() && pages[1] == table.page_size());
  if (x[0] == 0) return;
  append_kernel<T><<<static_cast<unsigned>(x[0]), 128, 0, stream>>>(
      view<T>(x), Pages<T>(pages), static_cast<int>(x[1]), static_cast<int>(x[2]), table.device());
  check_launch("append_kv");
}

template <class T>
void attend(const AttentionArgs& a, const TableUpload& table, cudaStream_t stream) {
  const auto D = static_cast<int>(a.q[2]), Dv = static_cast<int>(a.out[2]);
  HYPIC_CHECK(Dv <= 32 * kMaxPerLane, "values of ", Dv, " dims");
  const size_t bytes = (D + kWarps * Dv + 2 * kWarps) * sizeof(float);
  const dim3 grid(static_cast<unsigned>(a.q[0]), static_cast<unsigned>(a.q[1]));
  attention_kernel<T><<<grid, 32 * kWarps, bytes, stream>>>(
      view<T>(a.q), Pages<T>(a.k_pages), Pages<T>(a.v_pages), view<T>(a.out), D, Dv,
      static_cast<int>(a.q[1] / a.k_pages[2]), a.rotary_dim, a.theta, static_cast<float>(a.scale), table.device());
  check_launch("attention");
}

}  // namespace

void append_kv(const AppendKvArgs& a, const TableUpload& table, cudaStream_t stream) {
  HYPIC_CHECK(static_cast<bool>(a.v) == static_cast<bool>(a.v_pages));
  visit_device(a.k.dtype, [&](auto zero) {
    append<decltype(zero)>(a.k, a.k_pages, table, stream);
    if (a.v) append<decltype(zero)>(a.v, a.v_pages, table, stream);
  });
}

void attention(const AttentionArgs& a, const TableUpload& table, cudaStream_t stream) {
  Shapes shapes("attention");
  shapes.bind(a.q, "q", {"R", "Hq", "D"}).bind(a.out, "out", {"R", "Hq", "Dv"})
      .bind(a.k_pages, "k_pages", {"P", "page", "Hkv", "D"}).bind(a.v_pages, "v_pages", {"P", "page", "Hkv", "Dv"});
  HYPIC_CHECK(shapes["R"] == table.rows() && shapes["page"] == table.page_size());
  HYPIC_CHECK(shapes["Hq"] % shapes["Hkv"] == 0 && a.rotary_dim % 2 == 0 && a.rotary_dim <= shapes["D"]);
  if (shapes["R"] == 0) return;
  visit_device(a.q.dtype, [&](auto zero) { attend<decltype(zero)>(a, table, stream); });
}

}  // namespace hypic::cuda
