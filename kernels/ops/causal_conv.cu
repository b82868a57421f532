#include "kernels/ops/causal_conv.cuh"

#include "kernels/common/view.cuh"

namespace hypic::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxWindow = 63;

// The last W−1 raw values of one channel, oldest first.
struct Window {
  float at[kMaxWindow];
  int rows;
  __device__ void clear() {
    for (int j = 0; j < rows; ++j) at[j] = 0;
  }
  __device__ void push(float x) {
    for (int j = 0; j + 1 < rows; ++j) at[j] = at[j + 1];
    if (rows > 0) at[rows - 1] = x;
  }
};

template <class T>
struct Pool {  // [slots, W−1, C]
  T* data;
  int64_t rows, C;
  __device__ T* at(int64_t slot, int64_t row, int64_t c) const { return data + (slot * rows + row) * C + c; }
  __device__ void load_into(Window& w, int64_t slot, int64_t c) const {
    for (int j = 0; j < rows; ++j) w.at[j] = load(at(slot, j, c));
  }
  __device__ void store_from(const Window& w, int64_t slot, int64_t c) const {
    for (int j = 0; j < rows; ++j) store(at(slot, j, c), w.at[j]);
  }
};

// One channel of one chain a thread, in the order of the prompt.
template <class T>
__global__ void conv_kernel(View<T> x, const T* w, const T* bias, int activation, Pool<T> window, Pool<T> tail,
                            View<T> out, int64_t C, int W, DeviceTable table, int32_t first_chain) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= C) return;
  const Chain chain = table.chains[first_chain + blockIdx.y];
  const int rows = W - 1;
  Window now, before, ending;
  now.rows = before.rows = ending.rows = rows;
  now.clear();
  if (!chain.fresh) window.load_into(now, chain.state, c);
  const float b = bias ? load(bias + c) : 0;
  for (int32_t i = chain.item_begin; i < chain.item_end; ++i) {
    const ChainItem item = table.items[i];
    if (item.kind == ChainItem::Kind::jump) {
      for (int j = rows - min(rows, item.span); j < rows; ++j) now.push(load(tail.at(item.op, j, c)));
    } else {
      before = now;
      if (item.op != kNone) {
        ending.clear();
        if (item.span > 0) tail.load_into(ending, item.op, c);
      }
      for (int32_t r = item.begin; r < item.end; ++r) {
        const float value = load(x.row(r) + c);
        float sum = b;
        for (int j = 0; j < rows; ++j) sum += load(w + c * W + j) * now.at[j];
        store(out.row(r) + c, activate(sum + load(w + c * W + rows) * value, activation));
        now.push(value);
        if (item.op != kNone) ending.push(value);
      }
      if (item.op != kNone) tail.store_from(ending, item.op, c);
      if (!item.keep) now = before;
    }
    if (item.save != kNone) window.store_from(now, item.save, c);
  }
  window.store_from(now, chain.state, c);
}

}  // namespace

void causal_conv(const CausalConvArgs& a, const TableUpload& table, cudaStream_t stream) {
  HYPIC_CHECK(a.w.rank == 2 && a.w[1] >= 1 && a.w[1] - 1 <= kMaxWindow, a.w.shape_string());
  const std::string before = std::to_string(a.w[1] - 1);
  Shapes("causal_conv").bind(a.x, "x", {"R", "C"}).bind(a.out, "out", {"R", "C"}).bind(a.w, "w", {"C", "W"})
      .bind(a.window, "window", {"S", before.c_str(), "C"}).bind(a.tail, "tail", {"operators", before.c_str(), "C"});
  HYPIC_CHECK(a.x[0] == table.rows() && a.w.contiguous() && a.window.contiguous() && a.tail.contiguous() &&
              a.x.data != a.out.data);
  const int64_t C = a.x[1];
  if (C == 0) return;
  visit_device(a.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t rows = a.w[1] - 1;
    for (const Level& level : table.levels()) {
      const dim3 grid(static_cast<unsigned>(ceil_div(C, kThreads)), static_cast<unsigned>(level.last - level.first));
      conv_kernel<T><<<grid, kThreads, 0, stream>>>(
          view<T>(a.x), static_cast<const T*>(a.w.data), static_cast<const T*>(a.bias.data),
          static_cast<int>(a.activation), Pool<T>{static_cast<T*>(a.window.data), rows, C},
          Pool<T>{static_cast<T*>(a.tail.data), rows, C}, view<T>(a.out), C, static_cast<int>(a.w[1]), table.device(),
          level.first);
      check_launch("causal_conv");
    }
  });
}

}  // namespace hypic::cuda
