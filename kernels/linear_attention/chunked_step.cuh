// Chains that are one row, as in decode, decay none or scalar: what costs is to read the state and to write it.
#pragma once

#include "kernels/common/launch_next.cuh"
#include "kernels/linear_attention/chunked_args.cuh"
#include "kernels/linear_attention/decaying.cuh"

namespace hypic::cuda {

inline constexpr int kStepThreads = 256;
inline constexpr int kStepColumns = 32;  // of a block, where the kernel is not made for several widths

__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
__device__ inline float4 operator*(float a, float4 b) { return {a * b.x, a * b.y, a * b.z, a * b.w}; }
__device__ inline float4 fma(float a, float4 b, float4 c) {
  return {fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w)};
}
__device__ inline float4 shuffle_xor(float4 x, int lanes) {
  return {__shfl_xor_sync(0xffffffffu, x.x, lanes), __shfl_xor_sync(0xffffffffu, x.y, lanes),
          __shfl_xor_sync(0xffffffffu, x.z, lanes), __shfl_xor_sync(0xffffffffu, x.w, lanes)};
}

// Of lanes 8 and 16 apart, the sum.
__device__ inline float sum_rows(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 8);
  return x + __shfl_xor_sync(0xffffffffu, x, 16);
}
__device__ inline float4 sum_rows(float4 x) { return {sum_rows(x.x), sum_rows(x.y), sum_rows(x.z), sum_rows(x.w)}; }

// Of four neighbouring rows, of which a thread has kOwn and lanes 8 and 16 apart have the others: (0 + 1) + (2 + 3).
template <int kOwn>
__device__ inline float4 sum_rows(const float4 (&x)[kOwn]) {
  if constexpr (kOwn == 4) {
    return (x[0] + x[1]) + (x[2] + x[3]);
  } else {
    const float4 pair = kOwn == 2 ? x[0] + x[kOwn - 1] : x[0] + shuffle_xor(x[0], 8);
    return pair + shuffle_xor(pair, 16);
  }
}

// Block x: chain of order[first, …) and head; y: kColumns columns. Of each 32 rows a warp has four, a thread four
// columns of kColumns / 32 of them. S is read once, for o = scale · (eᵍ Sᵀq + (q·k) x) needs no second pass. All sums
// are in one order whatever kColumns.
template <bool kDelta, int kDk, int kColumns>
__global__ void __launch_bounds__(kStepThreads) step_kernel(ChunkedArgs p, int32_t first) {
  constexpr int kRounds = kDk / 32, kOwn = kColumns / 32, kWarps = kStepThreads / 32, kQuads = kColumns / 4;
  __shared__ float2 keys[kDk];  // k and q
  __shared__ float4 sk_of[kWarps][kQuads], sq_of[kWarps][kQuads];
  __shared__ float qk_of[kRounds];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % kQuads;
  follow();
  const Chain& chain = p.table.chains[p.table.order[first + blockIdx.x / p.Hv]];
  const int h = static_cast<int>(blockIdx.x % p.Hv), kh = h / p.group;
  const int column = static_cast<int>(blockIdx.y) * kColumns + 4 * quad;
  const bool active = column < p.dv;
  const int32_t r = chain.row_begin;
  const auto row = [&](int i, int m) { return 32 * i + 4 * warp + lane / kQuads * kOwn + m; };
  float* const S = p.state + (static_cast<int64_t>(chain.state) * p.Hv + h) * kDk * p.dv + column;

  // What is worked on while S is under way is asked for first.
  float k = 0, q = 0;
  if (threadIdx.x < kDk) {
    k = load(p.k.row(r, kh) + threadIdx.x);
    q = load(p.q.row(r, kh) + threadIdx.x);
  }
  float4 s[kRounds][kOwn] = {};
  if (active && !chain.fresh)
#pragma unroll
    for (int i = 0; i < kRounds; ++i)
#pragma unroll
      for (int m = 0; m < kOwn; ++m)
        s[i][m] = *reinterpret_cast<const float4*>(S + row(i, m) * static_cast<int64_t>(p.dv));
  if (threadIdx.x < kDk) {
    keys[threadIdx.x] = {k, q};
    const float qk = warp_sum(q * k);
    if (lane == 0) qk_of[warp] = qk;
  }
  const float gate = p.g ? p.g.row(r)[h] : 0.0f, beta = p.beta ? p.beta.row(r)[h] : 1.0f;
  float4 v{};
  if (active) {
    const uint2 pair = *reinterpret_cast<const uint2*>(p.v.row(r, h) + column);
    const float2 low = unpack_bf16(pair.x), high = unpack_bf16(pair.y);
    v = {low.x, low.y, high.x, high.y};
  }
  __syncthreads();

  float4 sk_own[kOwn] = {}, sq_own[kOwn] = {};
#pragma unroll
  for (int i = 0; i < kRounds; ++i)
#pragma unroll
    for (int m = 0; m < kOwn; ++m) {
      const float2 key = keys[row(i, m)];
      if constexpr (kDelta) sk_own[m] = fma(key.x, s[i][m], sk_own[m]);
      sq_own[m] = fma(key.y, s[i][m], sq_own[m]);
    }
  float4 sk = kDelta ? sum_rows(sk_own) : float4{}, sq = sum_rows(sq_own);
  if (lane < kQuads) {
    if constexpr (kDelta) sk_of[warp][lane] = sk;
    sq_of[warp][lane] = sq;
  }
  __syncthreads();
  if (!active) return;

  const float decayed = expf(gate);
  const Decaying decay(gate);
  float4 x = v;
  if constexpr (kDelta) {
    sk = {};
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sk = sk + sk_of[i][quad];
    x = v + -decayed * sk;
  }
  x = beta * x;
#pragma unroll
  for (int i = 0; i < kRounds; ++i)
#pragma unroll
    for (int m = 0; m < kOwn; ++m) {
      const float2 key = keys[row(i, m)];
      *reinterpret_cast<float4*>(S + row(i, m) * static_cast<int64_t>(p.dv)) = {
          decay(s[i][m].x, key.x * x.x), decay(s[i][m].y, key.x * x.y), decay(s[i][m].z, key.x * x.z),
          decay(s[i][m].w, key.x * x.w)};
    }
  if (threadIdx.x >= kQuads) return;
  sq = {};
  float qk = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sq = sq + sq_of[i][quad];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) qk += qk_of[i];
  float4 o = p.scale * (decayed * sq + qk * x);
  if (p.skip) o = o + p.skip[h] * v;
  *reinterpret_cast<uint2*>(p.o.row(r, h) + column) = {pack_bf16(o.x, o.y), pack_bf16(o.z, o.w)};
}

}  // namespace hypic::cuda
