#include "reference/group.h"

#include "core/check.h"

namespace hypic::reference {
namespace {

// Into every part.
void sum(const std::vector<Tensor>& parts) {
  const Tensor& first = parts[0];
  for (const Tensor& part : parts)
    HYPIC_CHECK(part.dtype == first.dtype && part.size() == first.size(), "ranks sum ", first.shape_string(), " and ",
                part.shape_string());
  const auto add = [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < first.size(); ++i) {
      T total = first.as<T>()[i];
      for (size_t rank = 1; rank < parts.size(); ++rank) total += parts[rank].as<T>()[i];
      for (const Tensor& part : parts) part.as<T>()[i] = total;
    }
  };
  switch (first.dtype) {
    case DType::f32:
      return add(float{});
    case DType::f64:
      return add(double{});
    case DType::i32:
      return add(int32_t{});
    default:
      HYPIC_CHECK(false, "all_reduce of ", name_of(first.dtype));
  }
}

}  // namespace

void Group::all_reduce(int rank, const Tensor& tensor) {
  HYPIC_CHECK(tensor.contiguous(), "all_reduce of strided rows");
  parts[rank] = tensor;
  meeting.meet(rank, [&] { sum(parts); });  // all wait, so each part may be written
}

}  // namespace hypic::reference
