#include "core/dtype.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>

namespace hypic {
namespace {

// (−1)ˢ · 2^(e − bias) · (1 + m / 2^width), without the 1 and with e = 1 where e = 0.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
  const double sign = bits >> (exponent_bits + mantissa_bits) ? -1 : 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * INFINITY;
  return sign * std::ldexp((exponent ? std::ldexp(1, mantissa_bits) : 0) + mantissa,
                           std::max(exponent, 1) - bias - mantissa_bits);
}

void expect_same(double x, double y, uint32_t bits) {
  if (std::isnan(y)) {
    EXPECT_TRUE(std::isnan(x)) << std::hex << bits;
  } else {
    EXPECT_EQ(x, y) << std::hex << bits;
    EXPECT_EQ(std::signbit(x), std::signbit(y)) << std::hex << bits;
  }
}

TEST(DTypes, EveryFloat16AndBFloat16IsItsDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    expect_same(static_cast<float>(Float16{static_cast<uint16_t>(bits)}), value_of(bits, 5, 10),
                bits);
    expect_same(static_cast<float>(BFloat16{static_cast<uint16_t>(bits)}), value_of(bits, 8, 7),
                bits);
  }
}

TEST(DTypes, EveryBFloat16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    const float wide = static_cast<float>(x);
    EXPECT_TRUE(std::isnan(wide) || BFloat16::from(wide).bits == bits) << std::hex << bits;
  }
}

TEST(DTypes, BFloat16RoundsToNearestEven) {
  const auto rounded = [](float x) { return static_cast<float>(BFloat16::from(x)); };
  EXPECT_EQ(rounded(1 + 0x1p-8f), 1);                    // tie, even below
  EXPECT_EQ(rounded(1 + 3 * 0x1p-8f), 1 + 4 * 0x1p-8f);  // tie, even above
  EXPECT_EQ(rounded(std::nextafter(1 + 0x1p-8f, 2.0f)), 1 + 0x1p-7f);
  EXPECT_EQ(rounded(std::nextafter(1 + 3 * 0x1p-8f, 1.0f)), 1 + 0x1p-7f);
  EXPECT_EQ(rounded(-1 - 0x1p-8f), -1);
  EXPECT_EQ(rounded(INFINITY), INFINITY);
  EXPECT_EQ(rounded(std::numeric_limits<float>::max()), INFINITY);
  EXPECT_TRUE(std::signbit(rounded(-0.0f)));
  EXPECT_TRUE(rc::check("no other bfloat16 is nearer", [&] {
    const float x = std::bit_cast<float>(*rc::gen::arbitrary<uint32_t>());
    RC_PRE(std::isfinite(x));
    const BFloat16 y = BFloat16::from(x);
    RC_PRE(std::isfinite(static_cast<float>(y)));
    const auto error = [&](int step) {
      return std::abs(static_cast<double>(x) -
                      value_of(static_cast<uint16_t>(y.bits + step), 8, 7));
    };
    for (const int step : {-1, 1}) {
      if (std::isnan(error(step))) continue;
      RC_ASSERT(error(0) <= error(step));
      if (error(0) == error(step)) RC_ASSERT(y.bits % 2 == 0);
    }
  }));
}

TEST(DTypes, SizesNamesAndTypes) {
  const std::pair<DType, std::pair<int, std::string_view>> all[] = {
      {DType::f64, {8, "float64"}},   {DType::f32, {4, "float32"}}, {DType::f16, {2, "float16"}},
      {DType::bf16, {2, "bfloat16"}}, {DType::i64, {8, "int64"}},   {DType::i32, {4, "int32"}},
      {DType::u8, {1, "uint8"}}};
  for (const auto& [dtype, about] : all) {
    EXPECT_EQ(size_of(dtype), about.first);
    EXPECT_EQ(name_of(dtype), about.second);
  }
  static_assert(kDTypeOf<double> == DType::f64 && kDTypeOf<float> == DType::f32 &&
                kDTypeOf<Float16> == DType::f16 && kDTypeOf<BFloat16> == DType::bf16 &&
                kDTypeOf<int64_t> == DType::i64 && kDTypeOf<int32_t> == DType::i32 &&
                kDTypeOf<uint8_t> == DType::u8);
}

TEST(DTypes, VisitFloatGivesTheTypeAndRefusesIntegers) {
  const auto visited = [](DType dtype) {
    return visit_float(dtype, [](auto zero) { return kDTypeOf<decltype(zero)>; });
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    EXPECT_EQ(visited(dtype), dtype);
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) EXPECT_THROW(visited(dtype), Error);
}

}  // namespace
}  // namespace hypic
