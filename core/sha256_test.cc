#include "core/sha256.h"

#include <gtest/gtest.h>

#include <string_view>

namespace hypic {
namespace {

std::string digest_of(std::string_view text) {
  return hex(Sha256().add(text.data(), text.size()).digest());
}

// FIPS 180-2, appendix B, and the empty message.
TEST(Sha256Test, KnownVectors) {
  EXPECT_EQ(digest_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 million;
  const std::string thousand(1000, 'a');
  for (int i = 0; i < 1000; ++i) million.add(thousand.data(), thousand.size());
  EXPECT_EQ(hex(million.digest()),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, cases 1, 2 and 6.
TEST(Sha256Test, KnownVectorsOfHmac) {
  const auto bytes = [](std::string_view text) {
    return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  const auto hmac = [&](std::string_view key, std::string_view one, std::string_view two = "") {
    return hex(hmac_sha256(key, {bytes(one), bytes(two)}));
  };
  EXPECT_EQ(hmac(std::string(20, 0x0b), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  const std::string second = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"), second);
  EXPECT_EQ(hmac("Jefe", "what do ya", " want for nothing?"), second);
  EXPECT_EQ(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Sha256Test, TextCarriesItsLength) {
  const auto two = [](const std::string& a, const std::string& b) {
    return Sha256().add(a).add(b).digest();
  };
  EXPECT_NE(two("ab", "c"), two("a", "bc"));
  EXPECT_NE(two("", "a"), two("a", ""));
  EXPECT_EQ(two("ab", "c"), two("ab", "c"));
  const char bytes[] = "\x01\0\0\0\0\0\0\0a";
  EXPECT_EQ(Sha256().add(std::string("a")).digest(), Sha256().add(bytes, 9).digest());
  EXPECT_EQ(Sha256().add(int64_t{1}).digest(), Sha256().add(bytes, 8).digest());
}

TEST(Sha256, ACopyGoesOnFromThere) {
  const std::string text = "one, two";
  Sha256 first;
  first.add(text.data(), 5);
  Sha256 second(first);
  const Sha256::Digest short_one = first.digest();
  EXPECT_EQ(short_one, Sha256().add(text.data(), 5).digest());
  EXPECT_EQ(second.add(text.data() + 5, 3).digest(), Sha256().add(text.data(), 8).digest());
}

}  // namespace
}  // namespace hypic
