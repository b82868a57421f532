#include "serving/residue_format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <iostream>
#include <random>

#include "reference/cpu_backend.h"

namespace hypic {
namespace {

// A small model of every architecture.
std::vector<ModelSpec> small_models() {
  std::vector<ModelSpec> specs;
  for (const std::string& name : model_names())
    if (name.ends_with("-tiny") && spec_named(name).hidden <= 256)
      specs.push_back(spec_named(name));
  return specs;
}

constexpr ResidueFormat kFormats[] = {ResidueFormat::full, ResidueFormat::T16,
                                      ResidueFormat::compact};

TEST(Float16, EveryPatternComesBackAndTheMiddleGoesToEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 x{static_cast<uint16_t>(bits)};
    const float wide = static_cast<float>(x);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(to_float16(wide))));
      continue;
    }
    EXPECT_EQ(to_float16(wide).bits, x.bits);
    if ((bits & 0x7fff) >= 0x7bff) continue;  // infinity, or the largest: nothing above
    const Float16 above{static_cast<uint16_t>(bits + 1)};
    const float middle = (wide + static_cast<float>(above)) / 2;
    EXPECT_EQ(to_float16(middle).bits, bits % 2 == 0 ? x.bits : above.bits);
    EXPECT_EQ(to_float16(std::nextafter(middle, wide)).bits, x.bits);
    EXPECT_EQ(to_float16(std::nextafter(middle, static_cast<float>(above))).bits, above.bits);
  }
  EXPECT_EQ(to_float16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520).bits, 0x7c00);
  EXPECT_EQ(to_float16(-1e30f).bits, 0xfc00);
}

// The layout is pure; what it says must be what the pools have.
TEST(ResidueLayout, BytesAreThoseOfThePools) {
  for (const ModelSpec& spec : small_models()) {
    const std::string& name = spec.name;
    for (const bool wide : {true, false}) {
      const auto backend = wide ? reference::make_cpu64_backend() : reference::make_cpu_backend();
      const Pools pools(*backend, spec, {1, 1, 1, 16});
      const ResidueLayout layout(spec, backend->compute_dtype(), backend->state_dtype(),
                                 ResidueFormat::full);
      EXPECT_EQ(layout.bytes(Part::kv, 16).total(), pools.page_bytes()) << name;
      EXPECT_EQ(layout.bytes(Part::op, 16).total(), pools.operator_bytes()) << name;
      EXPECT_EQ(layout.bytes(Part::prefix, 16).total(), pools.page_bytes() + pools.state_bytes())
          << name;
    }
  }
}

// The table of docs/segment-cache.md.
TEST(ResidueLayout, BytesOfTheFullSizeModels) {
  const auto bytes = [](const char* name, Part part, ResidueFormat format) {
    return ResidueLayout(spec_named(name), DType::bf16, DType::f32, format).bytes(part, 1);
  };
  for (const char* name : {"qwen3.5-35b-a3b", "ring-mini-linear-2.0"}) {
    const ResidueBytes kv = bytes(name, Part::kv, ResidueFormat::full);
    std::cout << "| " << name << " | K, V a token | " << kv.k << " + " << kv.v << " B |\n";
    for (const ResidueFormat format : kFormats) {
      const ResidueBytes op = bytes(name, Part::op, format);
      std::cout << "| " << name << " | " << name_of(format) << " | U " << op.U << " | T " << op.T
                << " | log scale " << op.log_scale << " | tails " << op.tails << " | "
                << static_cast<double>(op.total()) / (1 << 20) << " MiB |\n";
    }
  }
  constexpr int64_t kSquares = int64_t{30} * 32 * 128 * 128;  // layers · heads · d · d
  const ResidueBytes full = bytes("qwen3.5-35b-a3b", Part::op, ResidueFormat::full);
  EXPECT_EQ(full.U, 4 * kSquares);
  EXPECT_EQ(full.T, 4 * kSquares);
  EXPECT_EQ(full.tails, 30 * 3 * 8192 * 2);
  const ResidueBytes kv = bytes("qwen3.5-35b-a3b", Part::kv, ResidueFormat::full);
  EXPECT_EQ(kv.k + kv.v, 20 << 10);
  const ResidueBytes lossless = bytes("qwen3.5-35b-a3b", Part::op, ResidueFormat::T16);
  EXPECT_EQ(lossless.T, 2 * kSquares);
  EXPECT_LE(lossless.total(), int64_t{92} << 20);
  EXPECT_LE(bytes("qwen3.5-35b-a3b", Part::op, ResidueFormat::compact).total(), int64_t{62} << 20);
  EXPECT_EQ(bytes("ring-mini-linear-2.0", Part::op, ResidueFormat::full).T, 0);  // a logarithm
}

// Fills a tensor with normal numbers in its dtype; with `heads` each on a scale of its own.
void fill(Backend& backend, const Tensor& tensor, int heads, std::mt19937& rng) {
  std::normal_distribution<double> normal;
  std::vector<double> wide(tensor.size());
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const int64_t head = i * heads / tensor.size();
    wide[i] = std::ldexp(normal(rng), static_cast<int>(9 * (head % 7) - (heads > 1 ? 30 : 0)));
  }
  const std::vector<float> single(wide.begin(), wide.end());
  backend.upload(
      tensor, tensor.dtype == DType::f64 ? static_cast<const void*>(wide.data()) : single.data());
}

// What each format makes of one operator: pack, unpack into another slot, compare T·S + U.
TEST(ResidueFormat, StateErrorsStayWithinTheirBounds) {
  for (const ModelSpec& spec : small_models()) {
    const std::string& name = spec.name;
    for (const bool wide : {true, false}) {
      const auto backend = wide ? reference::make_cpu64_backend() : reference::make_cpu_backend();
      const Pools pools(*backend, spec, {0, 2, 0, 16});
      std::mt19937 rng(7);
      const int H = spec.linear.value_heads;
      for (const LinearPool& pool : pools.linear)
        for (const Buffer* part : {&pool.T, &pool.U, &pool.log_scale, &pool.tail})
          if (*part && part->tensor().size() > 0)
            fill(*backend, part->tensor().at(0), part == &pool.U ? H : 1, rng);
      for (const ResidueFormat format : kFormats) {
        const ResidueLayout layout(spec, backend->compute_dtype(), backend->state_dtype(), format);
        const auto sections = layout.sections(Part::op, 1);
        const std::vector<uint8_t> bytes = pack(*backend, pools, sections, {{}, 0});
        EXPECT_EQ(static_cast<int64_t>(bytes.size()), layout.bytes(Part::op, 1).total());
        unpack(*backend, pools, sections, bytes, {{}, 1});
        // What came back goes out as the same bytes: moving between tiers costs precision once.
        EXPECT_EQ(pack(*backend, pools, sections, {{}, 1}), bytes) << name << name_of(format);
        for (const LinearPool& pool : pools.linear) {
          if (!pool.U) continue;
          const auto values = [&](const Buffer& part, int slot) {
            return part && part.tensor().size() > 0 ? to_doubles(*backend, part.tensor().at(slot))
                                                    : std::vector<double>();
          };
          EXPECT_EQ(values(pool.log_scale, 0), values(pool.log_scale, 1));
          EXPECT_EQ(values(pool.tail, 0), values(pool.tail, 1));
          const std::vector<double> U = values(pool.U, 0), U2 = values(pool.U, 1);
          const std::vector<double> T = values(pool.T, 0), T2 = values(pool.T, 1);
          if (format == ResidueFormat::full) {
            EXPECT_EQ(T, T2);
          }
          if (format != ResidueFormat::compact) {
            EXPECT_EQ(U, U2);
          }
          const size_t per_head = U.size() / H;
          const int dk = spec.linear.key_dim, dv = spec.linear.value_dim;
          std::normal_distribution<double> normal;
          for (int h = 0; h < H; ++h) {
            double largest = 0, worst = 0;
            for (size_t i = h * per_head; i < (h + 1) * per_head; ++i) {
              largest = std::max(largest, std::abs(U[i]));
              worst = std::max(worst, std::abs(U[i] - U2[i]));
            }
            EXPECT_LE(worst, largest * 0x1p-11) << name << ", " << name_of(format);
            if (T.empty() || pool.kind != OperatorKind::dense) continue;
            // Relative to the terms of the sum, as of a matrix product.
            for (int j = 0; j < dv; ++j) {
              std::vector<double> S(dk);
              for (double& s : S) s = normal(rng);
              double error = 0, size = 0;
              for (int a = 0; a < dk; ++a) {
                double x = 0, y = 0, magnitude = 0;
                for (int b = 0; b < dk; ++b) {
                  const size_t i = (h * dk + a) * dk + b;
                  x += T[i] * S[b];
                  y += T2[i] * S[b];
                  magnitude += T[i] * T[i] * S[b] * S[b];
                }
                const size_t i = (h * dk + a) * dv + j;
                if (format == ResidueFormat::T16) {
                  error += (x + U[i] - y - U2[i]) * (x + U[i] - y - U2[i]);
                  size += magnitude + U[i] * U[i];
                }
              }
              EXPECT_LE(error, 1e-6 * size) << name;  // 1e-3, squared
            }
          }
        }
      }
    }
  }
}

TEST(ResidueFormat, CompactKeepsHeadsOfAnySize) {
  const auto backend = reference::make_cpu_backend();
  const ModelSpec spec = spec_named("qwen3.5-tiny");
  const Pools pools(*backend, spec, {0, 1, 0, 16});
  const Tensor* U = nullptr;
  for (const LinearPool& pool : pools.linear)
    if (pool.U && !U) U = &pool.U.tensor();
  ASSERT_NE(U, nullptr);
  const ResidueLayout layout(spec, DType::f32, DType::f32, ResidueFormat::compact);
  const auto sections = layout.sections(Part::op, 1);
  for (const float size : {0.0f, 1e-38f, 1e-30f, 1.0f, 65504.0f, 3e38f}) {
    for (const LinearPool& pool : pools.linear)
      for (const Buffer* part : {&pool.T, &pool.U, &pool.log_scale, &pool.tail})
        if (*part) backend->fill_zero(part->tensor());
    std::vector<float> values(U->size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 ? size : -size / 3;
    backend->upload(*U, values.data());
    const auto bytes = pack(*backend, pools, sections, {{}, 0});
    backend->fill_zero(*U);
    unpack(*backend, pools, sections, bytes, {{}, 0});
    const std::vector<double> back = to_doubles(*backend, *U);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(back[i], values[i], std::max(size * 0x1p-11, 1e-42)) << size;
  }
}

}  // namespace
}  // namespace hypic
