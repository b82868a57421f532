#include "core/sha256.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "core/check.h"

namespace hypic {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  HYPIC_CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1);
}

Sha256::Sha256(const Sha256& other) : context_(std::make_unique<Context>()) {
  HYPIC_CHECK(EVP_MD_CTX_copy_ex(context_->evp, other.context_->evp) == 1);
}

Sha256::~Sha256() = default;

Sha256& Sha256::add(const void* bytes, size_t count) {
  HYPIC_CHECK(EVP_DigestUpdate(context_->evp, bytes, count) == 1);
  return *this;
}

Sha256& Sha256::add(const std::string& text) {
  add(static_cast<int64_t>(text.size()));
  return add(text.data(), text.size());
}

Sha256::Digest Sha256::digest() {
  Digest digest;
  HYPIC_CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr) == 1);
  return digest;
}

Sha256::Digest hmac_sha256(std::string_view key, std::initializer_list<std::span<const uint8_t>> parts) {
  static EVP_MAC* const hmac = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  HYPIC_CHECK(hmac != nullptr);
  struct Context {
    EVP_MAC_CTX* evp = EVP_MAC_CTX_new(hmac);
    ~Context() { EVP_MAC_CTX_free(evp); }
  } context;
  char name[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string("digest", name, 0), OSSL_PARAM_construct_end()};
  HYPIC_CHECK(EVP_MAC_init(context.evp, reinterpret_cast<const uint8_t*>(key.data()), key.size(), parameters) == 1);
  for (const std::span<const uint8_t> part : parts)
    HYPIC_CHECK(EVP_MAC_update(context.evp, part.data(), part.size()) == 1);
  Sha256::Digest digest;
  size_t size = 0;
  HYPIC_CHECK(EVP_MAC_final(context.evp, digest.data(), &size, digest.size()) == 1 && size == digest.size());
  return digest;
}

std::string hex(const Sha256::Digest& digest) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

}  // namespace hypic
