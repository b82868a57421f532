// Random weights: every backend draws the same numbers, to the bit.
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "harness/cases/op_cases.h"

namespace hypic::conformance {
namespace {

// SplitMix64 as published: a generator whose state steps by the golden ratio.
class SplitMix {
 public:
  explicit SplitMix(uint64_t state) : state_(state) {}
  double uniform() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (static_cast<double>((z ^ (z >> 31)) >> 11) + 0.5) * std::ldexp(1.0, -53);
  }

 private:
  uint64_t state_;
};

void numbers(Context& c) {
  for (const int64_t n : {0, 1, 1000, 70000})
    for (const auto& [stream, mean, deviation] :
         {std::tuple{uint64_t{0}, 0.0, 1.0}, {0xfedcba9876543210u, 1.0, 0.1}}) {
      Array want({n});
      for (int64_t i = 0; i < n; ++i) {
        const double u = SplitMix(stream + 2 * i).uniform(), v = SplitMix(stream + 2 * i + 1).uniform();
        const double z = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
        want(i) = static_cast<float>(mean + deviation * z);
      }
      want = rounded(want, DType::bf16);
      Trial t(c, 111);
      const Tensor weights = t.output("weights", {n}), gates = t.gate_output("gates", {n});
      t.call([&](Backend& b) {
        b.random_normal({weights, stream, mean, deviation});
        b.random_normal({gates, stream, mean, deviation});
      });
      t.identical(str(n, " numbers, compute dtype"), weights, want);
      t.identical(str(n, " numbers, state dtype"), gates, want);
    }
  // Columns 5 … 11 of rows of 19.
  constexpr int64_t kRows = 300, kColumns = 7, kStride = 19, kFirst = 5;
  constexpr uint64_t kStream = 99;
  Array want({kRows, kColumns});
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const auto n = static_cast<uint64_t>(kFirst + i / kColumns * kStride + i % kColumns);
    const double u = SplitMix(kStream + 2 * n).uniform(), v = SplitMix(kStream + 2 * n + 1).uniform();
    want.data[i] = static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
  }
  want = rounded(want, DType::bf16);
  Trial t(c, 112);
  const Tensor part = t.output("part", {kRows, kColumns});
  t.call([&](Backend& b) { b.random_normal({part, kStream + 2 * kFirst, 0, 1, kColumns, kStride}); });
  t.identical("a part of a larger tensor", part, want);
}

}  // namespace

std::vector<Case> random_cases() {
  return {{"random_normal/numbers", "random_normal", "", numbers}};
}

}  // namespace hypic::conformance
