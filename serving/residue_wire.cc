#include "serving/residue_wire.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "core/sha256.h"

namespace hypic {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers on the wire are little-endian");

constexpr uint32_t kMagic = 0x50497968;  // "hyIP"
constexpr uint16_t kVersion = 1;
constexpr size_t kChecksum = 16;
constexpr int32_t kMostLayers = 1 << 20;

struct Head {
  uint32_t magic;
  uint16_t version;
  uint8_t kind, keyed;
  uint64_t transfer, generation, offset;
  int32_t layer;
  uint32_t size;
  uint8_t checksum[kChecksum];
};
static_assert(sizeof(Head) == 56);

// Over the header but the checksum itself, and the bytes.
void put_checksum(Head& head, const uint8_t* bytes, const std::string& key) {
  constexpr size_t kBefore = sizeof(Head) - kChecksum;
  const Sha256::Digest digest =
      key.empty() ? Sha256().add(&head, kBefore).add(bytes, head.size).digest()
                  : hmac_sha256(key, {{reinterpret_cast<const uint8_t*>(&head), kBefore}, {bytes, head.size}});
  std::memcpy(head.checksum, digest.data(), kChecksum);
}

void check_bounds(const Head& head) {
  require(head.magic == kMagic, "this is no packet of a residue");
  require(head.version == kVersion, "packets have version ", head.version, ", this program reads ", kVersion);
  require(head.kind <= static_cast<uint8_t>(Packet::Kind::unlink) && head.keyed <= 1,
          "a packet of an unknown kind, ", int{head.kind});
  require(head.kind != static_cast<uint8_t>(Packet::Kind::landed) || head.size == kChecksumBytes,
          "a packet without the checksum of its layer");
  require(head.kind != static_cast<uint8_t>(Packet::Kind::crosses) || head.size == sizeof(Crossing),
          "a packet that does not say what comes over the link");
  require(head.size <= kMaxPacketBytes, "a packet of ", head.size, " bytes, at most ", kMaxPacketBytes);
  require(0 <= head.layer && head.layer < kMostLayers, "a packet of layer ", head.layer);
}

}  // namespace

std::vector<uint8_t> frame_of(const Packet& packet, const std::string& key) {
  HYPIC_CHECK(packet.bytes.size() <= kMaxPacketBytes && 0 <= packet.layer && packet.layer < kMostLayers);
  Head head{.magic = kMagic,
            .version = kVersion,
            .kind = static_cast<uint8_t>(packet.kind),
            .keyed = !key.empty(),
            .transfer = packet.transfer,
            .generation = packet.generation,
            .offset = packet.offset,
            .layer = packet.layer,
            .size = static_cast<uint32_t>(packet.bytes.size())};
  put_checksum(head, packet.bytes.data(), key);
  std::vector<uint8_t> frame(sizeof(head) + packet.bytes.size());
  std::memcpy(frame.data(), &head, sizeof(head));
  std::copy(packet.bytes.begin(), packet.bytes.end(), frame.begin() + sizeof(head));
  return frame;
}

void PacketDecoder::feed(std::span<const uint8_t> bytes, const std::function<void(const Packet&)>& take) {
  held_.insert(held_.end(), bytes.begin(), bytes.end());
  size_t at = 0;
  while (held_.size() - at >= sizeof(Head)) {
    Head head;
    std::memcpy(&head, held_.data() + at, sizeof(head));
    check_bounds(head);
    require(key_.empty() || head.keyed == 1, "packets without a shared key; give their sender the same --key-file");
    require(!key_.empty() || head.keyed == 0, "packets with a shared key; --key-file names it");
    if (held_.size() - at < sizeof(head) + head.size) break;
    const uint8_t* const payload = held_.data() + at + sizeof(head);
    Head expected = head;
    put_checksum(expected, payload, key_);
    require(CRYPTO_memcmp(&expected, &head, sizeof(head)) == 0, "a packet of a residue does not match its ",
            key_.empty() ? "checksum" : "key, or is damaged");
    take({static_cast<Packet::Kind>(head.kind),
          head.transfer,
          head.generation,
          head.layer,
          head.offset,
          {payload, head.size}});
    at += sizeof(head) + head.size;
  }
  held_.erase(held_.begin(), held_.begin() + static_cast<int64_t>(at));
}

}  // namespace hypic
