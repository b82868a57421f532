// A tensor view: pointer, dtype, shape, strides. It never owns memory; the memory may be on a device.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"

namespace hypic {

inline constexpr int kMaxRank = 5;

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};  // in elements

  Tensor() = default;
  // Contiguous, row-major.
  Tensor(void* data, DType dtype, std::span<const int64_t> shape);
  Tensor(void* data, DType dtype, std::initializer_list<int64_t> shape)
      : Tensor(data, dtype, std::span(shape.begin(), shape.size())) {}
  template <class T>
  Tensor(T* data, std::initializer_list<int64_t> shape)
      : Tensor(const_cast<std::remove_const_t<T>*>(data), kDTypeOf<std::remove_const_t<T>>, shape) {}

  explicit operator bool() const { return data != nullptr; }
  int64_t operator[](int axis) const { return shape[axis]; }
  int64_t size() const;
  int64_t bytes() const { return size() * size_of(dtype); }
  bool contiguous() const;

  // Checked access to the elements as T.
  template <class T>
  T* as() const {
    HYPIC_CHECK(dtype == kDTypeOf<T>, "tensor is ", name_of(dtype), " ", shape_string());
    return static_cast<T*>(data);
  }

  // The rows [begin, end) of the first axis.
  Tensor rows(int64_t begin, int64_t end) const;
  // The i-th entry of the first axis, one rank lower.
  Tensor at(int64_t i) const;
  // The columns [begin, end) of the last axis (a strided view).
  Tensor columns(int64_t begin, int64_t end) const;
  // The same elements in another shape; the view must be contiguous in the axes that merge or split.
  // Only the trailing axes after the first may change when rows are strided.
  Tensor reshape(std::initializer_list<int64_t> shape) const;

  std::string shape_string() const;  // "[2, 3]"
};

// Throws unless every tensor that is there holds T. Operations call it before they write anything.
template <class T, class... Tensors>
void check_dtype(const Tensors&... tensors) {
  ((tensors ? void(tensors.template as<T>()) : void()), ...);
}

// Binds symbolic sizes across the tensors of one operation: Shapes("rope").bind(x, "x", {"R", "H", "D"}).
// The first use of a name sets it, later uses must agree; a digit string is a fixed size.
class Shapes {
 public:
  explicit Shapes(std::string operation) : operation_(std::move(operation)) {}
  Shapes& bind(const Tensor& tensor, const char* name, std::initializer_list<const char*> axes);
  int64_t operator[](const std::string& axis) const;

 private:
  struct Axis {
    std::string name, from;
    int64_t size;
  };
  std::string operation_;
  std::vector<Axis> axes_;
};

}  // namespace hypic
