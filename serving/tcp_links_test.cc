// Windows over links: every way in which one end may fail the other.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "core/check.h"
#include "core/shared_memory.h"
#include "reference/socket_links.h"
#include "serving/faulty_links.h"
#include "serving/tcp_transport.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kPlace = 6000, kPlaces = 8;
constexpr auto kLong = 20s;  // no test waits so long that goes well

template <class Condition>
bool comes_true(Condition&& condition) {
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

std::vector<uint8_t> layer_of(uint64_t transfer, int32_t layer, int64_t bytes) {
  std::vector<uint8_t> all(static_cast<size_t>(bytes));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(transfer * 37 + layer * 11 + i * 3 + 1);
  return all;
}

// A place for each transfer; checks what lands there.
class Giver final : public PacketSink {
 public:
  Giver() : memory_(kPlace * kPlaces) {}
  void take(const Packet& packet) override {
    const std::scoped_lock lock(mutex_);
    if (packet.kind == Packet::Kind::data) ++taken;
    if (packet.kind != Packet::Kind::landed) return;
    const int64_t bytes = sizes_.at({packet.transfer, packet.layer}).second;
    uint64_t said = 0;
    ASSERT_EQ(packet.bytes.size(), sizeof(said));
    std::memcpy(&said, packet.bytes.data(), sizeof(said));
    const uint8_t* const at = place(packet.transfer) + sizes_.at({packet.transfer, packet.layer}).first;
    const bool same = checksum(at, bytes) == said;
    EXPECT_EQ(same, layer_of(packet.transfer, packet.layer, bytes) == std::vector<uint8_t>(at, at + bytes));
    order_.emplace_back(packet.transfer, packet.layer);
    (same ? landed : damaged) += 1;
  }
  void lost(std::span<const uint64_t> transfers, const std::string& why) override {
    const std::scoped_lock lock(mutex_);
    for (const uint64_t transfer : transfers) lost_[transfer] = why;
  }
  std::shared_ptr<Window> window(uint64_t transfer, uint64_t generation, int64_t bytes) override {
    const std::scoped_lock lock(mutex_);
    if (generation != 9) return nullptr;
    auto window = std::make_shared<Window>();
    window->data = place(transfer);
    window->bytes = bytes;
    given_[transfer] = window;
    return window;
  }
  void expect(uint64_t transfer, int32_t layer, int64_t offset, int64_t bytes) {
    const std::scoped_lock lock(mutex_);
    sizes_[{transfer, layer}] = {offset, bytes};
  }
  bool gives(uint64_t transfer) {
    const std::scoped_lock lock(mutex_);
    return !given_[transfer].expired();
  }
  std::string why_lost(uint64_t transfer) {
    const std::scoped_lock lock(mutex_);
    const auto found = lost_.find(transfer);
    return found == lost_.end() ? "" : found->second;
  }
  std::vector<std::pair<uint64_t, int32_t>> order() {
    const std::scoped_lock lock(mutex_);
    return order_;
  }
  std::atomic<int> taken = 0, landed = 0, damaged = 0;

 private:
  uint8_t* place(uint64_t transfer) { return memory_.data() + transfer % kPlaces * kPlace; }
  std::mutex mutex_;
  std::vector<uint8_t> memory_;
  std::map<std::pair<uint64_t, int32_t>, std::pair<int64_t, int64_t>> sizes_;
  std::map<uint64_t, std::weak_ptr<Window>> given_;
  std::map<uint64_t, std::string> lost_;
  std::vector<std::pair<uint64_t, int32_t>> order_;
};

class Lines {
 public:
  std::function<void(const std::string&)> say() {
    return [this](const std::string& line) {
      const std::scoped_lock lock(mutex_);
      all_.push_back(line);
    };
  }
  bool has(const std::string& part) {
    const std::scoped_lock lock(mutex_);
    return std::any_of(all_.begin(), all_.end(), [&](const auto& line) { return line.find(part) != line.npos; });
  }
  size_t count() {
    const std::scoped_lock lock(mutex_);
    return all_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> all_;
};

// What goes wrong with one end's links: once, at the n-th piece, or with the next connection.
struct Trouble {
  std::atomic<LinkFault> with_piece = LinkFault::none, with_connection = LinkFault::none;
  std::atomic<int> after = 0;
  std::function<LinkFault(bool)> faults() {
    return [this](bool connecting) {
      if (connecting) return with_connection.exchange(LinkFault::none);
      if (with_piece.load() == LinkFault::none || after-- > 0) return LinkFault::none;
      return with_piece.exchange(LinkFault::none);
    };
  }
};

struct Pair {
  explicit Pair(std::string key = "", std::string their_key = "", LinkPatience patience = {10s, 150ms})
      : sender_links(reference::make_socket_links(), sender_trouble.faults()),
        receiver_links(reference::make_socket_links(), receiver_trouble.faults()),
        receiver(std::make_unique<TcpReceiver>(sink, "127.0.0.1", 0,
                                               TcpOptions{.rest = 20ms,
                                                          .links = &receiver_links,
                                                          .link_patience = patience,
                                                          .key = std::move(key),
                                                          .say = receiver_said.say()})),
        transports(std::make_unique<TcpTransports>(TcpOptions{.send_timeout = 500ms,
                                                              .links = &sender_links,
                                                              .link_patience = patience,
                                                              .ask_again = 20ms,
                                                              .key = std::move(their_key),
                                                              .say = sender_said.say()})),
        way(transports->to(str("127.0.0.1:", receiver->port()))) {}

  std::shared_ptr<Window> window(uint64_t transfer) {
    std::shared_ptr<Window> window;
    const Transport::Wanted wanted{transfer, 9, kPlace};
    EXPECT_TRUE(comes_true([&] { return (window = way->windows({&wanted, 1})[0]) != nullptr; }));
    return window;
  }
  void put(Window& window, uint64_t transfer, int32_t layer, int64_t offset, int64_t bytes) {
    const auto& sent = kept[{transfer, layer}] = layer_of(transfer, layer, bytes);
    const uint64_t sum = checksum(sent.data(), bytes);
    sink.expect(transfer, layer, offset, bytes);
    window.put({.kind = Packet::Kind::landed,
                .transfer = transfer,
                .generation = 9,
                .layer = layer,
                .bytes = {reinterpret_cast<const uint8_t*>(&sum), sizeof(sum)}},
               offset, sent.data(), bytes);
  }
  // A whole residue goes.
  void works(uint64_t transfer) {
    const int before = sink.landed;
    auto window = this->window(transfer);
    ASSERT_TRUE(window);
    put(*window, transfer, 0, 0, 100);
    put(*window, transfer, 1, 100, 5900);
    window->flush();
    EXPECT_TRUE(comes_true([&] { return sink.landed == before + 2; }));
    EXPECT_TRUE(sink.gives(transfer));
    window.reset();
    EXPECT_TRUE(comes_true([&] { return !sink.gives(transfer); }));
    EXPECT_EQ(sink.why_lost(transfer), "");
  }
  // The other way is open all the time.
  void packets_go() {
    const int before = sink.taken;
    way->send({.transfer = 77, .generation = 9});
    EXPECT_TRUE(comes_true([&] { return sink.taken == before + 1; }));
    EXPECT_EQ(sink.why_lost(77), "");
  }

  std::map<std::pair<uint64_t, int32_t>, std::vector<uint8_t>> kept;  // outlives the links
  Giver sink;
  Lines sender_said, receiver_said;
  Trouble sender_trouble, receiver_trouble;
  FaultyLinks sender_links, receiver_links;
  std::unique_ptr<TcpReceiver> receiver;
  std::unique_ptr<TcpTransports> transports;
  std::shared_ptr<Transport> way;
};

TEST(TcpLinks, LayersCrossInTheOrderInWhichTheyArePut) {
  for (const std::string key : {"", "the key of both of them"}) {
    Pair pair(key, key);
    auto one = pair.window(1), two = pair.window(2);
    EXPECT_EQ(one->data, nullptr);
    EXPECT_FALSE(one->same_process);
    for (int32_t layer = 0; layer < 3; ++layer) {
      pair.put(*one, 1, layer, layer * 2000, 2000);
      pair.put(*two, 2, layer, layer * 1000, 1000);
      one->flush();
      two->flush();
    }
    EXPECT_TRUE(comes_true([&] { return pair.sink.landed == 6; }));
    const std::vector<std::pair<uint64_t, int32_t>> expected{{1, 0}, {2, 0}, {1, 1}, {2, 1}, {1, 2}, {2, 2}};
    EXPECT_EQ(pair.sink.order(), expected);
    pair.packets_go();
    pair.works(3);
    EXPECT_TRUE(pair.sender_said.has("from device to device"));
    EXPECT_EQ(pair.sender_said.count(), 1u);
    EXPECT_EQ(pair.receiver_said.count(), 0u);
  }
}

TEST(TcpLinks, UntilThereIsALinkBytesGoByPackets) {
  Pair pair("", "", {200ms, 150ms});
  pair.sender_trouble.with_connection = LinkFault::hangs;
  const Transport::Wanted wanted{1, 9, kPlace};
  EXPECT_FALSE(pair.way->windows({&wanted, 1})[0]);
  pair.packets_go();
  // Both ends give it up in time, say so, and make another one later.
  EXPECT_TRUE(comes_true([&] {
    pair.way->windows({&wanted, 1});
    return pair.sender_said.has("through host memory for now: no link was made for 0.2 s");
  }));
  pair.works(2);
  pair.packets_go();

  Pair other("", "", {200ms, 150ms});
  other.receiver_trouble.with_connection = LinkFault::hangs;
  other.works(2);
  EXPECT_TRUE(other.receiver_said.has("no link was made for 0.2 s") ||
              other.receiver_said.has("nothing moved on the link"));
}

TEST(TcpLinks, OneDeviceOrNoLinksAreRefusedInOneLine) {
  Giver sink;
  const auto links = reference::make_socket_links();
  for (Links* const theirs : {links.get(), static_cast<Links*>(nullptr)}) {
    Lines said, heard;
    TcpReceiver receiver(sink, "127.0.0.1", 0, {.links = theirs, .say = heard.say()});
    TcpTransports transports({.links = links.get(), .ask_again = 20ms, .say = said.say()});
    const auto way = transports.to(str("127.0.0.1:", receiver.port()));
    const Transport::Wanted wanted{1, 9, kPlace};
    const std::string why = theirs ? "both workers are on one GPU" : "its receiver makes none";
    EXPECT_TRUE(comes_true([&] {
      EXPECT_FALSE(way->windows({&wanted, 1})[0]);
      return said.has(why);
    }));
    std::this_thread::sleep_for(50ms);
    EXPECT_FALSE(way->windows({&wanted, 1})[0]);
    EXPECT_EQ(said.count(), 1u);  // though it has been tried again
    way->send({.transfer = 7, .generation = 9});
  }
  EXPECT_TRUE(comes_true([&] { return sink.taken >= 1; }));
}

TEST(TcpLinks, WithoutTheKeyNobodyIsGivenALink) {
  Pair pair("the key of both of them", "another key than theirs");
  const Transport::Wanted wanted{1, 9, kPlace};
  EXPECT_TRUE(comes_true([&] {
    EXPECT_FALSE(pair.way->windows({&wanted, 1})[0]);
    return pair.receiver_said.has("does not match its key");
  }));
}

TEST(TcpLinks, WhoHangsOrBreaksLosesTheLinkAndNotTheConnection) {
  for (const LinkFault fault : {LinkFault::hangs, LinkFault::breaks})
    for (const bool of_sender : {true, false})
      for (const int after : {0, 1}) {
        SCOPED_TRACE(
            str(fault == LinkFault::hangs ? "hangs" : "breaks", of_sender ? ", the sender's" : "", ", ", after));
        Pair pair;
        auto window = pair.window(1);
        Trouble& trouble = of_sender ? pair.sender_trouble : pair.receiver_trouble;
        trouble.after = after;
        trouble.with_piece = fault;
        std::string why;
        // More than a socket holds is not needed: what the receiver says is heard with the next layer at the latest.
        EXPECT_TRUE(comes_true([&] {
          try {
            pair.put(*window, 1, 0, 0, 3000);
            window->flush();
            return false;
          } catch (const Error& error) {
            why = error.what();
            return true;
          }
        }));
        EXPECT_TRUE(comes_true([&] { return pair.sink.why_lost(1) != ""; }));
        EXPECT_NE(why, "");
        if (fault == LinkFault::breaks) {
          EXPECT_TRUE(why.find("broken on purpose") != why.npos || why.find("its other end is gone") != why.npos)
              << why;
        }
        EXPECT_THROW(pair.put(*window, 1, 1, 3000, 10), Error);
        EXPECT_THROW(window->flush(), Error);
        pair.packets_go();
        EXPECT_TRUE(pair.sink.gives(1));  // until the sender gives it back
        window.reset();
        EXPECT_TRUE(comes_true([&] { return !pair.sink.gives(1); }));
        pair.works(2);  // over another link of the same connection
        EXPECT_EQ(pair.sink.why_lost(77), "");
      }
}

TEST(TcpLinks, DamagedLayersShowAndShortOnesBreakTheLink) {
  Pair pair;
  auto window = pair.window(1);
  pair.sender_trouble.with_piece = LinkFault::damages;
  pair.put(*window, 1, 0, 0, 2000);
  pair.put(*window, 1, 1, 2000, 2000);
  window->flush();
  EXPECT_TRUE(comes_true([&] { return pair.sink.damaged == 1 && pair.sink.landed == 1; }));
  pair.sender_trouble.with_piece = LinkFault::shortens;
  EXPECT_TRUE(comes_true([&] {
    try {
      pair.put(*window, 1, 2, 4000, 1000);
      window->flush();
      return false;
    } catch (const Error&) {
      return true;
    }
  }));
  EXPECT_TRUE(comes_true([&] { return pair.sink.why_lost(1) != ""; }));
  window.reset();
  pair.works(2);
}

TEST(TcpLinks, WhereTheReceiverIsGoneTheSenderHearsOfIt) {
  for (const int when : {0, 1}) {
    Pair pair;
    auto window = pair.window(1);
    if (when > 0) pair.put(*window, 1, 0, 0, 5000);
    pair.receiver.reset();
    EXPECT_TRUE(comes_true([&] {
      try {
        pair.put(*window, 1, 1, 5000, 1000);
        window->flush();
        return false;
      } catch (const Error&) {
        return true;
      }
    }));
    const Transport::Wanted wanted{2, 9, kPlace};
    EXPECT_FALSE(pair.way->windows({&wanted, 1})[0]);
  }
}

// What is announced and does not come may come until the link is aborted: the place goes to nobody before.
TEST(TcpLinks, APlaceIsNobodyElsesWhileItMayBeWritten) {
  Pair pair("", "", {10s, 400ms});
  auto window = pair.window(1);
  pair.sender_trouble.with_piece = LinkFault::hangs;
  pair.put(*window, 1, 0, 0, 5000);
  window.reset();  // its packet `release` comes behind the layer's announcement
  pair.packets_go();
  EXPECT_TRUE(pair.sink.gives(1));
  EXPECT_TRUE(comes_true([&] { return !pair.sink.gives(1); }));
  EXPECT_TRUE(comes_true([&] { return pair.receiver_said.has("nothing moved on the link for 0.4 s"); }));
  pair.works(1 + kPlaces);  // in the same place
}

// A sender that keeps to no rule.
class Rude {
 public:
  explicit Rude(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  ~Rude() { ::close(socket_); }
  void send(const Packet& packet) {
    const auto frame = frame_of(packet);
    EXPECT_EQ(::send(socket_, frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
  }
  void send(Packet packet, const std::string& text) {
    packet.bytes = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
    send(packet);
  }
  // The next packet's kind and text; nothing: the connection was closed.
  std::optional<std::pair<Packet::Kind, std::string>> hear() {
    std::optional<std::pair<Packet::Kind, std::string>> heard;
    std::array<uint8_t, 1> one;  // so that no second one is taken with it
    while (!heard && ::recv(socket_, one.data(), 1, 0) == 1)
      decoder_.feed(one, [&](const Packet& packet) {
        heard.emplace(packet.kind, std::string(packet.bytes.begin(), packet.bytes.end()));
      });
    return heard;
  }
  std::unique_ptr<PairLink> link(Links& links) {
    send({.kind = Packet::Kind::link, .transfer = ++links_}, links.device());
    const auto answer = hear();
    EXPECT_TRUE(answer && answer->first == Packet::Kind::link);
    if (!answer) return nullptr;
    auto link = links.join(answer->second);
    EXPECT_TRUE(comes_true([&] { return link->done() == 1; }));
    return link;
  }
  bool asks(uint64_t transfer) {
    send({.kind = Packet::Kind::ask, .transfer = transfer, .generation = 9, .offset = kPlace});
    const auto answer = hear();
    EXPECT_TRUE(answer && answer->first == Packet::Kind::window);
    return answer && !answer->second.empty();
  }
  void crosses(uint64_t transfer, uint64_t offset, uint64_t bytes, uint64_t checksum = 1) {
    const Crossing crossing{checksum, bytes};
    send({.kind = Packet::Kind::crosses,
          .transfer = transfer,
          .generation = 9,
          .offset = offset,
          .bytes = {reinterpret_cast<const uint8_t*>(&crossing), sizeof(crossing)}});
  }

 private:
  const int socket_;
  uint64_t links_ = 0;
  PacketDecoder decoder_;
};

// Killed: its sockets close without a word. Before a layer, while one comes, and when it has come.
TEST(TcpLinks, WhereTheSenderIsKilledTheWindowIsFreeAtOnce) {
  const auto links = reference::make_socket_links(), theirs = reference::make_socket_links();
  Giver sink;
  TcpReceiver receiver(sink, "127.0.0.1", 0, {.rest = 10s, .links = links.get()});
  for (const uint64_t when : {1, 2, 3}) {
    SCOPED_TRACE(str(when));
    {
      Rude sender(receiver.port());
      const auto link = sender.link(*theirs);
      ASSERT_TRUE(comes_true([&] { return sender.asks(when); }));
      const std::vector<uint8_t> sent = layer_of(when, 0, 3000);
      sink.expect(when, 0, 0, 3000);
      if (when > 1) sender.crosses(when, 0, 3000, checksum(sent.data(), 3000));
      if (when > 2) {
        link->send(sent.data(), 3000);
        EXPECT_EQ(link->done(), 2);
        EXPECT_TRUE(comes_true([&] { return sink.landed == 1; }));
      }
    }
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(comes_true([&] { return !sink.gives(when) && sink.why_lost(when) != ""; }));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);  // no rest, no patience
  }
  EXPECT_EQ(sink.damaged, 0);
}

TEST(TcpLinks, SendersThatKeepToNoRuleWriteNowhere) {
  const auto links = reference::make_socket_links(), theirs = reference::make_socket_links();
  Giver sink;
  Lines said;
  TcpReceiver receiver(sink, "127.0.0.1", 0,
                       {.rest = 20ms, .links = links.get(), .link_patience = {10s, 150ms}, .say = said.say()});
  for (const auto& [transfer, offset, bytes] : {std::tuple<uint64_t, uint64_t, uint64_t>{1, 5000, 1001},
                                                {1, ~uint64_t{0}, 2},
                                                {1, 2, ~uint64_t{0}},
                                                {1, 0, 0}}) {
    Rude sender(receiver.port());
    const auto link = sender.link(*theirs);
    ASSERT_TRUE(comes_true([&] { return sender.asks(1); }));
    sender.crosses(transfer, offset, bytes);
    EXPECT_FALSE(sender.hear());
    EXPECT_TRUE(comes_true([&] { return !sink.gives(1); }));
    EXPECT_TRUE(said.has("lies outside its window"));
  }
  {  // a window that it gave back, or never had
    Rude sender(receiver.port());
    const auto link = sender.link(*theirs);
    ASSERT_TRUE(comes_true([&] { return sender.asks(2); }));
    sender.send({.kind = Packet::Kind::release, .transfer = 2, .generation = 9});
    sender.crosses(2, 0, 10);
    EXPECT_FALSE(sender.hear());
    EXPECT_TRUE(said.has("for which there is no window"));
  }
  {  // layers for a link that is gone go nowhere, and do no harm
    Rude sender(receiver.port());
    auto link = sender.link(*theirs);
    ASSERT_TRUE(comes_true([&] { return sender.asks(3); }));
    sender.send({.kind = Packet::Kind::unlink, .transfer = 7}, "of none that there is");
    sender.send({.kind = Packet::Kind::unlink, .transfer = 1}, "for a try");
    sender.crosses(3, 0, 10);
    EXPECT_FALSE(sender.asks(4));  // without a link there are no windows
    EXPECT_TRUE(comes_true([&] { return sink.why_lost(3) == "its sender says: for a try"; }));
    link = sender.link(*theirs);
    EXPECT_TRUE(comes_true([&] { return sender.asks(5); }));
    sender.send({.kind = Packet::Kind::link}, theirs->device());  // another one in place of it
    EXPECT_EQ(sender.hear()->first, Packet::Kind::link);
    EXPECT_TRUE(comes_true([&] { return sink.why_lost(5) != ""; }));
  }
  {  // announced, and never sent
    Rude sender(receiver.port());
    const auto link = sender.link(*theirs);
    ASSERT_TRUE(comes_true([&] { return sender.asks(6); }));
    sender.crosses(6, 0, 10);
    const auto heard = sender.hear();
    ASSERT_TRUE(heard);
    EXPECT_EQ(heard->first, Packet::Kind::unlink);
    EXPECT_EQ(heard->second, "nothing moved on the link for 0.15 s");
  }
  EXPECT_EQ(sink.landed + sink.damaged, 0);
}

}  // namespace
}  // namespace hypic
