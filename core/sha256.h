// SHA-256 of a stream of bytes, for cache keys.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace hypic {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  Sha256();
  Sha256(const Sha256& other);  // what has been added, so that both may go on from there
  ~Sha256();
  Sha256& add(const void* bytes, size_t count);
  // With its length, so that fields cannot run into each other.
  Sha256& add(const std::string& text);
  Sha256& add(int64_t number) { return add(&number, sizeof(number)); }
  Digest digest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string hex(const Sha256::Digest& digest);

// HMAC-SHA256 (RFC 2104) over the parts, one after another.
Sha256::Digest hmac_sha256(std::string_view key, std::initializer_list<std::span<const uint8_t>> parts);

}  // namespace hypic
