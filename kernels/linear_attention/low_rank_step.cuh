// Chains that are one row, as in decode, of low_rank.cuh: what costs is to read the state and to write it.
#pragma once

#include "kernels/linear_attention/chunked_step.cuh"
#include "kernels/linear_attention/low_rank_args.cuh"

namespace hypic::cuda {

// Block x: chain of order[first, …) and head; y: columns. A thread has four columns of every 32nd row, so that S
// is read once: with r = −Sᵀb of the state that b reads, o = scale · ((eᵍ ⊙ S)ᵀq + (q·a) r + (q·k) d).
template <int kDk>
__global__ void __launch_bounds__(kStepThreads) step_low_rank_kernel(LowRankArgs p, int32_t first) {
  constexpr int kRows = kDk / 32, kWarps = kStepThreads / 32;
  __shared__ float4 sb_of[kWarps][8], sq_of[kWarps][8];
  __shared__ float2 dots_of[kWarps];  // q·a, q·k
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 8, row = threadIdx.x / 8;
  follow();
  const Chain& chain = p.table.chains[p.table.order[first + blockIdx.x / p.Hv]];
  const int h = static_cast<int>(blockIdx.x % p.Hv), kh = h / p.group;
  const int column = static_cast<int>(blockIdx.y) * kStepColumns + 4 * quad;
  const bool active = column < p.dv;
  const int32_t r = chain.row_begin;
  float* const S = p.state + (static_cast<int64_t>(chain.state) * p.Hv + h) * kDk * p.dv + column;

  float4 s[kRows] = {};
  if (active && !chain.fresh)
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      s[i] = *reinterpret_cast<const float4*>(S + (32 * i + row) * static_cast<int64_t>(p.dv));
  const float beta = p.beta ? p.beta.row(r)[h] : 1.0f;
  float k[kRows], q[kRows], a[kRows], b[kRows], g[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int dim = 32 * i + row;
    k[i] = load(p.k.row(r, kh) + dim);
    q[i] = load(p.q.row(r, kh) + dim);
    a[i] = p.a ? load(p.a.row(r, h) + dim) : k[i];
    b[i] = p.b ? load(p.b.row(r, h) + dim) : beta * k[i];
    g[i] = p.scalar ? p.g.row(r)[h] : p.g.row(r, h)[dim];
  }
  float4 d{};
  if (active) {
    const uint2 pair = *reinterpret_cast<const uint2*>(p.v.row(r, h) + column);
    const float2 low = unpack_bf16(pair.x), high = unpack_bf16(pair.y);
    d = beta * float4{low.x, low.y, high.x, high.y};
  }

  float4 sb{}, sq{};
  float qa = 0, qk = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float decayed = expf(g[i]);
    sb = sb + (p.before ? b[i] : decayed * b[i]) * s[i];
    sq = sq + decayed * q[i] * s[i];
    qa += q[i] * a[i];
    qk += q[i] * k[i];
  }
  sb = sum_rows(sb);
  sq = sum_rows(sq);
  qa = sum_rows(qa);
  qk = sum_rows(qk);
  if (lane < 8) {
    sb_of[warp][lane] = sb;
    sq_of[warp][lane] = sq;
    if (lane == 0) dots_of[warp] = {qa, qk};
  }
  __syncthreads();
  sb = sq = {};
  qa = qk = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    sb = sb + sb_of[i][quad];
    sq = sq + sq_of[i][quad];
    qa += dots_of[i].x;
    qk += dots_of[i].y;
  }
  if (!active) return;

#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const Decaying of(g[i]);
    const float4 change = k[i] * d + -a[i] * sb;
    *reinterpret_cast<float4*>(S + (32 * i + row) * static_cast<int64_t>(p.dv)) = {
        of(s[i].x, change.x), of(s[i].y, change.y), of(s[i].z, change.z), of(s[i].w, change.w)};
  }
  if (row == 0) {
    const float4 o = p.scale * (sq + (-qa * sb + qk * d));
    *reinterpret_cast<uint2*>(p.o.row(r, h) + column) = {pack_bf16(o.x, o.y), pack_bf16(o.z, o.w)};
  }
}

}  // namespace hypic::cuda
