// Packets over TCP, from host memory to host memory. Whoever reaches the port may send; what nobody waits for is
// dropped, and a transfer's generation is a number that only its router and its sender know. Not encrypted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "serving/transport.h"

namespace hypic {

struct TcpOptions {
  std::chrono::milliseconds connect_timeout{2'000};
  std::chrono::milliseconds send_timeout{2'000};  // for some bytes to be taken
  int64_t max_connections = 256;                  // of a receiver; more are closed at once
};

// One connection a receiver, made when there is something to send and made anew after it broke. Addresses are
// HOST:PORT.
class TcpTransports final : public Transports {
 public:
  explicit TcpTransports(const TcpOptions& options = {});
  ~TcpTransports() override;
  std::shared_ptr<Transport> to(const std::string& address) override;

 private:
  class Way;
  const TcpOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Way>> ways_;
};

class TcpReceiver {
 public:
  // Listens at once; port 0: any that is free. The sink outlives it. Error: the address cannot be used.
  TcpReceiver(PacketSink& sink, const std::string& host, uint16_t port, const TcpOptions& options = {});
  ~TcpReceiver();
  uint16_t port() const { return port_; }

 private:
  struct Connection;
  void accept();
  void serve(Connection& connection);

  PacketSink& sink_;
  const TcpOptions options_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> ends_ = false;
  std::list<std::unique_ptr<Connection>> connections_;  // of the accepting thread
  std::thread thread_;
};

}  // namespace hypic
