// A kernel plug-in on a GPU: gated_delta_rule.c with a thread for each column of a head's state. Columns do not depend
// on one another, so nothing is exchanged; it is right, and slow.
//
//     nvcc -O2 -arch=sm_90a -shared -Xcompiler -fPIC -cudart static -Ikernels/plugin \
//       kernels/plugin/examples/gated_delta_rule.cu -o gdr_cuda.so
//     hypic conformance --backend cuda --kernel gdr_cuda.so --family gated_delta_net
#include <cuda_bf16.h>

#include <cstdio>

#include "hypic_kernel.h"

namespace {

template <class T>
struct Rows {  // element [i, j] of a tensor's first two axes
  T* data;
  int64_t outer, inner;
  __device__ T* operator()(int64_t i, int64_t j) const { return data + i * outer + j * inner; }
};

template <class T>
Rows<T> rows_of(const DLTensor* t) {
  return t ? Rows<T>{static_cast<T*>(t->data), t->strides[0], t->strides[1]} : Rows<T>{};
}

template <class Operand>
struct Args {
  Rows<const Operand> q, k, v;
  Rows<Operand> o;
  Rows<const float> g, beta;
  Rows<float> state, log_scale, T, U;
  float *S, *aside;  // scratch: a state for each block
  const hypic_chain* chains;
  const hypic_item* items;
  int first_chain, heads, per_key, dk, dv, rotary_dim;
  double scale, theta;
};

// x <- e^g x + change. For slow decays expm1 carries the digits: a rounded e^g drifts over long prompts.
struct Decay {
  bool slow;
  float e;
  explicit __device__ Decay(float g) : slow(g > -0.5f), e(slow ? expm1f(g) : expf(g)) {}
  __device__ float of(float x, float change) const { return slow ? x + (e * x + change) : e * x + change; }
};

// Column m of [dk, n] <- (I − β k kᵀ) e^g m + β k v.
template <class Operand>
__device__ void advance(const Args<Operand>& x, int64_t r, int h, float g, float* m, int64_t n, float v) {
  const Operand* k = x.k(r, h / x.per_key);
  const Decay decay(g);
  float dot = 0;
  for (int i = 0; i < x.dk; ++i) dot += float(k[i]) * decay.of(m[i * n], 0);
  const float update = (x.beta.data ? *x.beta(r, h) : 1) * (v - dot);
  for (int i = 0; i < x.dk; ++i) m[i * n] = decay.of(m[i * n], float(k[i]) * update);
}

template <class Operand>
__device__ void read_out(const Args<Operand>& x, int64_t r, int h, const float* S, int j) {
  const Operand* q = x.q(r, h / x.per_key);
  float sum = 0;
  for (int i = 0; i < x.dk; ++i) sum += float(q[i]) * S[i * x.dv];
  x.o(r, h)[j] = Operand(sum * float(x.scale));
}

// Rows (i, i + rotary_dim / 2) of a column, turned by `shift` positions.
template <class Operand>
__device__ void turn(const Args<Operand>& x, float* m, double shift) {
  const int half = x.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    double s, c;
    sincos(shift * pow(x.theta, -double(i) / half), &s, &c);
    float &low = m[i * x.dv], &high = m[(i + half) * x.dv];
    const float a = low, b = high;
    low = float(c) * a - float(s) * b;
    high = float(s) * a + float(c) * b;
  }
}

template <class Operand>
__device__ void jump(const Args<Operand>& x, const hypic_item& item, int h, float* S, float* aside, int j) {
  const double shift = x.rotary_dim > 0 ? item.shift : 0;
  if (item.compose == HYPIC_ZERO) {
    for (int i = 0; i < x.dk; ++i) S[i * x.dv] = 0;
    return;
  }
  for (int i = 0; i < x.dk; ++i) aside[i * x.dv] = x.U(item.op, h)[i * x.dv + j];
  if (item.compose == HYPIC_TRANSFER) {
    const float* T = x.T(item.op, h);
    const float scale = expf(*x.log_scale(item.op, h));
    turn(x, S, -shift);
    for (int i = 0; i < x.dk; ++i)
      for (int m = 0; m < x.dk; ++m) aside[i * x.dv] += scale * T[i * x.dk + m] * S[m * x.dv];
  }
  turn(x, aside, shift);
  for (int i = 0; i < x.dk; ++i) S[i * x.dv] = aside[i * x.dv] + (item.compose == HYPIC_ADD ? S[i * x.dv] : 0);
}

// Threads [0, dv): columns of S and U; [dv, dv + dk): columns of T, which log_scale keeps the decay of.
template <class Operand>
__global__ void chain_kernel(Args<Operand> x) {
  const hypic_chain chain = x.chains[x.first_chain + blockIdx.x];
  const int h = blockIdx.y, j = threadIdx.x, t = j - x.dv;
  const int64_t at = (int64_t(blockIdx.x) * x.heads + h) * x.dk * x.dv + j;
  float *S = x.S + at, *aside = x.aside + at;
  if (t < 0)
    for (int i = 0; i < x.dk; ++i) S[i * x.dv] = chain.fresh ? 0 : x.state(chain.state, h)[i * x.dv + j];
  for (int n = chain.item_begin; n < chain.item_end; ++n) {
    const hypic_item item = x.items[n];
    if (t < 0) {
      if (item.kind == HYPIC_JUMP) {
        jump(x, item, h, S, aside, j);
      } else {
        if (!item.keep)
          for (int i = 0; i < x.dk; ++i) aside[i * x.dv] = S[i * x.dv];
        for (int r = item.begin; r < item.end; ++r) {
          advance(x, r, h, *x.g(r, h), S, x.dv, float(x.v(r, h)[j]));
          read_out(x, r, h, S, j);
        }
        if (!item.keep)
          for (int i = 0; i < x.dk; ++i) S[i * x.dv] = aside[i * x.dv];
      }
      if (item.save >= 0)
        for (int i = 0; i < x.dk; ++i) x.state(item.save, h)[i * x.dv + j] = S[i * x.dv];
    }
    if (item.kind == HYPIC_STEP && item.op >= 0) {
      const int64_t n_columns = t < 0 ? x.dv : x.dk;
      float* column = t < 0 ? x.U(item.op, h) + j : x.T(item.op, h) + t;
      if (item.span == 0)
        for (int i = 0; i < x.dk; ++i) column[i * n_columns] = i == t;
      for (int r = item.begin; r < item.end; ++r)
        advance(x, r, h, t < 0 ? *x.g(r, h) : 0, column, n_columns, t < 0 ? float(x.v(r, h)[j]) : 0);
      if (j == 0) {
        float sum = item.span == 0 ? 0 : *x.log_scale(item.op, h);
        for (int r = item.begin; r < item.end; ++r) sum += *x.g(r, h);
        *x.log_scale(item.op, h) = sum;
      }
    }
  }
  if (t < 0)
    for (int i = 0; i < x.dk; ++i) x.state(chain.state, h)[i * x.dv + j] = S[i * x.dv];
}

template <class Operand>
int32_t run(const hypic_call* call, const hypic_linear_attention* a) {
  const hypic_chains* table = call->chains;
  const auto stream = static_cast<cudaStream_t>(call->stream);
  Args<Operand> x{};
  x.q = rows_of<const Operand>(a->q), x.k = rows_of<const Operand>(a->k), x.v = rows_of<const Operand>(a->v);
  x.o = rows_of<Operand>(a->o), x.g = rows_of<const float>(a->g), x.beta = rows_of<const float>(a->beta);
  x.state = rows_of<float>(a->state), x.log_scale = rows_of<float>(a->log_scale);
  x.T = rows_of<float>(a->T), x.U = rows_of<float>(a->U);
  x.chains = call->on_device->chains, x.items = call->on_device->items;
  x.heads = int(a->v->shape[1]), x.per_key = int(a->v->shape[1] / a->k->shape[1]);
  x.dk = int(a->k->shape[2]), x.dv = int(a->v->shape[2]);
  x.rotary_dim = a->rotary_dim, x.scale = a->scale, x.theta = a->rope_theta;
  if (x.dk < 1 || x.dv < 1 || x.dk + x.dv > 1024) {
    snprintf(call->message, call->message_size, "heads of %d x %d", x.dk, x.dv);
    return HYPIC_UNSUPPORTED;
  }
  if (table->chain_count == 0) return HYPIC_OK;
  const size_t states = size_t(table->chain_count) * x.heads * x.dk * x.dv;
  cudaError_t error = cudaMallocAsync(reinterpret_cast<void**>(&x.S), 2 * sizeof(float) * states, stream);
  x.aside = x.S + states;
  // A launch a level: its jumps read operators of the levels before it.
  for (int end = 0; error == cudaSuccess && end < table->chain_count;) {
    x.first_chain = end;
    while (end < table->chain_count && table->chains[end].level == table->chains[x.first_chain].level) ++end;
    chain_kernel<<<dim3(end - x.first_chain, x.heads), x.dv + x.dk, 0, stream>>>(x);
    error = cudaGetLastError();
  }
  if (x.S) cudaFreeAsync(x.S, stream);
  if (error == cudaSuccess) return HYPIC_OK;
  snprintf(call->message, call->message_size, "%s", cudaGetErrorString(error));
  return HYPIC_FAILED;
}

int32_t linear_attention(const hypic_call* call, const hypic_linear_attention* a) {
  return a->q->dtype.code == kDLBfloat ? run<__nv_bfloat16>(call, a) : run<float>(call, a);
}

constexpr hypic_kernel kKernel = {
    HYPIC_KERNEL_ABI, sizeof(hypic_kernel), "gated_delta_rule_cuda", HYPIC_BIT(kDLCUDA), HYPIC_F32 | HYPIC_BF16,
    HYPIC_STRIDED | HYPIC_JUMPS | HYPIC_OPERATORS | HYPIC_SAVES | HYPIC_ROTATED_KEYS | HYPIC_GROUPED_HEADS |
        HYPIC_BATCH_INVARIANT,
    HYPIC_BIT(HYPIC_DECAY_SCALAR), HYPIC_BIT(HYPIC_UPDATE_DELTA), HYPIC_BIT(HYPIC_READOUT_PLAIN), linear_attention,
    nullptr, nullptr, nullptr};

}  // namespace

extern "C" const hypic_kernel* hypic_kernel_get(uint32_t abi) { return abi == HYPIC_KERNEL_ABI ? &kKernel : nullptr; }
