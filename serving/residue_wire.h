// How a residue travels between workers: packets of its layers, as frames of a byte stream. docs/segment-parallel.md
// has the format. What arrives is untrusted: sizes are bounded before memory is taken for them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hypic {

class Event;

// Consecutive bytes of one layer of one residue, or what is said about it. Of `landed` and all below see
// serving/transport.h, Window, and core/pair_link.h.
struct Packet {
  enum class Kind : uint8_t {
    data,
    failed,   // it will not come
    landed,   // this layer is in the window that the receiver gave
    ask,      // for a window; offset: its bytes
    window,   // the answer; offset: where in the shared memory that `bytes` names; no bytes: there is none
    release,  // nothing more is written to the window
    link,     // a link is asked for, by a number in place of the transfer's: the sender's device; the answer: what the
              // sender joins it by
    crosses,  // this layer comes over the link, as the next: Crossing
    unlink,   // there is no link of this number, or no longer: why, as text
  };
  Kind kind = Kind::data;
  uint64_t transfer = 0;    // which residue; numbers of the router
  uint64_t generation = 0;  // as the receiver gave it out with the transfer's place
  int32_t layer = 0;
  uint64_t offset = 0;             // of the bytes within their layer
  // failed: why, as text; landed: the layer's checksum (core/shared_memory.h), within a process none.
  std::span<const uint8_t> bytes;
  std::shared_ptr<Event> ready = nullptr;  // landed, within a process: once this is done; null: already
};

inline constexpr size_t kChecksumBytes = sizeof(uint64_t);

// The bytes of `crosses`, whose offset is that in the window.
struct Crossing {
  uint64_t checksum, bytes;
};

inline constexpr size_t kMaxPacketBytes = size_t{1} << 20;

// Header, bytes, and in the header 16 bytes over both: of SHA-256, a checksum; with a key of HMAC-SHA256, which nobody
// can make without it.
std::vector<uint8_t> frame_of(const Packet& packet, const std::string& key = "");

// Takes a byte stream apart, however it is cut.
class PacketDecoder {
 public:
  // With a key: packets that were not made with it are errors. Without: those that were made with one.
  explicit PacketDecoder(std::string key = "") : key_(std::move(key)) {}
  // Calls take for each packet that is whole, valid during the call. Error: no frame of ours, one that is too large, or
  // a checksum that does not match; the stream is of no more use then.
  void feed(std::span<const uint8_t> bytes, const std::function<void(const Packet&)>& take);
  // Whether the stream ended between two frames.
  bool at_end() const { return held_.empty(); }

 private:
  const std::string key_;
  std::vector<uint8_t> held_;  // of a frame that is not whole yet
};

}  // namespace hypic
