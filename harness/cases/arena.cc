#include "harness/cases/arena.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"

namespace hypic::conformance {
namespace {

constexpr int64_t kGuard = 256;     // bytes; keeps the alignment that kernels count on
constexpr std::byte kCanary{0xff};  // NaN in every float type: a read outside shows as well

void store(std::byte* to, DType dtype, double x) {
  const auto put = [&](auto value) { std::memcpy(to, &value, sizeof(value)); };
  switch (dtype) {
    case DType::f64:
      return put(x);
    case DType::f32:
      return put(static_cast<float>(x));
    case DType::bf16:
      return put(std::isnan(x) ? BFloat16{0x7fff} : BFloat16::from(static_cast<float>(x)));
    case DType::i32:
      return put(static_cast<int32_t>(x));
    default:
      fail("conformance has no way to write ", name_of(dtype));
  }
}

double load(const std::byte* from, DType dtype) {
  const auto get = [&]<class T>(T value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::f64:
      return get(double{});
    case DType::f32:
      return get(float{});
    case DType::bf16:
      return static_cast<float>(get(BFloat16{}));
    case DType::i32:
      return get(int32_t{});
    default:
      fail("conformance has no way to read ", name_of(dtype));
  }
}

// Calls visit(byte offset of an element) in row-major order; the first lies at `begin`.
template <class Visit>
void for_each_element(const Tensor& t, int64_t begin, Visit visit) {
  const int64_t rows = t.rank ? t[0] : 1, row = rows ? t.size() / rows : 0;
  const int64_t stride = t.rank ? t.stride[0] : 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < row; ++i) visit(begin + (r * stride + i) * size_of(t.dtype));
}

}  // namespace

Array rounded(Array x, DType dtype) {
  std::byte bits[8];
  for (double& element : x.data) {
    store(bits, dtype, element);
    element = load(bits, dtype);
  }
  return x;
}

Array to_array(const Tensor& tensor) {
  Array out(std::vector<int64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.rank));
  visit_float(tensor.dtype, [&]<class T>(T value) {
    const auto* from = static_cast<const std::byte*>(tensor.data);  // may be unaligned
    for (double& x : out.data) {
      std::memcpy(&value, from, sizeof(value));
      from += sizeof(value);
      if constexpr (std::is_same_v<T, double>)
        x = value;
      else
        x = static_cast<float>(value);
    }
  });
  return out;
}

std::vector<std::byte> bytes_of(const Array& values, DType dtype) {
  std::vector<std::byte> bytes(values.data.size() * size_of(dtype));
  for (size_t i = 0; i < values.data.size(); ++i) store(&bytes[i * size_of(dtype)], dtype, values.data[i]);
  return bytes;
}

void put(Backend& backend, const Tensor& to, const Array& values) {
  HYPIC_CHECK(to.size() == static_cast<int64_t>(values.data.size()));
  backend.upload(to, bytes_of(values, to.dtype).data());
}

Tensor Arena::add(const std::string& name, std::span<const int64_t> shape, DType dtype, int64_t gap, int64_t lead,
                  const double* values, bool constant) {
  HYPIC_CHECK(0 <= lead && lead <= gap);
  Entry entry{name, {}, Tensor(nullptr, dtype, shape), {}, constant, kGuard + lead * size_of(dtype)};
  if (gap > 0) entry.tensor.stride[0] += gap;
  const int64_t rows = shape.empty() ? 1 : shape[0];
  entry.image.assign(
      2 * kGuard + rows * (shape.empty() ? 1 : entry.tensor.stride[0]) * size_of(dtype), kCanary);
  if (values)
    for_each_element(entry.tensor, entry.begin,
                     [&](int64_t offset) { store(&entry.image[offset], dtype, *values++); });
  const int64_t bytes = static_cast<int64_t>(entry.image.size());
  entry.memory = Buffer(backend_, DType::u8, {bytes});
  backend_.upload(entry.memory.tensor(), entry.image.data());
  entry.tensor.data = static_cast<std::byte*>(entry.memory.tensor().data) + entry.begin;
  const Tensor tensor = entry.tensor;
  entries_.push_back(std::move(entry));
  return tensor;
}

Tensor Arena::input(const std::string& name, const Array& values, DType dtype, int64_t gap, int64_t lead) {
  return add(name, values.shape, dtype, gap, lead, values.data.data(), true);
}

Tensor Arena::index(const std::string& name, const std::vector<int32_t>& values) {
  const std::vector<double> wide(values.begin(), values.end());
  const int64_t size = static_cast<int64_t>(values.size());
  return add(name, {&size, 1}, DType::i32, 0, 0, wide.data(), true);
}

Tensor Arena::output(const std::string& name, std::span<const int64_t> shape, DType dtype, int64_t gap,
                     int64_t lead) {
  return add(name, shape, dtype, gap, lead, nullptr, false);
}

Tensor Arena::inout(const std::string& name, const Array& values, DType dtype, int64_t gap) {
  return add(name, values.shape, dtype, gap, 0, values.data.data(), false);
}

std::vector<std::byte> Arena::download(const Entry& entry) const {
  std::vector<std::byte> bytes(entry.image.size());
  backend_.download(bytes.data(), entry.memory.tensor());
  return bytes;
}

Array Arena::read(const Tensor& tensor) const {
  for (const Entry& entry : entries_) {
    if (entry.tensor.data != tensor.data) continue;
    const std::vector<std::byte> bytes = download(entry);
    Array out(std::vector<int64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.rank));
    size_t i = 0;
    for_each_element(entry.tensor, entry.begin,
                     [&](int64_t offset) { out.data[i++] = load(&bytes[offset], tensor.dtype); });
    return out;
  }
  HYPIC_CHECK(false, "a tensor of another arena");
}

std::vector<std::vector<std::byte>> Arena::save() const {
  std::vector<std::vector<std::byte>> saved;
  for (const Entry& entry : entries_)
    if (!entry.constant) saved.push_back(download(entry));
  return saved;
}

void Arena::restore(const std::vector<std::vector<std::byte>>& saved) {
  auto bytes = saved.begin();
  for (const Entry& entry : entries_)
    if (!entry.constant) backend_.upload(entry.memory.tensor(), (bytes++)->data());
}

std::string Arena::first_change(const std::vector<std::vector<std::byte>>& saved) const {
  auto bytes = saved.begin();
  for (const Entry& entry : entries_)
    if (!entry.constant && download(entry) != *bytes++) return entry.name;
  return {};
}

std::vector<std::string> Arena::violations() const {
  std::vector<std::string> lines;
  for (const Entry& entry : entries_) {
    std::vector<std::byte> now = download(entry);
    std::vector<std::byte> allowed = entry.image;
    if (!entry.constant)
      for_each_element(entry.tensor, entry.begin, [&](int64_t offset) {
        std::memcpy(&allowed[offset], &now[offset], size_of(entry.tensor.dtype));
      });
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] == allowed[i]) continue;
      const int64_t element = (static_cast<int64_t>(i) - entry.begin) / size_of(entry.tensor.dtype);
      const bool inside = kGuard <= static_cast<int64_t>(i) && i + kGuard < now.size();
      lines.push_back(entry.constant && inside
                          ? str("input ", entry.name, " was changed at element ", element)
                          : str("written outside ", entry.name, " at element ", element, " of ",
                                entry.tensor.shape_string()));
      break;
    }
  }
  return lines;
}

}  // namespace hypic::conformance
