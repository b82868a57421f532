// Dense float64 arrays and the few matrix operations that the definitions of the families are
// written in. Plain loops on purpose: this code is the ground truth and shares nothing with
// reference/ops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <valarray>
#include <vector>

#include "core/check.h"

namespace hypic::reference {

using Vector = std::valarray<double>;

struct Array {
  std::vector<int64_t> shape;
  std::vector<double> data;

  Array() = default;
  explicit Array(std::vector<int64_t> shape_, double fill = 0) : shape(std::move(shape_)) {
    data.assign(product(0), fill);
  }

  explicit operator bool() const { return !shape.empty(); }
  int64_t operator[](int axis) const { return shape[axis]; }
  int64_t last() const { return shape.back(); }
  // The elements under the leading index i…: product of the axes from `axis` on.
  int64_t product(size_t axis) const {
    int64_t n = 1;
    for (; axis < shape.size(); ++axis) n *= shape[axis];
    return n;
  }

  template <class... Index>
  double& operator()(Index... index) {
    return data[offset(index...)];
  }
  template <class... Index>
  double operator()(Index... index) const {
    return data[offset(index...)];
  }
  // The vector over the last axis at leading indices.
  template <class... Index>
  Vector row(Index... index) const {
    return Vector(&data[offset(index..., 0)], last());
  }
  template <class... Index>
  void set_row(const Vector& x, Index... index) {
    HYPIC_CHECK(static_cast<int64_t>(x.size()) == last());
    std::copy(std::begin(x), std::end(x), data.begin() + offset(index..., 0));
  }

 private:
  template <class... Index>
  int64_t offset(Index... index) const {
    HYPIC_CHECK(sizeof...(index) == shape.size());
    int64_t at = 0;
    size_t axis = 0;
    ((at = at * shape[axis++] + index), ...);
    return at;
  }
};

inline double dot(const Vector& a, const Vector& b) { return (a * b).sum(); }

// A matrix in somebody's memory, row-major, rows `stride` apart.
struct Matrix {
  double* data;
  int64_t rows, cols, stride;

  double& operator()(int64_t i, int64_t j) const { return data[i * stride + j]; }
  Matrix columns(int64_t begin, int64_t end) const {
    return {data + begin, rows, end - begin, stride};
  }
  // S ← x S, S ← Diag(x) S, S ← S Diag(x).
  void scale(double x) const { scale_cols(Vector(x, cols)); }
  void scale_rows(const Vector& x) const {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) (*this)(i, j) *= x[i];
  }
  void scale_cols(const Vector& x) const {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) (*this)(i, j) *= x[j];
  }
  // S ← S + a bᵀ.
  void add_outer(const Vector& a, const Vector& b) const {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) (*this)(i, j) += a[i] * b[j];
  }
  // Sᵀ a.
  Vector read(const Vector& a) const {
    Vector out(0.0, cols);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) out[j] += (*this)(i, j) * a[i];
    return out;
  }
  // S b.
  Vector times(const Vector& b) const {
    Vector out(0.0, rows);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) out[i] += (*this)(i, j) * b[j];
    return out;
  }
};

}  // namespace hypic::reference
