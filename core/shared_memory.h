// Memory of a device that other backends of the same kind write to, in this process or another one of the machine: how
// bytes go from device to device without the host's memory. Backend makes these.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/counter_bits.h"

namespace hypic {

class Event;

struct BytesCopy {
  void* to;
  const void* from;
  int64_t bytes;
};

// For any thread. What it holds at first is anything.
class SharedMemory {
 public:
  SharedMemory(uint8_t* data, int64_t size, std::string handle)
      : data_(data), size_(size), handle_(std::move(handle)) {}
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  virtual ~SharedMemory() = default;

  uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  // What another process opens it by, at most 256 bytes; empty: none can.
  const std::string& handle() const { return handle_; }

 private:
  uint8_t* const data_;
  const int64_t size_;
  const std::string handle_;
};

// Copies in an order of their own, beside the operations of the backend that made them, which they must not outlive.
// For any thread, one at a time.
class Copies {
 public:
  virtual ~Copies() = default;  // waits for them
  // What follows waits until an event of any backend of this process is done.
  virtual void wait_for(Event& event) = 0;
  // Between shared memories, also of other devices; memory of processes that have ended since stays valid.
  virtual void copy(const BytesCopy& piece) = 0;
  // By piece checksum(from, bytes), of shared memory on this backend's device, after the copies above. Waits.
  virtual std::vector<uint64_t> checksums(std::span<const BytesCopy> pieces) = 0;
  // Null where nothing is ever under way.
  virtual std::unique_ptr<Event> record() = 0;
};

// Of bytes as little-endian words of 8, the last one filled up with zeros: Σᵢ mix(wordᵢ ⊕ mix(i)), modulo 2⁶⁴. A
// changed byte always changes it; it withstands accidents, not intent.
constexpr uint64_t checksum_term(uint64_t word, uint64_t index) { return mix(word ^ mix(index)); }
uint64_t checksum(const void* bytes, int64_t size);

}  // namespace hypic
