// Chains that are one row where a decay is one a key dim. By chunked_step.cuh, with decays in shared memory, this took
// 3 to 4 % longer.
#pragma once

#include "kernels/linear_attention/chunked_step.cuh"

namespace hypic::cuda {

// Block x: chain of order[first, …) and head; y: columns. A thread has four columns of every 32nd row, so that S
// is read once: o = scale · (Sᵀ eᵍq + (q·k) x) needs no second pass.
template <bool kDelta, int kDk>
__global__ void __launch_bounds__(kStepThreads) diagonal_step_kernel(ChunkedArgs p, int32_t first) {
  constexpr int kRows = kDk / 32, kWarps = kStepThreads / 32;
  __shared__ float4 sk_of[kWarps][8], sq_of[kWarps][8];
  __shared__ float qk_of[kWarps];
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
  float k[kRows], q[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    k[i] = load(p.k.row(r, kh) + 32 * i + row);
    q[i] = load(p.q.row(r, kh) + 32 * i + row);
  }
  const float beta = p.beta ? p.beta.row(r)[h] : 1.0f;
  float own[kRows];  // log decays of this thread's rows
#pragma unroll
  for (int i = 0; i < kRows; ++i) own[i] = p.g.row(r, h)[32 * i + row];
  float4 v{};
  if (active) {
    const uint2 pair = *reinterpret_cast<const uint2*>(p.v.row(r, h) + column);
    const float2 low = unpack_bf16(pair.x), high = unpack_bf16(pair.y);
    v = {low.x, low.y, high.x, high.y};
  }

  float4 sk{}, sq{};
  float qk = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float decayed = expf(own[i]);
    if constexpr (kDelta) sk = sk + decayed * k[i] * s[i];
    sq = sq + decayed * q[i] * s[i];
    qk += q[i] * k[i];
  }
  if constexpr (kDelta) sk = sum_rows(sk);
  sq = sum_rows(sq);
  qk = sum_rows(qk);
  if (lane < 8) {
    sk_of[warp][lane] = sk;
    sq_of[warp][lane] = sq;
    if (lane == 0) qk_of[warp] = qk;
  }
  __syncthreads();
  sk = sq = {};
  qk = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if constexpr (kDelta) sk = sk + sk_of[i][quad];
    sq = sq + sq_of[i][quad];
    qk += qk_of[i];
  }
  if (!active) return;

  const float4 x = beta * (v + -1.0f * sk);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const Decaying of(own[i]);
    *reinterpret_cast<float4*>(S + (32 * i + row) * static_cast<int64_t>(p.dv)) = {
        of(s[i].x, k[i] * x.x), of(s[i].y, k[i] * x.y), of(s[i].z, k[i] * x.z), of(s[i].w, k[i] * x.w)};
  }
  if (row == 0) {
    float4 o = p.scale * (sq + qk * x);
    if (p.skip) o = o + p.skip[h] * v;
    *reinterpret_cast<uint2*>(p.o.row(r, h) + column) = {pack_bf16(o.x, o.y), pack_bf16(o.z, o.w)};
  }
}

}  // namespace hypic::cuda
