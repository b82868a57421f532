// Inner products with one fixed order of summation, whatever the number of rows in a batch: the CPU
// backends promise the same bits for a row alone and in any batch.
#pragma once

#include <cstdint>
#include <cstring>

namespace hypic::reference {

template <class T>
struct Lanes {
  static constexpr int kCount = 32 / sizeof(T);
  typedef T Vector __attribute__((vector_size(32)));

  static Vector load(const T* from) {
    Vector v;
    std::memcpy(&v, from, sizeof(v));
    return v;
  }
  static T sum(const Vector& v) {
    T total = 0;
    for (int i = 0; i < kCount; ++i) total += v[i];
    return total;
  }
};

// y[j] = Σ_i x[i] w[j·stride + i] for j < Count.
template <int Count, class T>
void dot(const T* x, const T* w, int64_t stride, int64_t n, T* y) {
  using L = Lanes<T>;
  typename L::Vector sums[Count] = {};
  int64_t i = 0;
  for (; i + L::kCount <= n; i += L::kCount) {
    const typename L::Vector xi = L::load(x + i);
    for (int j = 0; j < Count; ++j) sums[j] += xi * L::load(w + j * stride + i);
  }
  for (int j = 0; j < Count; ++j) {
    T rest = 0;
    for (int64_t k = i; k < n; ++k) rest += x[k] * w[j * stride + k];
    y[j] = L::sum(sums[j]) + rest;
  }
}

template <class T>
T dot(const T* x, const T* w, int64_t n) {
  T y;
  dot<1>(x, w, 0, n, &y);
  return y;
}

}  // namespace hypic::reference
