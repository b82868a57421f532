#include "kernels/ops/causal_conv_rows.cuh"

#include "kernels/common/launch_next.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/piece.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"
#include "kernels/ops/causal_conv_plan.h"
#include "kernels/ops/pointwise.cuh"

namespace hypic::cuda {
namespace {

constexpr int kTogether = 2;  // rows whose sums over heads are taken at once

// The heads of q, then of k, at the front of the channels: each is divided by its length.
template <class T>
struct Heads {
  View<T> q, k;
  int channels = 0;  // of q, and of k; 0: none
  int dim = 1;
  float eps = 0;
};

// One number a head each: decays as in DecayGateArgs, and beta.
template <class T>
struct Gates {
  View<T> x;
  View<float> decay, step;
  const float *A_log = nullptr, *bias = nullptr;
  float low = 0, high = 0;
  int decays = 0;
  View<T> logits;
  View<float> beta;
  float scale = 1;
  int betas = 0;
};

template <class T>
struct Args {
  View<T> x, out;
  const T *w, *bias;
  T *window, *tail, *before;  // [slots, W − 1, C]; before: of each item of the table
  int64_t C;
  int activation;
  DeviceTable table;
  Heads<T> heads;
  Gates<T> gates;
  int R, tile_rows;
  int columns;  // blocks that share the channels of a tile of rows
};

// W − 1 raw rows of one piece of channels, oldest first, as they lie in memory.
template <int W>
struct Window {
  uint4 at[W - 1];
  __device__ void push(uint4 x) {
#pragma unroll
    for (int j = 0; j + 1 < W - 1; ++j) at[j] = at[j + 1];
    at[W - 2] = x;
  }
  template <class T>
  __device__ void store(T* slot, int64_t C) const {  // [W − 1, C] from this piece on
#pragma unroll
    for (int j = 0; j < W - 1; ++j) *reinterpret_cast<uint4*>(slot + j * C) = at[j];
  }
};

// The window before item `at` of the chain (its item_end: before what comes next), from the last rows of the items
// before it, as many of them as it takes, and where they are too few, from the chain's own window.
template <class T, int W>
__device__ Window<W> window_before(const Args<T>& a, const Chain& chain, int32_t at, int64_t c) {
  const int64_t slot_size = (W - 1) * a.C;
  const T* next = nullptr;  // the newest row that is not in the window yet, null: zero
  int64_t step = 0;
  int32_t left = 0;         // rows from `next` back
  bool at_start = false;
  Window<W> window;
#pragma unroll
  for (int j = W - 2; j >= 0; --j) {
    while (left == 0 && at > chain.item_begin) {
      const ChainItem item = a.table.items[--at];
      if (item.kind == ChainItem::Kind::jump) {
        left = min(item.span, W - 1);
        next = a.tail + item.op * slot_size + (W - 2) * a.C + c;
        step = a.C;
      } else if (item.keep) {
        left = item.end - item.begin;
        next = a.x.row(item.end - 1) + c;
        step = a.x.stride_r;
      }
    }
    if (left == 0 && !at_start) {
      at_start = true;
      next = chain.fresh ? nullptr : a.window + chain.state * slot_size + (W - 2) * a.C + c;
      step = chain.fresh ? 0 : a.C;
    }
    window.at[j] = next ? Piece<T>::bits(next) : uint4{0, 0, 0, 0};
    next -= step;
    --left;
  }
  return window;
}

// Whether a later item of the chain saves to the slot of item `at`.
__device__ bool saved_again(const DeviceTable& table, const Chain& chain, int32_t at) {
  const int32_t slot = table.items[at].save;
  bool again = slot == chain.state;  // written at the chain's end
  for (int32_t later = at + 1; later < chain.item_end; ++later) again |= table.items[later].save == slot;
  return again;
}

// What lies between items: the window before each step and those that are saved, operators' tails. Block x: pieces,
// y: a chain of this level; thread y: its items. The chain's own window is written when all threads have read it;
// nothing else that is read here is written by another thread, for what a level jumps over lower levels made.
template <class T, int W>
__global__ void edges_kernel(Args<T> a, int32_t first_chain) {
  follow();
  const int64_t c = Piece<T>::kSize * (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
  const int64_t slot_size = (W - 1) * a.C;
  const Chain chain = a.table.chains[first_chain + blockIdx.y];
  Window<W> last;
  bool ends = false;
  if (c < a.C) {
    for (int32_t i = chain.item_begin + static_cast<int32_t>(threadIdx.y); i <= chain.item_end;
         i += static_cast<int32_t>(blockDim.y)) {
      if (i == chain.item_end) {
        last = window_before<T, W>(a, chain, i, c);
        ends = true;
        break;
      }
      const ChainItem item = a.table.items[i];
      if (item.kind == ChainItem::Kind::step) {
        window_before<T, W>(a, chain, i, c).store(a.before + i * slot_size + c, a.C);
        if (item.op != kNone) {
          T* const tail = a.tail + item.op * slot_size + c;
          Window<W> ending;
#pragma unroll
          for (int j = 0; j < W - 1; ++j) {
            const int32_t r = item.end - (W - 1) + j, missing = item.begin - r;
            ending.at[j] = missing <= 0      ? Piece<T>::bits(a.x.row(r) + c)
                           : item.span > 0 ? Piece<T>::bits(tail + (W - 1 - missing) * a.C)
                                             : uint4{0, 0, 0, 0};
          }
          ending.store(tail, a.C);
        }
      }
      if (item.save != kNone && !saved_again(a.table, chain, i))
        window_before<T, W>(a, chain, i + 1, c).store(a.window + item.save * slot_size + c, a.C);
    }
  }
  __syncthreads();
  if (ends) last.store(a.window + chain.state * slot_size + c, a.C);
}

// Of rows [begin, end), every `threads`-th number from `first` on.
template <class T>
__device__ void gates_of_rows(const Gates<T>& g, int begin, int end, int first, int threads) {
  const int heads = g.decays + g.betas;
  for (int i = first; i < (end - begin) * heads; i += threads) {
    const int64_t r = begin + i / heads;
    const int h = i % heads;
    if (h < g.decays) {
      const float delta = decay_step(load(g.x.row(r) + h) + g.bias[h], g.low, g.high);
      if (g.step) g.step.row(r)[h] = delta;
      g.decay.row(r)[h] = -expf(g.A_log[h]) * delta;
    } else {
      const float x = load(g.logits.row(r) + h - g.decays);
      g.beta.row(r)[h - g.decays] = g.scale * activate(x, static_cast<int>(Activation::sigmoid));
    }
  }
}

// Block x: a tile of rows, whichever steps they are of, and of it some pieces and a share of the gates. kAhead: all
// rows of the tile are under way at once, each thread's own through shared memory; otherwise kBatch of them.
template <class T, int W, bool kAhead>
__global__ void __launch_bounds__(kConvThreads, kAhead ? 5 : 4) rows_kernel(Args<T> a) {
  constexpr int kSize = Piece<T>::kSize, kBatch = kAhead ? 4 : 2, kGroups = kMaxConvRows / kBatch;
  __shared__ uint4 ahead[kAhead ? kMaxConvRows : 1][kConvThreads];
  const int column = static_cast<int>(blockIdx.x) % a.columns;
  const int begin = static_cast<int>(blockIdx.x) / a.columns * a.tile_rows, end = min(begin + a.tile_rows, a.R);
  const int thread = column * kConvThreads + static_cast<int>(threadIdx.x);
  const bool inside = static_cast<int64_t>(thread) * kSize < a.C;
  const int64_t c = inside ? thread * kSize : 0;  // all lanes take part in sums over heads
  float w[W][kSize];
#pragma unroll
  for (int i = 0; i < W; ++i) {
    const Piece<T> piece = Piece<T>::load(a.w + c * W + i * kSize);
#pragma unroll
    for (int j = 0; j < kSize; ++j) w[(i * kSize + j) % W][(i * kSize + j) / W] = piece.at[j];
  }
  const bool warp_has_heads = (thread & ~31) * kSize < 2 * a.heads.channels, is_head = c < 2 * a.heads.channels;
  T* to = a.out.data + c;  // of row 0
  int64_t to_stride = a.out.stride_r;
  if (is_head) {
    const bool is_k = c >= a.heads.channels;
    const int at = static_cast<int>(c) - (is_k ? a.heads.channels : 0);
    const View<T> heads = is_k ? a.heads.k : a.heads.q;
    to = heads.row(0, at / a.heads.dim) + at % a.heads.dim;
    to_stride = heads.stride_r;
  }
  follow();

  struct Batch {  // past the tile's end its last row again
    uint4 rows[kBatch];
    int32_t items[kBatch];
  };
  if constexpr (kAhead)
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (begin + group * kBatch < end)
#pragma unroll
        for (int n = group * kBatch; n < (group + 1) * kBatch; ++n)
          cp_async_16(shared_address(&ahead[n][threadIdx.x]), a.x.row(min(begin + n, end - 1)) + c);
      cp_async_commit();
    }
  const auto fetch = [&](int first) {
    Batch batch;
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const int r = min(first + n, end - 1);
      batch.items[n] = a.table.item_of[r];
      if constexpr (!kAhead) batch.rows[n] = Piece<T>::bits(a.x.row(r) + c);
    }
    if constexpr (kAhead) {
      static_assert(kGroups == 4);
      switch ((first - begin) / kBatch) {
        case 0: cp_async_wait<3>(); break;
        case 1: cp_async_wait<2>(); break;
        case 2: cp_async_wait<1>(); break;
        default: cp_async_wait<0>();
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n) batch.rows[n] = ahead[first - begin + n][threadIdx.x];
    }
    return batch;
  };
  // The window before row r, whose last `own` rows are of the same step.
  const auto window_at = [&](int r, int32_t item, int own) {
    Window<W> window;
#pragma unroll
    for (int j = 0; j < W - 1; ++j)
      window.at[j] = Piece<T>::bits(c + (j + own < W - 1 ? a.before + (item * (W - 1) + j + own) * a.C
                                                         : a.x.row(r - (W - 1) + j)));
    return window;
  };
  // taps: the windows of kRows rows from r on, and the rows.
  const auto finish = [&]<int kRows>(std::integral_constant<int, kRows>, int r, const Piece<T>* taps) {
    Piece<T> sums[kRows], bias(uint4{0, 0, 0, 0});
    if (a.bias) bias = Piece<T>::load(a.bias + c);
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      sums[n] = bias;
#pragma unroll
      for (int j = 0; j < W; ++j)
#pragma unroll
        for (int i = 0; i < kSize; ++i) sums[n].at[i] += w[j][i] * taps[n + j].at[i];
      activate_all(sums[n], a.activation);
    }
    if (warp_has_heads) {
      float totals[kRows];
#pragma unroll
      for (int n = 0; n < kRows; ++n) totals[n] = sums[n].squares();
      for (int lanes = a.heads.dim / kSize / 2; lanes > 0; lanes /= 2)
#pragma unroll
        for (int n = 0; n < kRows; ++n) totals[n] += __shfl_xor_sync(0xffffffffu, totals[n], lanes);
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        const float factor = is_head ? rsqrtf(totals[n] + a.heads.eps) : 1.0f;
#pragma unroll
        for (float& y : sums[n].at) y *= factor;
      }
    }
#pragma unroll
    for (int n = 0; n < kRows; ++n)
      if (inside && r + n < end) sums[n].store(to + (r + n) * to_stride);
  };

  Window<W> now;  // the rows before the tile, for it is the same step in most
  const int32_t first_item = a.table.item_of[begin];
  int own = 0;
#pragma unroll
  for (int j = 1; j < W; ++j) {
    const int r = max(begin - j, 0);
    now.at[W - 1 - j] = Piece<T>::bits(a.x.row(r) + c);
    own += r == begin - j && a.table.item_of[r] == first_item;
  }
  gates_of_rows(a.gates, begin, end, thread, a.columns * kConvThreads);
  if (own < W - 1) now = window_at(begin, first_item, own);
  int32_t current = first_item;
  for (int first = begin; first < end; first += kBatch) {
    const Batch batch = fetch(first);
    if (batch.items[0] != current) now = window_at(first, batch.items[0], 0);
    current = batch.items[kBatch - 1];
    if (batch.items[0] == current) {  // rows of one step
      Piece<T> taps[W - 1 + kBatch];
#pragma unroll
      for (int j = 0; j < W - 1; ++j) taps[j] = Piece<T>(now.at[j]);
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        taps[W - 1 + n] = Piece<T>(batch.rows[n]);
        now.push(batch.rows[n]);
      }
#pragma unroll
      for (int n = 0; n < kBatch; n += kTogether)
        finish(std::integral_constant<int, kTogether>{}, first + n, taps + n);
    } else {
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        if (first + n >= end) break;
        if (n > 0 && batch.items[n] != batch.items[n - 1]) now = window_at(first + n, batch.items[n], 0);
        Piece<T> taps[W];
#pragma unroll
        for (int j = 0; j < W - 1; ++j) taps[j] = Piece<T>(now.at[j]);
        taps[W - 1] = Piece<T>(batch.rows[n]);
        now.push(batch.rows[n]);
        finish(std::integral_constant<int, 1>{}, first + n, taps);
      }
    }
  }
}

template <class T, int W>
void launch(const CausalConvArgs& args, const Heads<T>& heads, const Gates<T>& gates, const TableUpload& table, int sms,
            cudaStream_t stream) {
  const int64_t R = args.x[0], C = args.x[1], pieces = C / Piece<T>::kSize;
  const ConvPlan plan = plan_conv({.sms = sms,
                                   .rows = R,
                                   .pieces = pieces,
                                   .items = table.item_count(),
                                   .chains = static_cast<int64_t>(table.chains().size())});
  const Scratch before(static_cast<size_t>(table.item_count()) * (W - 1) * C * sizeof(T), stream);
  const Args<T> a = {.x = view<T>(args.x),
                     .out = view<T>(args.out),
                     .w = static_cast<const T*>(args.w.data),
                     .bias = static_cast<const T*>(args.bias.data),
                     .window = static_cast<T*>(args.window.data),
                     .tail = static_cast<T*>(args.tail.data),
                     .before = before.as<T>(),
                     .C = C,
                     .activation = static_cast<int>(args.activation),
                     .table = table.device(),
                     .heads = heads,
                     .gates = gates,
                     .R = static_cast<int>(R),
                     .tile_rows = plan.rows,
                     .columns = static_cast<int>(ceil_div(pieces, kConvThreads))};
  const dim3 threads(static_cast<unsigned>(plan.edge_pieces), static_cast<unsigned>(plan.edge_items));
  for (const Level& level : table.levels())
    launch_next("causal_conv, edges", edges_kernel<T, W>,
                dim3(static_cast<unsigned>(ceil_div(pieces, plan.edge_pieces)),
                     static_cast<unsigned>(level.last - level.first)),
                threads, 0, stream, a, level.first);
  if (R == 0) return;
  launch_next("causal_conv, rows", plan.rows < 8 ? rows_kernel<T, W, false> : rows_kernel<T, W, true>,
              dim3(static_cast<unsigned>(a.columns * ceil_div(R, plan.rows))), dim3(kConvThreads), 0, stream, a);
}

template <class T>
void convolve(const CausalConvArgs& a, const Heads<T>& heads, const Gates<T>& gates, const TableUpload& table, int sms,
              cudaStream_t stream) {
  const std::string before = std::to_string(a.w[1] - 1);
  Shapes("causal_conv").bind(a.x, "x", {"R", "C"}).bind(a.out, "out", {"R", "C"}).bind(a.w, "w", {"C", "W"})
      .bind(a.window, "window", {"S", before.c_str(), "C"}).bind(a.tail, "tail", {"operators", before.c_str(), "C"});
  HYPIC_CHECK(causal_conv_rows_takes(a) && a.x[0] == table.rows() && a.x.data != a.out.data);
  if (a.w[1] == 2) return launch<T, 2>(a, heads, gates, table, sms, stream);
  if (a.w[1] == 3) return launch<T, 3>(a, heads, gates, table, sms, stream);
  launch<T, 4>(a, heads, gates, table, sms, stream);
}

template <class T>
Heads<T> heads_of(const ConvGatesArgs& a) {
  if (!a.q) return {};
  for (const Tensor& t : {a.q, a.k})
    HYPIC_CHECK(t[0] == a.conv.x[0] && t[1] == a.key_heads && t[2] == a.key_dim, t.shape_string());
  return {view<T>(a.q), view<T>(a.k), a.key_heads * a.key_dim, a.key_dim, static_cast<float>(a.l2_eps)};
}

template <class T>
Gates<T> gates_of(const ConvGatesArgs& a) {
  Gates<T> gates;
  const DecayGateArgs& d = a.decay;
  if (d.x.rank == 2) {
    Shapes shapes("decay_gate");
    shapes.bind(d.x, "x", {"R", "H"}).bind(d.out, "out", {"R", "H"}).bind(d.A_log, "A_log", {"H"})
        .bind(d.dt_bias, "dt_bias", {"H"});
    if (d.step) shapes.bind(d.step, "step", {"R", "H"});
    HYPIC_CHECK(shapes["R"] == a.conv.x[0] && d.A_log.contiguous() && d.dt_bias.contiguous());
    gates.x = view<T>(d.x);
    gates.decay = view<float>(d.out);
    gates.step = view<float>(d.step);
    gates.A_log = d.A_log.as<float>();
    gates.bias = d.dt_bias.as<float>();
    gates.low = static_cast<float>(d.step_min);
    gates.high = static_cast<float>(d.step_max);
    gates.decays = static_cast<int>(shapes["H"]);
  }
  if (a.beta.x) {
    Shapes shapes("sigmoid");
    shapes.bind(a.beta.x, "x", {"R", "N"}).bind(a.beta.out, "out", {"R", "N"});
    HYPIC_CHECK(shapes["R"] == a.conv.x[0]);
    gates.logits = view<T>(a.beta.x);
    gates.beta = view<float>(a.beta.out);
    gates.scale = static_cast<float>(a.beta.scale);
    gates.betas = static_cast<int>(shapes["N"]);
  }
  return gates;
}

}  // namespace

bool causal_conv_rows_takes(const CausalConvArgs& a) {
  const auto dense = [](const Tensor& t) { return t.contiguous() && reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  return a.x.rank == 2 && a.w.rank == 2 && 2 <= a.w[1] && a.w[1] <= 4 && a.x[1] > 0 && a.x[1] < (1 << 28) &&
         in_pieces(a.x) && in_pieces(a.out) && dense(a.w) && dense(a.window) && dense(a.tail) &&
         (!a.bias || dense(a.bias));
}

void causal_conv_rows(const CausalConvArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  visit_device(a.x.dtype, [&](auto zero) { convolve<decltype(zero)>(a, {}, {}, table, sms, stream); });
}

bool conv_gates_rows_takes(const ConvGatesArgs& a) {
  const int64_t size = 16 / size_of(a.conv.x.dtype);
  const auto heads = [&](const Tensor& t) {
    return t.rank == 3 && t.dtype == a.conv.x.dtype && in_pieces(t) && a.key_dim % size == 0 &&
           is_lane_count(a.key_dim / size);
  };
  return causal_conv_rows_takes(a.conv) && static_cast<bool>(a.q) == static_cast<bool>(a.k) &&
         (!a.q || (heads(a.q) && heads(a.k))) && a.decay.x && a.decay.x.dtype == a.conv.x.dtype;
}

void conv_gates_rows(const ConvGatesArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  HYPIC_CHECK(conv_gates_rows_takes(a));
  if (a.decay.x.rank != 2) decay_gate(a.decay, stream);  // of each channel: as much work as the convolution
  visit_device(a.conv.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    convolve<T>(a.conv, heads_of<T>(a), gates_of<T>(a), table, sms, stream);
  });
}

}  // namespace hypic::cuda
