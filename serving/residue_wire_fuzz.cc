#include <cstring>

#include "core/fuzz.h"
#include "core/sha256.h"
#include "serving/residue_wire.h"

namespace hypic {
namespace {

// The stream as it is; behind "sum:" with the first checksum put right, which mutation never does.
std::string stream_of(std::string_view input) {
  constexpr std::string_view kSum = "sum:";
  constexpr size_t kHead = 56, kSize = 36, kChecksum = 40;
  if (!input.starts_with(kSum)) return std::string(input);
  std::string stream(input.substr(kSum.size()));
  uint32_t size = 0;
  if (stream.size() < kHead) return stream;
  std::memcpy(&size, stream.data() + kSize, sizeof(size));
  if (size > stream.size() - kHead) return stream;
  const auto digest = Sha256().add(stream.data(), kChecksum).add(stream.data() + kHead, size).digest();
  std::memcpy(stream.data() + kChecksum, digest.data(), kHead - kChecksum);
  return stream;
}

// What is taken is what would be sent, cut anywhere.
void check(std::string_view input) {
  const std::string stream = stream_of(input);
  std::string again;
  PacketDecoder decoder;
  const auto take = [&](const Packet& packet) {
    const auto frame = frame_of(packet);
    again.append(frame.begin(), frame.end());
  };
  const auto* bytes = reinterpret_cast<const uint8_t*>(stream.data());
  const size_t half = stream.size() / 2;
  decoder.feed({bytes, half}, take);
  decoder.feed({bytes + half, stream.size() - half}, take);
  HYPIC_CHECK(stream.starts_with(again) && decoder.at_end() == (again.size() == stream.size()));
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hypic::takes([&] { hypic::check(hypic::as_text(data, size)); });
  return 0;
}
