#include "reference/ops/causal_conv.h"

#include <algorithm>
#include <vector>

#include "reference/ops/pointwise.h"

namespace hypic::reference {
namespace {

// The last W−1 raw rows, oldest first.
template <class T>
class Window {
 public:
  Window(int64_t rows, int64_t channels) : channels_(channels), data_(rows * channels, T{0}) {}
  void load(const Tensor& from) { std::copy_n(from.as<T>(), data_.size(), data_.begin()); }
  void store(const Tensor& to) const { std::copy(data_.begin(), data_.end(), to.as<T>()); }
  void push(const T* row) {
    if (data_.empty()) return;
    std::copy(data_.begin() + channels_, data_.end(), data_.begin());
    std::copy_n(row, channels_, data_.end() - channels_);
  }
  const T* row(int64_t i) const { return data_.data() + i * channels_; }

 private:
  int64_t channels_;
  std::vector<T> data_;
};

template <class T>
void run_chain(const CausalConvArgs& args, const ChainTable& table, const Chain& chain) {
  const int64_t C = args.x[1], W = args.w[1], rows = W - 1;
  const T* w = args.w.as<T>();
  const T* bias = args.bias ? args.bias.as<T>() : nullptr;
  Window<T> window(rows, C);
  if (!chain.fresh) window.load(args.window.at(chain.state));
  for (int32_t i = chain.item_begin; i < chain.item_end; ++i) {
    const ChainItem& item = table.items[i];
    if (item.kind == ChainItem::Kind::jump) {
      const Tensor tail = args.tail.at(item.op);
      for (int64_t j = rows - std::min<int64_t>(rows, item.span); j < rows; ++j)
        window.push(tail.as<T>() + j * C);
    } else {
      const Window<T> before = window;
      Window<T> tail(rows, C);
      if (item.op != kNone && item.span > 0) tail.load(args.tail.at(item.op));
      for (int32_t r = item.begin; r < item.end; ++r) {
        const T* x = args.x.as<T>() + r * args.x.stride[0];
        T* out = args.out.as<T>() + r * args.out.stride[0];
        for (int64_t c = 0; c < C; ++c) {
          T sum = bias ? bias[c] : T{0};
          for (int64_t j = 0; j < rows; ++j) sum += w[c * W + j] * window.row(j)[c];
          out[c] = activate(sum + w[c * W + rows] * x[c], args.activation);
        }
        window.push(x);
        tail.push(x);
      }
      if (item.op != kNone) tail.store(args.tail.at(item.op));
      if (!item.keep) window = before;
    }
    if (item.save != kNone) window.store(args.window.at(item.save));
  }
  window.store(args.window.at(chain.state));
}

}  // namespace

template <class T>
void causal_conv(const CausalConvArgs& args, const ChainTable& table) {
  HYPIC_CHECK(args.w.rank == 2 && args.w[1] >= 1);
  const std::string before = std::to_string(args.w[1] - 1);
  Shapes("causal_conv").bind(args.x, "x", {"R", "C"}).bind(args.out, "out", {"R", "C"})
      .bind(args.w, "w", {"C", "W"}).bind(args.window, "window", {"S", before.c_str(), "C"})
      .bind(args.tail, "tail", {"operators", before.c_str(), "C"});
  check_dtype<T>(args.x, args.w, args.window, args.tail, args.out, args.bias);
  HYPIC_CHECK(!args.bias || (args.bias.contiguous() && args.bias.size() == args.x[1]));
  HYPIC_CHECK(args.x[0] == table.row_count() && args.x.stride[1] == 1 && args.out.stride[1] == 1 &&
              args.w.contiguous());
  HYPIC_CHECK(args.x.data != args.out.data, "the window needs the raw rows: not in place");
  for (const Chain& chain : table.chains) run_chain<T>(args, table, chain);
}

template void causal_conv<float>(const CausalConvArgs&, const ChainTable&);
template void causal_conv<double>(const CausalConvArgs&, const ChainTable&);

}  // namespace hypic::reference
