// The plain rung: the recurrence token by token, as in reference/ops/linear_attention.cc, for any d_k and d_v.
// A block holds some columns of one head's state in shared memory (or, where they do not fit, in device
// memory), a thread a column: all that acts on the key axis stays inside a thread.
#pragma once

#include <algorithm>

#include "kernels/common/rotation.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"
#include "kernels/linear_attention/decaying.cuh"
#include "kernels/linear_attention/linear_attention.cuh"
#include "kernels/linear_attention/operands.cuh"

namespace hypic::cuda {

constexpr size_t kMaxShared = 200 << 10;
constexpr int kColumns = 32;  // of a block, where columns are independent

template <class T>
struct PlainArgs {
  View<T> q, k, v, a, b, o;
  View<float> g, beta;
  const float *A, *u, *skip;
  float *state, *log_scale, *Top, *Uop;  // pools: [slots, Hv, …]
  float* scratch;                        // columns that do not fit into shared memory, or null
  int Hv, group, dk, dv, dq;             // dq: length of q
  int readout, rotary_dim;
  bool value_side;
  double theta;
  float scale;
  OperatorKind kind;
  DeviceTable table;
  int32_t first;  // chain or op step of this launch
};

// What a block works on, in shared memory: vectors of the token, then the columns.
struct Work {
  float *k, *q, *a, *b;  // [dk], [dq], [dk], [dk]
  Decaying* decay;       // [dk]
  float* gates;          // [3]: g, beta, Σ q u k or the divisor
  float* p;              // [dk] softmax
  float *S, *other;      // [dk][columns]
};

template <class T>
__host__ __device__ size_t vector_bytes(const PlainArgs<T>& p) {
  return (static_cast<size_t>(4) * p.dk + p.dq + 4) * sizeof(float) + p.dk * sizeof(Decaying);
}

template <class T>
__device__ Work work_of(const PlainArgs<T>& p, int columns, char* shared) {
  Work w;
  w.k = reinterpret_cast<float*>(shared);
  w.q = w.k + p.dk;
  w.a = w.q + p.dq;
  w.b = w.a + p.dk;
  w.p = w.b + p.dk;
  w.gates = w.p + p.dk;
  w.decay = reinterpret_cast<Decaying*>(w.gates + 4);
  const size_t size = static_cast<size_t>(p.dk) * columns;
  if (p.scratch) {
    const size_t block = blockIdx.x + static_cast<size_t>(gridDim.x) * blockIdx.y;
    w.S = p.scratch + 2 * size * block;
  } else {
    w.S = reinterpret_cast<float*>(w.decay + p.dk);
  }
  w.other = w.S + size;
  return w;
}

// The vectors of token r; the block has synchronised after.
template <Decay D, Update U, class T>
__device__ void load_token(const PlainArgs<T>& p, const Work& w, int64_t r, int h, bool with_q, bool undecayed) {
  const int kh = h / p.group;
  __syncthreads();
  for (int i = threadIdx.x; i < p.dk; i += blockDim.x) {
    w.k[i] = load(p.k.row(r, kh) + i);
    if (U != Update::add) {
      w.b[i] = p.b ? load(p.b.row(r, h) + i) : w.k[i];
      w.a[i] = p.a ? load(p.a.row(r, h) + i) : w.k[i];
    }
    if (D == Decay::diagonal) w.decay[i] = Decaying(undecayed ? 0.0f : p.g.row(r, h)[i]);
  }
  if (with_q)
    for (int i = threadIdx.x; i < p.dq; i += blockDim.x) w.q[i] = load(p.q.row(r, kh) + i);
  if (threadIdx.x == 0) {
    w.gates[0] = D == Decay::scalar && !undecayed ? p.g.row(r)[h] : 0.0f;
    w.gates[1] = p.beta ? p.beta.row(r)[h] : 1.0f;
  }
  __syncthreads();
}

// One column through one token: x ← A x + c d, [dk] strided by `columns`.
template <Decay D, Update U, class T>
__device__ void advance(const PlainArgs<T>& p, const Work& w, float* x, int columns, float d, bool input, float delta,
                        int h, int column) {
  const Decaying scalar(w.gates[0]);
  const auto decay = [&](int i) {
    if constexpr (D == Decay::diagonal) return w.decay[i];
    if constexpr (D == Decay::elementwise)
      return Decaying(delta * p.A[(static_cast<int64_t>(h) * p.dk + i) * p.dv + column]);
    return scalar;
  };
  if constexpr (U == Update::add) {
    for (int i = 0; i < p.dk; ++i) {
      float& at = x[static_cast<size_t>(i) * columns];
      at = decay(i)(at, input ? w.k[i] * d : 0.0f);
    }
    return;
  }
  float read = 0;
  for (int i = 0; i < p.dk; ++i) {
    const float at = x[static_cast<size_t>(i) * columns];
    read += w.b[i] * (U == Update::delta ? decay(i)(at, 0.0f) : at);
  }
  read *= p.b ? -1.0f : -w.gates[1];
  const bool joined = input && !p.a;  // a = c = k: one outer product
  if (joined) read += d;
  for (int i = 0; i < p.dk; ++i) {
    float& at = x[static_cast<size_t>(i) * columns];
    at = decay(i)(at, w.a[i] * read + (input && !joined ? w.k[i] * d : 0.0f));
  }
}

// Key dims (i, i + half) of a column, turned by shift · θ^(−2i/rotary_dim).
template <class T>
__device__ void turn(const PlainArgs<T>& p, float* x, int columns, int64_t shift) {
  const int half = p.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    float s, c;
    rotation(shift, i, p.rotary_dim, p.theta, &s, &c);
    float &low = x[static_cast<size_t>(i) * columns], &high = x[static_cast<size_t>(i + half) * columns];
    const float a = low, b = high;
    low = c * a - s * b;
    high = s * a + c * b;
  }
}

// U of an operator at (i, column) of a segment that moved by shift; key side: before the turn of its rows.
template <class T>
__device__ float moved_U(const PlainArgs<T>& p, const float* U, int i, int column, int64_t shift) {
  if (!p.value_side || p.rotary_dim == 0 || shift == 0 || column >= p.rotary_dim)
    return U[static_cast<size_t>(i) * p.dv + column];
  const int half = p.rotary_dim / 2, pair = column < half ? column : column - half;
  float s, c;
  rotation(shift, pair, p.rotary_dim, p.theta, &s, &c);
  const float low = U[static_cast<size_t>(i) * p.dv + pair], high = U[static_cast<size_t>(i) * p.dv + pair + half];
  return column < half ? c * low - s * high : s * low + c * high;
}

// A jump on the columns of this block.
template <class T>
__device__ void jump(const PlainArgs<T>& p, const Work& w, const ChainItem& item, int h, int columns, int begin) {
  const int64_t slot = (static_cast<int64_t>(item.op) * p.Hv + h);
  const float* U = p.Uop + slot * p.dk * p.dv;
  const bool turns = p.rotary_dim > 0 && item.shift != 0 && !p.value_side;
  for (int j = threadIdx.x; j < columns && begin + j < p.dv; j += blockDim.x) {
    float* x = w.S + j;
    float* y = w.other + j;
    const auto at = [&](float* z, int i) -> float& { return z[static_cast<size_t>(i) * columns]; };
    if (item.compose == Compose::zero) {
      for (int i = 0; i < p.dk; ++i) at(x, i) = 0;
      continue;
    }
    for (int i = 0; i < p.dk; ++i) at(y, i) = moved_U(p, U, i, begin + j, item.shift);
    if (turns) turn(p, y, columns, item.shift);
    if (item.compose != Compose::transfer) {
      for (int i = 0; i < p.dk; ++i) at(x, i) = (item.compose == Compose::add ? at(x, i) : 0.0f) + at(y, i);
      continue;
    }
    const float scale = p.log_scale ? expf(p.log_scale[slot]) : 1.0f;
    if (p.kind == OperatorKind::dense) {
      // y += scale · R T Rᵀ x: turn x back, multiply, turn the product; U waits in y.
      const float* T_ = p.Top + slot * p.dk * p.dk;
      if (turns) turn(p, x, columns, -static_cast<int64_t>(item.shift));
      if (turns) turn(p, y, columns, -static_cast<int64_t>(item.shift));
      for (int i = 0; i < p.dk; ++i) {
        float sum = 0;
        for (int m = 0; m < p.dk; ++m) sum += T_[static_cast<size_t>(i) * p.dk + m] * at(x, m);
        at(y, i) += scale * sum;
      }
      if (turns) turn(p, y, columns, item.shift);
      for (int i = 0; i < p.dk; ++i) at(x, i) = at(y, i);
      continue;
    }
    for (int i = 0; i < p.dk; ++i) {
      float t = scale;
      if (p.kind == OperatorKind::diagonal) t = scale * p.Top[slot * p.dk + i];
      if (p.kind == OperatorKind::elementwise) t = scale * p.Top[(slot * p.dk + i) * p.dv + begin + j];
      at(x, i) = t * at(x, i) + at(y, i);
    }
  }
}

// The readout after the update (bonus: before it), all threads of the block.
template <class T>
__device__ void read(const PlainArgs<T>& p, const Work& w, int64_t r, int h, int columns, int begin) {
  const auto contract = [&](int j) {
    float sum = 0;
    for (int i = 0; i < p.dk; ++i) sum += w.q[i] * w.S[static_cast<size_t>(i) * columns + j];
    return p.scale * sum;
  };
  T* o = p.o.row(r, h);
  if (p.value_side) {  // the stored state is transposed
    __syncthreads();
    for (int i = threadIdx.x; i < p.dk; i += blockDim.x) {
      float sum = 0;
      for (int j = 0; j < p.dv; ++j) sum += w.q[j] * w.S[static_cast<size_t>(i) * columns + j];
      store(o + i, p.scale * sum);
    }
    return;
  }
  switch (static_cast<Readout>(p.readout)) {
    case Readout::plain:
    case Readout::bonus: {
      const bool bonus = static_cast<Readout>(p.readout) == Readout::bonus;
      float weight = 0;
      if (bonus)
        for (int i = 0; i < p.dk; ++i) weight += w.q[i] * p.u[static_cast<int64_t>(h) * p.dk + i] * w.k[i];
      for (int j = threadIdx.x; j < columns && begin + j < p.dv; j += blockDim.x) {
        const float v = load(p.v.row(r, h) + begin + j);
        float out = contract(j);
        if (bonus) out += p.scale * weight * (w.gates[1] * v);
        if (p.skip) out += p.skip[h] * v;
        store(o + begin + j, out);
      }
      break;
    }
    case Readout::normalised:
    case Readout::bounded: {
      __syncthreads();
      if (threadIdx.x == 0) {
        const float z = contract(p.dv - 1);
        w.gates[2] = static_cast<Readout>(p.readout) == Readout::normalised
                         ? z + static_cast<float>(kNormaliserEps)
                         : fmaxf(fabsf(z), 1.0f);
      }
      __syncthreads();
      for (int j = threadIdx.x; j + 1 < p.dv; j += blockDim.x) store(o + j, contract(j) / w.gates[2]);
      break;
    }
    case Readout::softmax: {
      __syncthreads();
      for (int i = threadIdx.x; i < p.dk; i += blockDim.x) {
        float sum = 0;
        for (int j = 0; j < p.dq; ++j) sum += w.q[j] * w.S[static_cast<size_t>(i) * columns + j];
        w.p[i] = p.scale * sum;
      }
      __syncthreads();
      float top = -INFINITY, sum = 0;
      for (int i = 0; i < p.dk; ++i) top = fmaxf(top, w.p[i]);
      for (int i = 0; i < p.dk; ++i) sum += expf(w.p[i] - top);
      for (int j = p.dq + threadIdx.x; j < p.dv; j += blockDim.x) {
        float out = 0;
        for (int i = 0; i < p.dk; ++i) out += expf(w.p[i] - top) / sum * w.S[static_cast<size_t>(i) * columns + j];
        store(o + j - p.dq, out);
      }
      break;
    }
  }
}

// Block x: chain and head; y: columns.
template <Decay D, Update U, class T>
__global__ void walk_kernel(PlainArgs<T> p, int columns) {
  extern __shared__ char shared[];
  const Work w = work_of(p, columns, shared);
  const Chain chain = p.table.chains[p.first + blockIdx.x / p.Hv];
  const int h = static_cast<int>(blockIdx.x % p.Hv), begin = static_cast<int>(blockIdx.y) * columns;
  const auto each = [&](auto body) {  // (i, j) of this thread's columns
    for (int j = threadIdx.x; j < columns && begin + j < p.dv; j += blockDim.x)
      for (int i = 0; i < p.dk; ++i) body(i, j, w.S[static_cast<size_t>(i) * columns + j]);
  };
  const auto slot = [&](int32_t s) { return p.state + (static_cast<int64_t>(s) * p.Hv + h) * p.dk * p.dv + begin; };
  const float* from = chain.fresh ? nullptr : slot(chain.state);
  each([&](int i, int j, float& x) { x = from ? from[static_cast<size_t>(i) * p.dv + j] : 0.0f; });
  for (int32_t n = chain.item_begin; n < chain.item_end; ++n) {
    const ChainItem item = p.table.items[n];
    if (item.kind == ChainItem::Kind::jump) {
      __syncthreads();
      jump(p, w, item, h, columns, begin);
    } else {
      if (!item.keep) each([&](int i, int j, float& x) { w.other[static_cast<size_t>(i) * columns + j] = x; });
      for (int32_t r = item.begin; r < item.end; ++r) {
        load_token<D, U>(p, w, r, h, true, false);
        if (static_cast<Readout>(p.readout) == Readout::bonus) read(p, w, r, h, columns, begin);
        for (int j = threadIdx.x; j < columns && begin + j < p.dv; j += blockDim.x) {
          const float d = w.gates[1] * load(p.v.row(r, h) + begin + j);
          const float delta = D == Decay::elementwise ? p.g.row(r, h)[begin + j] : 0.0f;
          advance<D, U>(p, w, w.S + j, columns, d, true, delta, h, begin + j);
        }
        if (static_cast<Readout>(p.readout) != Readout::bonus) read(p, w, r, h, columns, begin);
      }
      __syncthreads();
      if (!item.keep) each([&](int i, int j, float& x) { x = w.other[static_cast<size_t>(i) * columns + j]; });
    }
    if (item.save != kNone) {
      float* to = slot(item.save);
      each([&](int i, int j, float& x) { to[static_cast<size_t>(i) * p.dv + j] = x; });
    }
  }
  float* to = slot(chain.state);
  each([&](int i, int j, float& x) { to[static_cast<size_t>(i) * p.dv + j] = x; });
}

// The operator of a step: U's columns run as values from zero, T's as the identity without input. Block x: op
// step and head; y: columns of [U | T].
template <Decay D, Update U, class T>
__global__ void operator_kernel(PlainArgs<T> p, int columns) {
  extern __shared__ char shared[];
  const Work w = work_of(p, columns, shared);
  const OpStep step = p.table.op_steps[p.first + blockIdx.x / p.Hv];
  const ChainItem item = p.table.items[step.item];
  const int h = static_cast<int>(blockIdx.x % p.Hv);
  const int U_blocks = (p.dv + columns - 1) / columns;
  const int64_t slot = static_cast<int64_t>(step.op) * p.Hv + h;
  const bool is_U = static_cast<int>(blockIdx.y) < U_blocks;
  const bool begins = item.span == 0;
  const int begin = (is_U ? blockIdx.y : blockIdx.y - U_blocks) * columns;
  const int width = is_U ? p.dv : p.dk;
  if (is_U || p.kind == OperatorKind::dense) {
    float* out = is_U ? p.Uop + slot * p.dk * p.dv : p.Top + slot * p.dk * p.dk;
    const bool undecayed = !is_U && p.log_scale;  // its decay is kept apart
    for (int j = threadIdx.x; j < columns && begin + j < width; j += blockDim.x)
      for (int i = 0; i < p.dk; ++i)
        w.S[static_cast<size_t>(i) * columns + j] =
            begins ? (!is_U && i == begin + j ? 1.0f : 0.0f) : out[static_cast<size_t>(i) * width + begin + j];
    for (int32_t r = item.begin; r < item.end; ++r) {
      load_token<D, U>(p, w, r, h, false, undecayed);
      for (int j = threadIdx.x; j < columns && begin + j < width; j += blockDim.x) {
        const float d = is_U ? w.gates[1] * load(p.v.row(r, h) + begin + j) : 0.0f;
        const float delta = D == Decay::elementwise ? p.g.row(r, h)[begin + j] : 0.0f;
        advance<D, U>(p, w, w.S + j, columns, d, is_U, delta, h, begin + j);
      }
    }
    for (int j = threadIdx.x; j < columns && begin + j < width; j += blockDim.x)
      for (int i = 0; i < p.dk; ++i)
        out[static_cast<size_t>(i) * width + begin + j] = w.S[static_cast<size_t>(i) * columns + j];
  } else if (p.kind == OperatorKind::diagonal) {
    for (int i = threadIdx.x; i < p.dk; i += blockDim.x) {
      float t = begins ? 1.0f : p.Top[slot * p.dk + i];
      for (int32_t r = item.begin; r < item.end; ++r) t = Decaying(p.g.row(r, h)[i])(t, 0.0f);
      p.Top[slot * p.dk + i] = t;
    }
  } else if (p.kind == OperatorKind::elementwise) {
    for (int e = threadIdx.x; e < p.dk * p.dv; e += blockDim.x) {
      const float A = p.A[static_cast<int64_t>(h) * p.dk * p.dv + e];
      float& t = p.Top[slot * p.dk * p.dv + e];
      float x = begins ? 1.0f : t;
      for (int32_t r = item.begin; r < item.end; ++r) x = Decaying(p.g.row(r, h)[e % p.dv] * A)(x, 0.0f);
      t = x;
    }
  }
  if (blockIdx.y == 0 && threadIdx.x == 0 && p.log_scale) {
    float sum = begins ? 0.0f : p.log_scale[slot];
    for (int32_t r = item.begin; r < item.end; ++r) sum += p.g.row(r)[h];
    p.log_scale[slot] = sum;
  }
}

template <Decay D, Update U, class T>
void plain_run(const LinearAttentionArgs& a, const TableUpload& table, cudaStream_t stream) {
  PlainArgs<T> p{};
  p.q = view<T>(a.q);
  p.k = view<T>(a.k);
  p.v = view<T>(a.v);
  p.a = view<T>(a.a);
  p.b = view<T>(a.b);
  p.o = view<T>(a.o);
  p.g = view<float>(a.g);
  p.beta = view<float>(a.beta);
  p.A = pool(a.A);
  p.u = pool(a.u);
  p.skip = pool(a.skip);
  p.state = pool(a.state);
  p.log_scale = pool(a.operators.log_scale);
  p.Top = pool(a.operators.T);
  p.Uop = pool(a.operators.U);
  p.Hv = static_cast<int>(a.v[1]);
  p.group = static_cast<int>(a.v[1] / a.k[1]);
  p.dk = static_cast<int>(a.k[2]);
  p.dv = static_cast<int>(a.v[2]);
  p.dq = static_cast<int>(a.q[2]);
  p.readout = static_cast<int>(a.readout);
  p.rotary_dim = a.rotary_dim;
  p.theta = a.rope_theta;
  p.value_side = a.side == Side::value;
  p.scale = static_cast<float>(a.scale);
  p.kind = operator_kind(D, U);
  p.table = table.device();

  const bool independent = !p.value_side && (a.readout == Readout::plain || a.readout == Readout::bonus);
  const auto shared_of = [&](int columns) {
    return vector_bytes(p) + 2 * static_cast<size_t>(p.dk) * columns * sizeof(float);
  };
  const auto launch = [&](auto kernel, int columns, int blocks_x, int blocks_y, const char* name) {
    if (blocks_x == 0 || blocks_y == 0) return;
    size_t bytes = shared_of(columns);
    const bool fits = bytes <= kMaxShared;
    const Scratch scratch(fits ? 0 : 2 * static_cast<size_t>(p.dk) * columns * sizeof(float) * blocks_x * blocks_y,
                          stream);
    if (!fits) bytes = vector_bytes(p);
    p.scratch = scratch.as<float>();
    if (bytes > (48 << 10))
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), name);
    const int threads = std::clamp((columns + 31) / 32 * 32, 32, 256);
    kernel<<<dim3(blocks_x, blocks_y), threads, bytes, stream>>>(p, columns);
    check_launch(name);
  };
  const int walk_columns = independent ? std::min(kColumns, std::max(p.dv, 1)) : std::max(p.dv, 1);
  const int op_columns = std::min(kColumns, std::max({p.dv, p.dk, 1}));
  for (const Level& level : table.levels()) {
    p.first = level.first;
    launch(walk_kernel<D, U, T>, walk_columns, (level.last - level.first) * p.Hv,
           static_cast<int>(ceil_div(std::max(p.dv, 1), walk_columns)), "linear_attention");
    p.first = level.op_first;
    const int T_blocks = p.kind == OperatorKind::dense ? static_cast<int>(ceil_div(p.dk, op_columns))
                         : p.kind == OperatorKind::diagonal || p.kind == OperatorKind::elementwise ? 1
                                                                                                   : 0;
    launch(operator_kernel<D, U, T>, op_columns, (level.op_last - level.op_first) * p.Hv,
           static_cast<int>(ceil_div(std::max(p.dv, 1), op_columns)) + T_blocks, "transfer_operator");
  }
}

template <Decay D, Update U>
void plain_cell(const LinearAttentionArgs& a, const TableUpload& table, cudaStream_t stream) {
  visit_device(a.k.dtype, [&](auto zero) { plain_run<D, U, decltype(zero)>(a, table, stream); });
}

}  // namespace hypic::cuda
