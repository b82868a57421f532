#include "core/tensor.h"

#include <algorithm>
#include <cctype>

namespace hypic {

Tensor::Tensor(void* data, DType dtype, std::span<const int64_t> dims)
    : data(data), dtype(dtype), rank(static_cast<int>(dims.size())) {
  HYPIC_CHECK(rank <= kMaxRank);
  std::copy(dims.begin(), dims.end(), shape.begin());
  int64_t step = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    HYPIC_CHECK(shape[axis] >= 0, shape_string());
    stride[axis] = step;
    step *= shape[axis];
  }
}

int64_t Tensor::size() const {
  int64_t n = 1;
  for (int axis = 0; axis < rank; ++axis) n *= shape[axis];
  return n;
}

bool Tensor::contiguous() const {
  if (size() == 0) return true;
  int64_t step = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && stride[axis] != step) return false;
    step *= shape[axis];
  }
  return true;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  HYPIC_CHECK(rank > 0 && 0 <= begin && begin <= end && end <= shape[0], "rows [", begin, ", ", end,
              ") of ", shape_string());
  Tensor view = *this;
  view.data = static_cast<char*>(data) + begin * stride[0] * size_of(dtype);
  view.shape[0] = end - begin;
  return view;
}

Tensor Tensor::at(int64_t i) const {
  Tensor view = rows(i, i + 1);
  std::copy(shape.begin() + 1, shape.end(), view.shape.begin());
  std::copy(stride.begin() + 1, stride.end(), view.stride.begin());
  view.shape.back() = view.stride.back() = 0;
  --view.rank;
  return view;
}

Tensor Tensor::columns(int64_t begin, int64_t end) const {
  HYPIC_CHECK(rank > 0 && 0 <= begin && begin <= end && end <= shape[rank - 1], "columns [", begin,
              ", ", end, ") of ", shape_string());
  Tensor view = *this;
  view.data = static_cast<char*>(data) + begin * stride[rank - 1] * size_of(dtype);
  view.shape[rank - 1] = end - begin;
  return view;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> dims) const {
  Tensor view(data, dtype, dims);
  HYPIC_CHECK(view.size() == size(), shape_string(), " as ", view.shape_string());
  if (contiguous()) return view;
  // Strided rows: the first axis stays, the rest of a row must be dense.
  HYPIC_CHECK(rank >= 1 && view.rank >= 1 && view.shape[0] == shape[0] &&
                  (shape[0] == 0 || at(0).contiguous()),
              shape_string(), " as ", view.shape_string());
  view.stride[0] = stride[0];
  return view;
}

std::string Tensor::shape_string() const {
  std::string text = "[";
  for (int axis = 0; axis < rank; ++axis) text += str(axis ? ", " : "", shape[axis]);
  return text + "]";
}

Shapes& Shapes::bind(const Tensor& tensor, const char* name,
                     std::initializer_list<const char*> axes) {
  HYPIC_CHECK(tensor.rank == static_cast<int>(axes.size()), operation_, ": ", name, " has shape ",
              tensor.shape_string(), ", expected ", axes.size(), " axes");
  int i = 0;
  for (const std::string axis : axes) {
    const int64_t size = tensor.shape[i++];
    if (std::isdigit(static_cast<unsigned char>(axis[0]))) {
      HYPIC_CHECK(std::to_string(size) == axis, operation_, ": ", name, " has shape ",
                  tensor.shape_string(), ", expected ", axis, " on axis ", i - 1);
      continue;
    }
    const auto known = std::find_if(axes_.begin(), axes_.end(),
                                    [&](const Axis& a) { return a.name == axis; });
    if (known == axes_.end()) {
      axes_.push_back({axis, name, size});
    } else {
      HYPIC_CHECK(known->size == size, operation_, ": ", name, " has shape ", tensor.shape_string(),
                  ", but ", axis, " = ", known->size, " from ", known->from);
    }
  }
  return *this;
}

int64_t Shapes::operator[](const std::string& axis) const {
  for (const Axis& known : axes_)
    if (known.name == axis) return known.size;
  HYPIC_CHECK(false, operation_, ": no size named ", axis);
}

}  // namespace hypic
