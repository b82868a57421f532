// The way of packets from one worker to another. Backends: within a process, and TCP (tcp_transport.h).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/shared_memory.h"
#include "serving/residue_wire.h"

namespace hypic {

// A place on the receiver's device for one residue, its layers one behind the other. Who sends writes there by copies
// of its own device, and then a packet `landed` for each layer; or, over a link, by put(). Nobody else gets the place
// while this lives, so it lives until those copies are done, whatever happens. For any thread.
struct Window {
  virtual ~Window() = default;
  uint8_t* data = nullptr;  // null: put() is the only way there
  int64_t bytes = 0;
  const SharedMemory* memory = nullptr;  // that it is a part of
  bool same_process = false;             // `landed` may be sent before the copies are done, with an event

  // `landed`, whose layer is still at `from` on the sender's device and belongs at this offset: both are sent. Neither
  // is there, nor may `from` be used for something else, until flush() has returned or either has thrown. Error.
  virtual void put(const Packet& landed, int64_t offset, const void* from, int64_t bytes);
  virtual void flush();
};

// Takes what arrives; on any thread.
class PacketSink {
 public:
  virtual ~PacketSink() = default;
  virtual void take(const Packet& packet) = 0;
  // A window for a transfer that is open; the same one if asked again. Null: there is none, its bytes come as packets.
  virtual std::shared_ptr<Window> window(uint64_t transfer, uint64_t generation, int64_t bytes);
  // The connection that brought packets of these transfers is gone: nothing more of them comes.
  virtual void lost(std::span<const uint64_t> transfers, const std::string& why) = 0;
};

// A way to one receiver. For several threads.
class Transport {
 public:
  virtual ~Transport() = default;
  // Packets arrive in the order in which they were sent, or not at all. Returns when the bytes may be used for
  // something else. Error: the receiver cannot be reached, or takes nothing.
  virtual void send(const Packet& packet) = 0;
  struct Wanted {
    uint64_t transfer, generation;
    int64_t bytes;
  };
  // By residue, a window of the receiver or null: then its bytes go by send(). Throws nothing but InternalError.
  virtual std::vector<std::shared_ptr<Window>> windows(std::span<const Wanted> wanted);
};

class Transports {
 public:
  virtual ~Transports() = default;
  // Error: an address that is none of this kind. Whether anybody is there shows with the first packet.
  virtual std::shared_ptr<Transport> to(const std::string& address) = 0;
};

// Receivers in this process, by any name.
class InProcessTransports final : public Transports {
 public:
  // The sink outlives this, or is removed; then sending to it fails.
  void add(const std::string& address, PacketSink& sink);
  void remove(const std::string& address);
  std::shared_ptr<Transport> to(const std::string& address) override;

 private:
  class Way;
  std::mutex mutex_;
  std::map<std::string, PacketSink*> sinks_;
};

}  // namespace hypic
