#include "reference/ops/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/counter_bits.h"
#include "core/dtype.h"
#include "reference/ops/threads.h"

namespace hypic::reference {
namespace {

constexpr int64_t kBlock = 1 << 14;

double normal(uint64_t stream, uint64_t i) {
  return std::sqrt(-2 * std::log(uniform(stream, 2 * i))) *
         std::cos(2 * std::numbers::pi * uniform(stream, 2 * i + 1));
}

int64_t number(const RandomNormalArgs& a, int64_t i) { return i / a.columns * a.stride + i % a.columns; }

}  // namespace

void random_normal(const RandomNormalArgs& a) {
  HYPIC_CHECK(a.out.contiguous() && 0 < a.columns && a.columns <= a.stride);
  const int64_t size = a.out.size();
  visit_float(a.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) >= 4) {
      T* const out = a.out.as<T>();
      parallel_for((size + kBlock - 1) / kBlock, 64 * size, [&](int64_t block) {
        for (int64_t i = block * kBlock; i < std::min(size, (block + 1) * kBlock); ++i)
          out[i] = static_cast<float>(
              BFloat16::from(static_cast<float>(a.mean + a.deviation * normal(a.stream, number(a, i)))));
      });
    } else {
      HYPIC_CHECK(false, "random numbers as ", name_of(a.out.dtype));
    }
  });
}

}  // namespace hypic::reference
