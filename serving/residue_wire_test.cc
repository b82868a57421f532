#include "serving/residue_wire.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "core/check.h"

namespace hypic {
namespace {

std::vector<uint8_t> bytes_of(size_t n, uint8_t first) {
  std::vector<uint8_t> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(first + 7 * i);
  return bytes;
}

struct Seen {
  Packet packet;
  std::vector<uint8_t> bytes;
};

std::vector<Seen> fed(PacketDecoder& decoder, std::span<const uint8_t> stream) {
  std::vector<Seen> seen;
  decoder.feed(stream, [&](const Packet& packet) {
    seen.push_back({packet, {packet.bytes.begin(), packet.bytes.end()}});
  });
  return seen;
}

TEST(ResidueWire, PacketsSurviveHoweverTheStreamIsCut) {
  EXPECT_TRUE(rc::check([] {
    std::vector<uint8_t> stream;
    const int count = *rc::gen::inRange(0, 6);
    for (int i = 0; i < count; ++i) {
      const auto bytes = bytes_of(*rc::gen::inRange(0, 300), static_cast<uint8_t>(i));
      const auto frame =
          frame_of({.transfer = uint64_t(i) << 40, .generation = 9, .layer = i, .offset = 5u, .bytes = bytes});
      stream.insert(stream.end(), frame.begin(), frame.end());
    }
    PacketDecoder decoder;
    std::vector<Seen> all;
    for (size_t at = 0; at < stream.size();) {
      const size_t n = std::min<size_t>(*rc::gen::inRange(1, 200), stream.size() - at);
      for (Seen& one : fed(decoder, std::span(stream).subspan(at, n))) all.push_back(std::move(one));
      at += n;
    }
    RC_ASSERT(decoder.at_end());
    RC_ASSERT(static_cast<int>(all.size()) == count);
    for (int i = 0; i < count; ++i) {
      RC_ASSERT(all[i].packet.transfer == uint64_t(i) << 40);
      RC_ASSERT(all[i].packet.generation == 9u);
      RC_ASSERT(all[i].packet.layer == i);
      RC_ASSERT(all[i].bytes == bytes_of(all[i].bytes.size(), static_cast<uint8_t>(i)));
    }
  }));
}

TEST(ResidueWire, EveryChangedByteIsSeen) {
  const auto bytes = bytes_of(40, 1);
  const auto frame = frame_of({.transfer = 3, .generation = 4, .layer = 2, .offset = 8, .bytes = bytes});
  for (size_t i = 0; i < frame.size(); ++i) {
    auto damaged = frame;
    damaged[i] ^= 0x10;
    PacketDecoder decoder;
    try {
      // A larger size waits for bytes that do not come: nothing is taken either.
      EXPECT_TRUE(fed(decoder, damaged).empty()) << "byte " << i;
      EXPECT_FALSE(decoder.at_end());
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "");
    }
  }
}

// With a key nothing goes through that was not made with it, damaged or not.
TEST(ResidueWire, KeysMustBeTheSame) {
  const std::string key = "a secret that both ends share";
  const auto bytes = bytes_of(40, 1);
  const Packet packet{.transfer = 3, .generation = 4, .layer = 2, .offset = 8, .bytes = bytes};
  const auto open = frame_of(packet), keyed = frame_of(packet, key);
  const auto error_of = [&](const std::string& key, const std::vector<uint8_t>& frame) {
    PacketDecoder decoder(key);
    try {
      EXPECT_TRUE(fed(decoder, frame).empty());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    EXPECT_FALSE(decoder.at_end());  // a larger size waits for bytes that do not come
    return std::string();
  };
  PacketDecoder decoder(key);
  ASSERT_EQ(fed(decoder, keyed).size(), 1u);
  EXPECT_EQ(fed(decoder, keyed)[0].bytes, bytes);
  EXPECT_EQ(error_of(key, open), "packets without a shared key; give their sender the same --key-file");
  EXPECT_EQ(error_of("", keyed), "packets with a shared key; --key-file names it");
  EXPECT_EQ(error_of("another secret than theirs", keyed),
            "a packet of a residue does not match its key, or is damaged");
  for (size_t i = 0; i < keyed.size(); ++i) {
    auto damaged = keyed;
    damaged[i] ^= 0x01;
    error_of(key, damaged);
  }
  // A checksum in place of the keyed one, with the mark of a key.
  auto forged = open;
  forged[7] = 1;
  EXPECT_NE(error_of(key, forged), "");
}

TEST(ResidueWire, SizesAreBoundedBeforeAnythingIsTaken) {
  auto frame = frame_of({.bytes = {}});
  const uint32_t huge = 0xffffffff;
  std::copy_n(reinterpret_cast<const uint8_t*>(&huge), 4, frame.begin() + 36);
  PacketDecoder decoder;
  EXPECT_THROW(fed(decoder, frame), Error);
  EXPECT_THROW(frame_of({.bytes = std::vector<uint8_t>(kMaxPacketBytes + 1)}), InternalError);
}

TEST(ResidueWire, ALayerLandsWithItsChecksum) {
  PacketDecoder decoder;
  EXPECT_EQ(fed(decoder, frame_of({.kind = Packet::Kind::landed, .bytes = bytes_of(8, 1)})).size(), 1u);
  EXPECT_THROW(fed(decoder, frame_of({.kind = Packet::Kind::landed, .bytes = bytes_of(7, 1)})), Error);
}

TEST(ResidueWire, ALayerThatCrossesSaysWhatItIs) {
  PacketDecoder decoder;
  EXPECT_EQ(fed(decoder, frame_of({.kind = Packet::Kind::crosses, .bytes = bytes_of(16, 1)})).size(), 1u);
  EXPECT_THROW(fed(decoder, frame_of({.kind = Packet::Kind::crosses, .bytes = bytes_of(8, 1)})), Error);
}

TEST(ResidueWire, ATruncatedStreamIsNotAtItsEnd) {
  const auto bytes = bytes_of(10, 1);
  const auto frame = frame_of({.bytes = bytes});
  PacketDecoder decoder;
  EXPECT_TRUE(fed(decoder, std::span(frame).first(frame.size() - 1)).empty());
  EXPECT_FALSE(decoder.at_end());
}

}  // namespace
}  // namespace hypic
