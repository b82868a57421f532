#include "core/shared_memory.h"

#include <algorithm>
#include <cstring>

namespace hypic {

uint64_t checksum(const void* bytes, int64_t size) {
  const auto* from = static_cast<const char*>(bytes);
  uint64_t sum = 0;
  for (int64_t at = 0; at < size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, from + at, static_cast<size_t>(std::min<int64_t>(8, size - at)));
    sum += checksum_term(word, static_cast<uint64_t>(at / 8));
  }
  return sum;
}

}  // namespace hypic
