// For tests: tensors that own their memory, and chain tables written by hand.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/chain.h"
#include "core/tensor.h"

namespace hypic::reference {

// A contiguous tensor; NaN at first, as fresh memory of a backend is.
template <class T>
struct Owned {
  explicit Owned(std::vector<int64_t> shape) {
    int64_t size = 1;
    for (const int64_t n : shape) size *= n;
    memory.assign(size, std::numeric_limits<T>::quiet_NaN());
    tensor = Tensor(memory.data(), kDTypeOf<T>, shape);
  }
  Owned(Owned&&) = default;
  Owned(const Owned& other)
      : memory(other.memory),
        tensor(memory.data(), kDTypeOf<T>,
               std::span(other.tensor.shape.data(), other.tensor.rank)) {}
  Owned& operator=(const Owned&) = delete;

  operator const Tensor&() const { return tensor; }
  T& operator[](int64_t i) { return memory[i]; }
  const T& operator[](int64_t i) const { return memory[i]; }

  std::vector<T> memory;
  Tensor tensor;
};

// Normal numbers times scale.
template <class T>
Owned<T> random(std::vector<int64_t> shape, uint64_t seed, double scale = 1) {
  Owned<T> x(std::move(shape));
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal;
  for (T& element : x.memory) element = static_cast<T>(scale * normal(bits));
  return x;
}

// Tokens or positions.
inline Owned<int32_t> integers(const std::vector<int32_t>& values) {
  Owned<int32_t> x({static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), x.memory.begin());
  return x;
}

// The elements of a view, row-major, as float64.
inline std::vector<double> elements(const Tensor& t) {
  if (t.rank > 0) {
    std::vector<double> all;
    for (int64_t i = 0; i < t[0]; ++i)
      for (const double x : elements(t.at(i))) all.push_back(x);
    return all;
  }
  return {t.dtype == DType::f64   ? *t.as<double>()
          : t.dtype == DType::f32 ? *t.as<float>()
                                  : *t.as<int32_t>()};
}

// Largest difference, relative to the largest element of y; infinite where sizes differ or x is not
// finite.
inline double distance(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() != y.size()) return INFINITY;
  double worst = 0, top = 1e-300;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) return INFINITY;
    worst = std::max(worst, std::abs(x[i] - y[i]));
    top = std::max(top, std::abs(y[i]));
  }
  return worst / top;
}

inline bool finite(const Tensor& t) {
  const std::vector<double> all = elements(t);
  return std::all_of(all.begin(), all.end(), [](double x) { return std::isfinite(x); });
}

// Items as add_chain takes them.
inline ChainItem step(int32_t rows, int32_t op = kNone, int32_t span = 0) {
  ChainItem item;
  item.end = rows;
  item.op = op;
  item.span = span;
  return item;
}

inline ChainItem jump(int32_t op, int32_t span, Compose compose = Compose::transfer) {
  ChainItem item;
  item.kind = ChainItem::Kind::jump;
  item.op = op;
  item.span = span;
  item.compose = compose;
  return item;
}

inline ChainItem without_keep(ChainItem item) {
  item.keep = false;
  return item;
}

inline ChainItem saving(ChainItem item, int32_t slot) {
  item.save = slot;
  return item;
}

// Appends a chain over the next rows of the table; its first row has that position.
inline void add_chain(ChainTable& table, Chain chain, const std::vector<ChainItem>& items,
                      int32_t position = 0) {
  chain.item_begin = static_cast<int32_t>(table.items.size());
  chain.row_begin = table.row_count();
  for (ChainItem item : items) {
    if (item.kind == ChainItem::Kind::step) {
      item.begin = table.row_count();
      item.end += item.begin;
      for (int32_t row = item.begin; row < item.end; ++row) {
        table.tokens.push_back(0);
        table.positions.push_back(position++);
        table.chain_of.push_back(static_cast<int32_t>(table.chains.size()));
      }
    } else {
      position += item.span;
    }
    table.items.push_back(item);
  }
  chain.item_end = static_cast<int32_t>(table.items.size());
  chain.row_end = table.row_count();
  table.chains.push_back(chain);
}

inline ChainTable one_chain(Chain chain, const std::vector<ChainItem>& items,
                            int32_t position = 0) {
  ChainTable table;
  add_chain(table, chain, items, position);
  return table;
}

}  // namespace hypic::reference
