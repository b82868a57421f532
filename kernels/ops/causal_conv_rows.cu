#include "kernels/ops/causal_conv_rows.cuh"

#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 16;  // a thread

template <class T>
struct Pair;
template <>
struct Pair<float> {
  using Type = float2;
  static __device__ float2 load(const float* p) { return *reinterpret_cast<const float2*>(p); }
  static __device__ void store(float* p, float2 x) { *reinterpret_cast<float2*>(p) = x; }
};
template <>
struct Pair<__nv_bfloat16> {
  static __device__ float2 load(const __nv_bfloat16* p) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(p));
  }
  static __device__ void store(__nv_bfloat16* p, float2 x) {
    *reinterpret_cast<__nv_bfloat162*>(p) = __float22bfloat162_rn(x);
  }
};

// The last W − 1 raw rows of two channels, oldest first.
template <int W>
struct Window {
  float2 at[W - 1];
  __device__ void clear() {
#pragma unroll
    for (int j = 0; j < W - 1; ++j) at[j] = {0, 0};
  }
  __device__ void push(float2 x) {
#pragma unroll
    for (int j = 0; j + 1 < W - 1; ++j) at[j] = at[j + 1];
    at[W - 2] = x;
  }
  template <class T>
  __device__ void load(const T* slot, int64_t C) {  // [W − 1, C] from this channel on
#pragma unroll
    for (int j = 0; j < W - 1; ++j) at[j] = Pair<T>::load(slot + j * C);
  }
  template <class T>
  __device__ void store(T* slot, int64_t C) const {
#pragma unroll
    for (int j = 0; j < W - 1; ++j) Pair<T>::store(slot + j * C, at[j]);
  }
};

template <class T>
struct Args {
  View<T> x, out;
  const T *w, *bias;
  T *window, *tail, *before;  // [slots, W − 1, C]; before: of each item of the table
  int64_t C;
  int activation;
  DeviceTable table;
};

// What lies between steps: the window before each of them, those that are saved, operators' tails. Of a step only
// its last W − 1 rows are read. Block x: channels, y: a chain of this level.
template <class T, int W>
__global__ void edges_kernel(Args<T> a, int32_t first_chain) {
  const int64_t c = 2 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x), slot_size = (W - 1) * a.C;
  if (c >= a.C) return;
  const Chain chain = a.table.chains[first_chain + blockIdx.y];
  const auto push_last = [&](Window<W>& window, const ChainItem& item) {
    for (int32_t r = max(item.begin, item.end - (W - 1)); r < item.end; ++r) window.push(Pair<T>::load(a.x.row(r) + c));
  };
  Window<W> now;
  now.clear();
  if (!chain.fresh) now.load(a.window + chain.state * slot_size + c, a.C);
  for (int32_t i = chain.item_begin; i < chain.item_end; ++i) {
    const ChainItem item = a.table.items[i];
    if (item.kind == ChainItem::Kind::jump) {
      const T* tail = a.tail + item.op * slot_size + c;
      for (int j = W - 1 - min(W - 1, item.span); j < W - 1; ++j) now.push(Pair<T>::load(tail + j * a.C));
    } else {
      now.store(a.before + i * slot_size + c, a.C);
      if (item.op != kNone) {
        Window<W> ending;
        ending.clear();
        if (item.span > 0) ending.load(a.tail + item.op * slot_size + c, a.C);
        push_last(ending, item);
        ending.store(a.tail + item.op * slot_size + c, a.C);
      }
      if (item.keep) push_last(now, item);
    }
    if (item.save != kNone) now.store(a.window + item.save * slot_size + c, a.C);
  }
  now.store(a.window + chain.state * slot_size + c, a.C);
}

// Block x: channels, y: rows, whichever steps they are of.
template <class T, int W>
__global__ void __launch_bounds__(kThreads) rows_kernel(Args<T> a, int32_t R) {
  const int64_t c = 2 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x);
  if (c >= a.C) return;
  const auto begin = static_cast<int32_t>(blockIdx.y) * kRows;
  float2 w[W], bias = {0, 0};
#pragma unroll
  for (int j = 0; j < W; ++j) w[j] = {load(a.w + c * W + j), load(a.w + (c + 1) * W + j)};
  if (a.bias) bias = Pair<T>::load(a.bias + c);
  Window<W> now;
  int32_t current = kNone;
#pragma unroll 4
  for (int32_t r = begin; r < min(begin + kRows, R); ++r) {
    const int32_t item = a.table.item_of[r];
    if (item != current) {  // a step begins here, or went on into this block
      current = item;
      now.load(a.before + item * (W - 1) * a.C + c, a.C);
      for (int32_t p = max(a.table.items[item].begin, r - (W - 1)); p < r; ++p) now.push(Pair<T>::load(a.x.row(p) + c));
    }
    const float2 x = Pair<T>::load(a.x.row(r) + c);
    float2 sum = bias;
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      sum.x += w[j].x * now.at[j].x;
      sum.y += w[j].y * now.at[j].y;
    }
    sum.x += w[W - 1].x * x.x;
    sum.y += w[W - 1].y * x.y;
    Pair<T>::store(a.out.row(r) + c, {activate(sum.x, a.activation), activate(sum.y, a.activation)});
    now.push(x);
  }
}

template <class T, int W>
void launch(const CausalConvArgs& args, const TableUpload& table, cudaStream_t stream) {
  const int64_t R = args.x[0], C = args.x[1];
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
                     .table = table.device()};
  const auto columns = static_cast<unsigned>(ceil_div(C / 2, kThreads));
  for (const Level& level : table.levels()) {
    edges_kernel<T, W><<<dim3(columns, static_cast<unsigned>(level.last - level.first)), kThreads, 0, stream>>>(
        a, level.first);
    check_launch("causal_conv, edges");
  }
  if (R == 0) return;
  rows_kernel<T, W><<<dim3(columns, static_cast<unsigned>(ceil_div(R, kRows))), kThreads, 0, stream>>>(
      a, static_cast<int32_t>(R));
  check_launch("causal_conv, rows");
}

}  // namespace

bool causal_conv_rows_takes(const CausalConvArgs& a) {
  const auto pairs = [&](const Tensor& t) {
    const auto bytes = static_cast<uintptr_t>(2 * size_of(t.dtype));
    return !t || (reinterpret_cast<uintptr_t>(t.data) % bytes == 0 && t.stride[0] % 2 == 0);
  };
  return a.x.rank == 2 && a.w.rank == 2 && 2 <= a.w[1] && a.w[1] <= 4 && a.x[1] > 0 && a.x[1] % 2 == 0 && pairs(a.x) &&
         pairs(a.out) && pairs(a.window) && pairs(a.tail) &&
         (!a.bias || reinterpret_cast<uintptr_t>(a.bias.data) % (2 * size_of(a.bias.dtype)) == 0);
}

void causal_conv_rows(const CausalConvArgs& a, const TableUpload& table, cudaStream_t stream) {
  const std::string before = std::to_string(a.w[1] - 1);
  Shapes("causal_conv").bind(a.x, "x", {"R", "C"}).bind(a.out, "out", {"R", "C"}).bind(a.w, "w", {"C", "W"})
      .bind(a.window, "window", {"S", before.c_str(), "C"}).bind(a.tail, "tail", {"operators", before.c_str(), "C"});
  HYPIC_CHECK(causal_conv_rows_takes(a) && a.x[0] == table.rows() && a.w.contiguous() && a.window.contiguous() &&
              a.tail.contiguous() && a.x.data != a.out.data);
  visit_device(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (a.w[1] == 2) return launch<T, 2>(a, table, stream);
    if (a.w[1] == 3) return launch<T, 3>(a, table, stream);
    launch<T, 4>(a, table, stream);
  });
}

}  // namespace hypic::cuda
