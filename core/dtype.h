// Element types and the conversions between them that the CPU needs.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "core/check.h"

namespace hypic {

enum class DType : uint8_t { f64, f32, f16, bf16, f8_e4m3, i64, i32, u8 };

// A bfloat16 bit pattern: the upper half of a float32.
struct BFloat16 {
  uint16_t bits;
  // Round to nearest even; NaN is not expected.
  static BFloat16 from(float x) {
    const uint32_t wide = std::bit_cast<uint32_t>(x);
    return {static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16)};
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

// An IEEE binary16 bit pattern.
struct Float16 {
  uint16_t bits;
  explicit operator float() const {
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
    const uint32_t exponent = (bits >> 10) & 0x1f, mantissa = bits & 0x3ff;
    if (exponent == 0)  // zero or subnormal: mantissa · 2⁻²⁴
      return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f));
    const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
    return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
  }
};

// An OCP FP8 E4M3 bit pattern: no infinity, NaN is S1111111.
struct Float8E4M3 {
  uint8_t bits;
  explicit operator float() const {
    const int exponent = (bits >> 3) & 0xf, mantissa = bits & 7;
    const float sign = bits & 0x80 ? -1.0f : 1.0f;
    if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
    if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-9f;
    return sign * std::bit_cast<float>(static_cast<uint32_t>(exponent + 120) << 23 |
                                       static_cast<uint32_t>(mantissa) << 20);
  }
};

constexpr int size_of(DType dtype) {
  switch (dtype) {
    case DType::f64: case DType::i64: return 8;
    case DType::f32: case DType::i32: return 4;
    case DType::f16: case DType::bf16: return 2;
    case DType::u8: case DType::f8_e4m3: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::f8_e4m3: return "float8_e4m3";
    case DType::i64: return "int64";
    case DType::i32: return "int32";
    case DType::u8: return "uint8";
  }
  return "?";
}

template <class T>
inline constexpr DType kDTypeOf = [] {
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  else if constexpr (std::is_same_v<T, float>) return DType::f32;
  else if constexpr (std::is_same_v<T, Float16>) return DType::f16;
  else if constexpr (std::is_same_v<T, BFloat16>) return DType::bf16;
  else if constexpr (std::is_same_v<T, Float8E4M3>) return DType::f8_e4m3;
  else if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  else if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  else {
    static_assert(std::is_same_v<T, uint8_t>, "no DType for this type");
    return DType::u8;
  }
}();

// Calls visit(T{}) with the C++ type of a floating dtype.
template <class Visitor>
decltype(auto) visit_float(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::f64: return visit(double{});
    case DType::f32: return visit(float{});
    case DType::f16: return visit(Float16{});
    case DType::bf16: return visit(BFloat16{});
    case DType::f8_e4m3: return visit(Float8E4M3{});
    default: fail("expected a floating dtype, got ", name_of(dtype));
  }
}

}  // namespace hypic
