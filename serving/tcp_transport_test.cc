#include "serving/tcp_transport.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "core/check.h"
#include "reference/cpu_backend.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;

// Gives one window over all of its memory.
class Giver final : public PacketSink {
 public:
  Giver(Backend& backend, std::string handle = {}) : memory_(backend.share(1000)) {
    if (!handle.empty()) false_memory_ = std::make_unique<SharedMemory>(memory_->data(), 1000, std::move(handle));
  }
  void take(const Packet&) override { ++taken; }
  void lost(std::span<const uint64_t>, const std::string&) override { ++losses; }
  std::shared_ptr<Window> window(uint64_t transfer, uint64_t generation, int64_t bytes) override {
    if (transfer != 7 || generation != 9) return nullptr;
    auto window = std::make_shared<Window>();
    window->data = memory_->data() + 100;
    window->bytes = bytes;
    window->memory = false_memory_ ? false_memory_.get() : memory_.get();
    given_ = window;
    return window;
  }
  const uint8_t* data() const { return memory_->data(); }
  bool gives() const { return !given_.expired(); }
  std::atomic<int> taken = 0, losses = 0;

 private:
  const std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<SharedMemory> false_memory_;
  std::weak_ptr<Window> given_;  // asked for once the receiver's thread has set it
};

struct Pair {
  explicit Pair(std::string handle = {})
      : backend(reference::make_cpu_backend()),
        sink(*backend, std::move(handle)),
        receiver(sink, "127.0.0.1", 0, {.rest = 20ms}),
        address(str("127.0.0.1:", receiver.port())) {}
  const std::unique_ptr<Backend> backend;
  Giver sink;
  TcpReceiver receiver;
  const std::string address;
};

TEST(TcpTransport, WindowsAreTheSendersUntilItGivesThemBack) {
  Pair pair;
  std::vector<std::string> said;
  TcpTransports transports(
      {.device = pair.backend.get(), .say = [&](const std::string& line) { said.push_back(line); }});
  const auto way = transports.to(pair.address);
  auto windows = way->windows(std::vector<Transport::Wanted>{{7, 8, 10}, {7, 9, 10}});
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_FALSE(windows[0]);
  ASSERT_TRUE(windows[1]);
  EXPECT_FALSE(windows[1]->same_process);
  const uint8_t byte = 42;
  pair.backend->copies()->copy({windows[1]->data + 3, &byte, 1});
  EXPECT_EQ(pair.sink.data()[103], 42);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_TRUE(said[0].ends_with("from device to device")) << said[0];
  way->send({.transfer = 7, .generation = 9});
  while (pair.sink.taken < 1) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(pair.sink.gives());
  windows.clear();
  while (pair.sink.gives()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(pair.sink.losses, 0);
  way->send({.transfer = 7, .generation = 9});
  while (pair.sink.taken < 2) std::this_thread::sleep_for(1ms);
}

TEST(TcpTransport, WhatCannotBeOpenedGoesByPackets) {
  Pair pair("memfd:1:1:1000:none");
  std::vector<std::string> said;
  TcpTransports transports(
      {.device = pair.backend.get(), .say = [&](const std::string& line) { said.push_back(line); }});
  const auto way = transports.to(pair.address);
  const std::vector<Transport::Wanted> wanted{{7, 9, 10}};
  EXPECT_FALSE(way->windows(wanted)[0]);
  EXPECT_EQ(said.size(), 1u);
  EXPECT_FALSE(way->windows(wanted)[0]);  // not asked again at once
  EXPECT_EQ(said.size(), 1u);
  way->send({.transfer = 7, .generation = 9});
  while (pair.sink.taken < 1) std::this_thread::sleep_for(1ms);
  while (pair.sink.gives()) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(TcpTransports().to(pair.address)->windows(wanted)[0]);  // without a device
}

// Of a sender that goes on after the receiver has given it up nothing lands where another is.
TEST(TcpTransport, ADamagedConnectionKeepsItsWindowsUntilTheSenderCloses) {
  Pair pair;
  const int sender = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(pair.receiver.port());
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(sender, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const auto frame = frame_of({.kind = Packet::Kind::ask, .transfer = 7, .generation = 9, .offset = 10});
  ASSERT_EQ(::send(sender, frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
  std::vector<uint8_t> answer(4096);
  PacketDecoder decoder;
  bool given = false;
  while (!given) {
    const ssize_t n = ::recv(sender, answer.data(), answer.size(), 0);
    ASSERT_GT(n, 0);
    decoder.feed({answer.data(), static_cast<size_t>(n)}, [&](const Packet& packet) {
      EXPECT_EQ(packet.kind, Packet::Kind::window);
      EXPECT_EQ(packet.offset, 100u);
      EXPECT_FALSE(packet.bytes.empty());
      given = true;
    });
  }
  const std::vector<uint8_t> garbage(100, 0xaa);
  ASSERT_EQ(::send(sender, garbage.data(), garbage.size(), 0), 100);
  EXPECT_EQ(::recv(sender, answer.data(), answer.size(), 0), 0);
  while (pair.sink.losses < 1) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(pair.sink.gives());
  ::close(sender);
  while (pair.sink.gives()) std::this_thread::sleep_for(1ms);
}

}  // namespace
}  // namespace hypic
