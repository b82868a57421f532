#include "reference/ops/rope.h"

#include <gtest/gtest.h>

#include <complex>

#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

constexpr double kTheta = 1e4;

template <class T>
std::vector<double> rotated(const Owned<T>& x, const std::vector<int32_t>& positions,
                            int rotary_dim, double theta = kTheta) {
  const Owned<T> out({x.tensor[0], x.tensor[1], x.tensor[2]});
  rope<T>({x, integers(positions), rotary_dim, theta, out});
  return elements(out);
}

// Pair (i, i + half) is a complex number, turned by position · theta^(−2i/rotary_dim).
TEST(Rope, IsAComplexRotation) {
  const std::vector<int32_t> positions = {0, 1, 17, 262143};
  const Owned<double> x = random<double>({4, 3, 10}, 1);
  for (const int rotary_dim : {0, 2, 6, 10}) {
    std::vector<double> expected = elements(x);
    for (int64_t v = 0; v < 12; ++v)
      for (int i = 0; i < rotary_dim / 2; ++i) {
        double* a = &expected[v * 10 + i];
        double* b = a + rotary_dim / 2;
        const auto z = std::complex(*a, *b) *
                       std::polar(1.0, positions[v / 3] * std::pow(kTheta, -2.0 * i / rotary_dim));
        *a = z.real(), *b = z.imag();
      }
    EXPECT_LE(distance(rotated(x, positions, rotary_dim), expected), 1e-14) << rotary_dim;
  }
}

TEST(Rope, PositionZeroIsTheIdentity) {
  const Owned<float> x = random<float>({2, 3, 8}, 1);
  EXPECT_EQ(rotated(x, {0, 0}, 6), elements(x));
}

TEST(Rope, RotationsAdd) {
  const Owned<double> x = random<double>({3, 2, 8}, 1);
  Owned<double> once({3, 2, 8});
  rope<double>({x, integers({5, 900, 32768}), 6, kTheta, once});
  EXPECT_LE(distance(rotated(once, {7, 31, 1}, 6), rotated(x, {12, 931, 32769}, 6)), 1e-12);
  EXPECT_LE(distance(rotated(once, {-5, -900, -32768}, 6), elements(x)), 1e-12);
}

// In float32 the angle must not be: at 262,143 it would be off by 1e-2.
TEST(Rope, Float32KeepsItsPrecisionFarOut) {
  const Owned<double> x = random<double>({1, 1, 64}, 1);
  Owned<float> single({1, 1, 64});
  Owned<double> same({1, 1, 64});
  for (int i = 0; i < 64; ++i) same[i] = single[i] = static_cast<float>(x[i]);
  EXPECT_LE(distance(rotated(single, {262143}, 64, 1e7), rotated(same, {262143}, 64, 1e7)), 1e-6);
}

TEST(Rope, InPlaceAndStridedHeads) {
  const Owned<float> wide = random<float>({3, 2, 16}, 1);
  const Tensor x = wide.tensor.columns(8, 16);
  const std::vector<double> left = elements(wide.tensor.columns(0, 8));
  const Owned<float> out({3, 2, 8});
  const Owned<int32_t> positions = integers({3, 4, 9});
  rope<float>({x, positions, 4, kTheta, out});
  EXPECT_TRUE(finite(out));
  rope<float>({x, positions, 4, kTheta, x});
  EXPECT_EQ(elements(x), elements(out));
  EXPECT_EQ(elements(wide.tensor.columns(0, 8)), left);
}

TEST(Rope, RefusesWhatDoesNotFit) {
  const Owned<float> x = random<float>({2, 1, 8}, 1);
  const auto run = [&](int rotary_dim, const Tensor& out, const Tensor& positions) {
    rope<float>({x, positions, rotary_dim, kTheta, out});
  };
  EXPECT_NO_THROW(run(8, x, integers({0, 1})));
  EXPECT_THROW(run(10, x, integers({0, 1})), InternalError);
  EXPECT_THROW(run(3, x, integers({0, 1})), InternalError);
  EXPECT_THROW(run(8, x, integers({0, 1, 2})), InternalError);
  EXPECT_THROW(run(8, Owned<float>({2, 2, 4}), integers({0, 1})), InternalError);
  EXPECT_THROW(run(8, Owned<double>({2, 1, 8}), integers({0, 1})), InternalError);
}

}  // namespace
}  // namespace hypic::reference
