// Chains that are one row, as in decode: what costs is to read the state and to write it.
#pragma once

#include "kernels/common/launch_next.cuh"
#include "kernels/linear_attention/elementwise_args.cuh"

namespace hypic::cuda {

// Block x: chain of order[first, …) and head; y: channels, a thread one. The same arithmetic as along a longer chain.
template <class Element>
__global__ void __launch_bounds__(kEntryStepChannels) elementwise_step_kernel(EntryArgs<Element> p, int32_t first) {
  __shared__ float k[kEntryKeys], q[kEntryKeys];
  follow();
  const Chain& chain = p.table.chains[p.table.order[first + blockIdx.x / p.Hv]];
  const int h = static_cast<int>(blockIdx.x % p.Hv), kh = h / p.group, thread = static_cast<int>(threadIdx.x);
  const int j = static_cast<int>(blockIdx.y) * kEntryStepChannels + thread;
  const int32_t r = chain.row_begin;
  float* const S = p.state + p.at(chain.state, h) + j;
  const float* const A = p.A + p.at(0, h) + j;
  const bool active = j < p.dv;

  float x[kEntryKeys], rate[kEntryKeys];
#pragma unroll
  for (int i = 0; i < kEntryKeys; ++i) {
    const bool has = active && i < p.dk;
    x[i] = has && !chain.fresh ? S[static_cast<int64_t>(i) * p.dv] : 0.0f;
    rate[i] = has ? A[static_cast<int64_t>(i) * p.dv] : 0.0f;
  }
  const float delta = active ? p.g.row(r, h)[j] : 0.0f, v = active ? load(p.v.row(r, h) + j) : 0.0f;
  const float d = p.beta ? v * p.beta.row(r)[h] : v;
  if (thread < kEntryKeys)
    k[thread] = thread < p.dk ? load(p.k.row(r, kh) + thread) : 0.0f;
  else if (thread < 2 * kEntryKeys)
    q[thread - kEntryKeys] = thread - kEntryKeys < p.dk ? load(p.q.row(r, kh) + thread - kEntryKeys) : 0.0f;
  __syncthreads();
  if (!active) return;

  float part[kEntryKeys];
#pragma unroll
  for (int i = 0; i < kEntryKeys; ++i) {
    x[i] = EntryDecay(delta * rate[i])(x[i], __fmul_rn(k[i], d));
    if (i < p.dk) S[static_cast<int64_t>(i) * p.dv] = x[i];
    part[i] = __fmul_rn(q[i], x[i]);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEntryKeys / 2; ++i) sum += __fadd_rn(part[i], part[i + kEntryKeys / 2]);
  float o = p.scale * sum;
  if (p.skip) o += p.skip[h] * v;
  store(p.o.row(r, h) + j, o);
}

}  // namespace hypic::cuda
