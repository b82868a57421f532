#include "harness/bench/job.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace hypic::bench {
namespace {

constexpr int64_t kDrawn = 1 << 18;   // elements drawn on the host, more or less
constexpr int64_t kSample = 1 << 16;  // elements looked at

void put(void* to, DType dtype, const double* from, int64_t n) {
  visit_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    T* out = static_cast<T*>(to);
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (std::is_same_v<T, BFloat16>)
        out[i] = BFloat16::from(static_cast<float>(from[i]));
      else if constexpr (std::is_floating_point_v<T>)
        out[i] = static_cast<T>(from[i]);
      else
        fail("no benchmark in ", name_of(dtype));
    }
  });
}

// Some consecutive elements, a share of the way into the tensor.
Tensor sample(Tensor t, double where) {
  while (t.size() > kSample && t.rank > 1)
    t = t.at(static_cast<int64_t>(where * static_cast<double>(t[0] - 1)));
  if (t.size() > kSample) {
    const auto begin = static_cast<int64_t>(where * static_cast<double>(t[0] - kSample));
    t = t.rows(begin, begin + kSample);
  }
  return t;
}

}  // namespace

void Job::begin(ChainTable table, int64_t states, int64_t operators, int64_t pages) {
  table_ = std::move(table);
  if (pages == 0) {  // a table is checked with its pages: one list stands for every chain's
    table_.pages.assign(table_.row_count() / table_.page_size + 1, 0);
    for (Chain& chain : table_.chains) chain.page_begin = 0;
    pages = 1;
  }
  table_.check(states, operators, pages);
  backend.begin(table_);
}

Tensor Job::reserve(DType dtype, const Shape& shape) {
  Shape some = shape;  // no backend has to allocate nothing
  some[0] = std::max<int64_t>(some[0], 1);
  return memory_.emplace_back(backend, dtype, some).tensor().rows(0, shape[0]);
}

Tensor Job::fill(DType dtype, const Shape& shape, uint64_t seed, const Row& draw_row) {
  const Tensor tensor = reserve(dtype, shape);
  const int64_t total = tensor.size(), n = shape.back();
  if (total == 0) return tensor;
  const int64_t rows = std::clamp<int64_t>(kDrawn / n, 1, total / n);
  std::vector<double> values(rows * n);
  Draw draw(seed ? seed : next_seed_++);
  for (int64_t r = 0; r < rows; ++r) draw_row(&values[r * n], n, draw);
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  put(bytes.data(), dtype, values.data(), rows * n);
  const auto part = [&](int64_t begin, int64_t end) {
    return Tensor(tensor.data, dtype, {total}).rows(begin, end);
  };
  backend.upload(part(0, rows * n), bytes.data());
  for (int64_t done = rows * n; done < total;) {
    const int64_t more = std::min(done, total - done);
    backend.copy(part(done, done + more), part(0, more));
    done += more;
  }
  return tensor;
}

Tensor Job::normal(const Shape& shape, double scale) {
  return fill(backend.compute_dtype(), shape, 0, [=](double* row, int64_t n, Draw& draw) {
    for (int64_t i = 0; i < n; ++i) row[i] = scale * draw.normal();
  });
}

Tensor Job::unit(const Shape& shape, double length, uint64_t seed) {
  return fill(backend.compute_dtype(), shape, seed, [=](double* row, int64_t n, Draw& draw) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      row[i] = draw.normal();
      sum += row[i] * row[i];
    }
    for (int64_t i = 0; i < n; ++i) row[i] *= length / std::sqrt(sum);
  });
}

Tensor Job::state_normal(const Shape& shape, double scale) {
  return fill(backend.state_dtype(), shape, 0, [=](double* row, int64_t n, Draw& draw) {
    for (int64_t i = 0; i < n; ++i) row[i] = scale * draw.normal();
  });
}

Tensor Job::uniform(const Shape& shape, double low, double high) {
  return fill(backend.state_dtype(), shape, 0, [=](double* row, int64_t n, Draw& draw) {
    for (int64_t i = 0; i < n; ++i) row[i] = draw.uniform(low, high);
  });
}

Tensor Job::log_decay(const Shape& shape, int64_t hard) {
  return fill(backend.state_dtype(), shape, 0, [=](double* row, int64_t n, Draw& draw) {
    for (int64_t i = 0; i < n; ++i) {
      row[i] = -std::pow(10, draw.uniform(-3, -1));
      if (hard > 0 && draw.integer(1, hard) == 1) row[i] = -100;
    }
  });
}

Tensor Job::index(const std::vector<int32_t>& values) {
  const Tensor tensor = reserve(DType::i32, {static_cast<int64_t>(values.size())});
  backend.upload(tensor, values.data());
  return tensor;
}

Tensor Job::output(const std::string& name, const Shape& shape) {
  watch(name, reserve(backend.compute_dtype(), shape));
  return outputs_.back().second;
}

Tensor Job::state_output(const std::string& name, const Shape& shape) {
  watch(name, reserve(backend.state_dtype(), shape));
  return outputs_.back().second;
}

Tensor Job::index_output(const std::string& name, const Shape& shape) {
  watch(name, reserve(DType::i32, shape));
  return outputs_.back().second;
}

std::string Job::fault() const {
  for (const auto& [name, tensor] : outputs_) {
    if (tensor.size() == 0) continue;
    for (const double where : {0.0, 0.5, 1.0}) {
      const Tensor part = sample(tensor, where);
      if (part.dtype == DType::i32) {  // fresh memory holds −1
        std::vector<int32_t> values(part.size());
        backend.download(values.data(), part);
        if (std::any_of(values.begin(), values.end(), [](int32_t i) { return i < 0; }))
          return name + " holds an index below 0";
        continue;
      }
      const std::vector<double> values = to_doubles(backend, part);
      if (!std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }))
        return name + " holds NaN or infinity";
      if (std::all_of(values.begin(), values.end(), [](double x) { return x == 0; }))
        return name + " is all zero";
    }
  }
  return {};
}

std::vector<Bench> all_benches(const Sizes& sizes) {
  std::vector<Bench> all;
  add_linear_attention(all, sizes);
  add_attention(all, sizes);
  add_experts(all, sizes);
  add_products(all, sizes);
  add_pointwise(all, sizes);
  all.push_back(copy_bench(sizes));
  all.push_back(product_bench(sizes));
  return all;
}

}  // namespace hypic::bench
