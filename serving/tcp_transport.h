// Packets over TCP, from host memory to host memory; or windows of the receiver's device and packets that say what has
// landed in them: between processes of one machine the sender opens and writes to them, over a link both devices move
// what packets announce. Without a key, whoever reaches
// the port may send; what nobody waits for is dropped, and a transfer's generation is a number that only its router and
// its sender know. Not encrypted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "serving/transport.h"
#include "serving/watched_link.h"

namespace hypic {

class Backend;

struct TcpOptions {
  std::chrono::milliseconds connect_timeout{2'000};
  std::chrono::milliseconds send_timeout{2'000};  // for some bytes to be taken
  std::chrono::milliseconds window_timeout{500};  // for an answer to those who ask for windows
  // After a sender has ended with windows, for copies that its device may still be at.
  std::chrono::milliseconds rest{1'000};
  int64_t max_connections = 256;  // of a receiver; more are closed at once
  // Of a sender: by which it opens windows; null: it opens none. It outlives the transports.
  Backend* device = nullptr;
  // Of both, in place of `device`: what makes links; null: none. It outlives transports and receiver.
  Links* links = nullptr;
  LinkPatience link_patience = {};
  std::chrono::milliseconds ask_again{30'000};  // of a sender that could have no windows, or whose link broke
  std::string key = {};                         // that both ends share (frame_of); empty: none
  // Of a sender: hears which way residues go, and why not by windows. Of a receiver: what is wrong with packets that it
  // gets, from its threads, each reason once in a row. May be empty.
  std::function<void(const std::string&)> say = {};
};

// One connection a receiver, made when there is something to send and made anew after it broke; one that has given
// windows is closed when the last of them is gone. Addresses are HOST:PORT.
class TcpTransports final : public Transports {
 public:
  explicit TcpTransports(const TcpOptions& options = {});
  ~TcpTransports() override;
  std::shared_ptr<Transport> to(const std::string& address) override;

 private:
  class Line;
  class RemoteWindow;
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
  class LinkEnd;
  void accept();
  void serve(Connection& connection);
  void say(const std::string& why);

  PacketSink& sink_;
  const TcpOptions options_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;
  std::string said_;                                    // under the mutex
  std::list<std::unique_ptr<Connection>> connections_;  // of the accepting thread
  std::thread thread_;
};

}  // namespace hypic
