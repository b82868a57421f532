#include "core/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace hypic {
namespace {

using Words = std::array<uint32_t, 4>;

// Random123, tests/kat_vectors, "philox4x32 10".
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformsAreFloat32InTheUnitIntervalAndDifferBySeedAndCounter) {
  EXPECT_EQ(philox_uniform(0, 0), 0x6627e8 * 0x1p-24);
  std::set<double> seen;
  double sum = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32})
    for (uint64_t n = 0; n < 2000; ++n) {
      const double u = philox_uniform(seed, n);
      EXPECT_TRUE(0 <= u && u < 1 && u == static_cast<float>(u));
      seen.insert(u);
      sum += u;
    }
  EXPECT_GE(seen.size(), 5990u);        // 6000² / 2²⁵ = 1 of them is expected to be there twice
  EXPECT_NEAR(sum / 6000, 0.5, 0.015);  // four standard deviations
  EXPECT_NE(philox_uniform(0, uint64_t{1} << 32), philox_uniform(0, 0));
}

}  // namespace
}  // namespace hypic
