// The tensors of one operation in a backend's memory, watched: every buffer lies between canaries,
// gaps between rows are canaries too, outputs begin as NaN, and inputs must come back unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "reference/families/array.h"

namespace hypic::conformance {

using reference::Array;

// x as the dtype holds it.
Array rounded(Array x, DType dtype);

// The elements of a host tensor of any float dtype, which may be unaligned.
Array to_array(const Tensor& tensor);

// The elements as the dtype holds them, row-major.
std::vector<std::byte> bytes_of(const Array& values, DType dtype);

// Uploads values into a contiguous tensor of a backend.
void put(Backend& backend, const Tensor& to, const Array& values);

class Arena {
 public:
  explicit Arena(Backend& backend) : backend_(backend) {}

  // `gap` elements lie between rows (the first axis), `lead` of them before the first row: a view of some columns of a
  // wider tensor, of which others come first.
  Tensor input(const std::string& name, const Array& values, DType dtype, int64_t gap = 0, int64_t lead = 0);
  Tensor index(const std::string& name, const std::vector<int32_t>& values);
  Tensor output(const std::string& name, std::span<const int64_t> shape, DType dtype, int64_t gap = 0,
                int64_t lead = 0);
  Tensor output(const std::string& name, std::initializer_list<int64_t> shape, DType dtype, int64_t gap = 0,
                int64_t lead = 0) {
    return output(name, std::span(shape.begin(), shape.size()), dtype, gap, lead);
  }
  Tensor inout(const std::string& name, const Array& values, DType dtype, int64_t gap = 0);

  // What the tensor holds now.
  Array read(const Tensor& tensor) const;

  // The bytes of all that an operation may write, and back.
  std::vector<std::vector<std::byte>> save() const;
  void restore(const std::vector<std::vector<std::byte>>& saved);
  // The first output whose bytes are not those saved; empty: none.
  std::string first_change(const std::vector<std::vector<std::byte>>& saved) const;

  // One line for each buffer that was written where it must not be.
  std::vector<std::string> violations() const;

 private:
  struct Entry {
    std::string name;
    Buffer memory;
    Tensor tensor;
    std::vector<std::byte> image;  // as uploaded
    bool constant;
    int64_t begin;  // bytes before the first element
  };
  Tensor add(const std::string& name, std::span<const int64_t> shape, DType dtype, int64_t gap, int64_t lead,
             const double* values, bool constant);
  std::vector<std::byte> download(const Entry& entry) const;

  Backend& backend_;
  std::vector<Entry> entries_;
};

}  // namespace hypic::conformance
