// Philox4x32-10, a generator without state: a function of a counter and a key (Salmon, Moraes,
// Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.2).
#pragma once

#include <array>
#include <cstdint>

namespace hypic {

constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                         std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53} * counter[0], b = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
}

// The n-th number of a seed, in [0, 1); a multiple of 2⁻²⁴, so that float32 holds it.
constexpr double philox_uniform(uint64_t seed, uint64_t n) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  return (philox({low(n), low(n >> 32), 0, 0}, {low(seed), low(seed >> 32)})[0] >> 8) * 0x1p-24;
}

}  // namespace hypic
