// The way of packets from one worker to another. Backends: within a process, and TCP (tcp_transport.h).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "serving/residue_wire.h"

namespace hypic {

// Takes what arrives; on any thread.
class PacketSink {
 public:
  virtual ~PacketSink() = default;
  virtual void take(const Packet& packet) = 0;
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
