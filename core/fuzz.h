// What the fuzz targets share; see docs/fuzzing.md. A target is FLOOR/NAME_fuzz.cc and defines
// LLVMFuzzerTestOneInput: it gives bytes to a parser of untrusted input, takes Error for an answer
// and lets everything else through. The preset fuzz makes a fuzzer of it; in any other build it is
// part of FLOOR_test and runs its seeds, FLOOR/testdata/fuzz/NAME.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace hypic {

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// The first N parts of an input between lines of "====", for parsers that read several files; parts
// that are not there are empty.
template <size_t N>
std::array<std::string_view, N> parts_of(std::string_view text) {
  constexpr std::string_view kMark = "\n====\n";
  std::array<std::string_view, N> parts;
  for (std::string_view& part : parts) {
    const size_t end = text.find(kMark);
    part = text.substr(0, end);
    text = end == text.npos ? std::string_view() : text.substr(end + kMark.size());
  }
  return parts;
}

// Whether `parse` took its input; Error means that it did not.
template <class Parse>
bool takes(const Parse& parse) {
  try {
    parse();
    return true;
  } catch (const Error& error) {
    HYPIC_CHECK(*error.what(), "an error without a reason");
    return false;
  }
}

}  // namespace hypic

#ifdef HYPIC_FUZZ_SEEDS  // in FLOOR_test, where each target's function has its own name
#include <gtest/gtest.h>

#include <iterator>

#define HYPIC_SEEDS_TEST(name)                                                              \
  TEST(Seeds, name) {                                                                       \
    int count = 0;                                                                          \
    for (const auto& entry : std::filesystem::directory_iterator(HYPIC_FUZZ_SEEDS)) {       \
      SCOPED_TRACE(entry.path().string());                                                  \
      std::ifstream file(entry.path(), std::ios::binary);                                   \
      const std::string bytes(std::istreambuf_iterator<char>(file), {});                    \
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()); \
      ++count;                                                                              \
    }                                                                                       \
    EXPECT_GT(count, 0) << HYPIC_FUZZ_SEEDS;                                                \
  }
HYPIC_SEEDS_TEST(HYPIC_FUZZ_NAME)
#endif
