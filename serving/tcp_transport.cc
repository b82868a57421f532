#include "serving/tcp_transport.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <fstream>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/check.h"
#include "core/file_descriptor.h"

namespace hypic {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kTick{100};  // how long a thread may not notice that it is to end
constexpr size_t kReadBytes = size_t{1} << 18;
// How often a link is asked how far it is: while it is made, and while something is under way.
constexpr std::chrono::microseconds kLinkTick{1'000}, kCrossingTick{20};

class Socket : public FileDescriptor {
 public:
  using FileDescriptor::FileDescriptor;
  // Whether it is ready within the time.
  bool wait(short events, std::chrono::nanoseconds time) const {
    pollfd one{fd(), events, 0};
    const timespec left{time.count() / 1'000'000'000, time.count() % 1'000'000'000};
    int ready;
    do ready = ::ppoll(&one, 1, &left, nullptr);
    while (ready < 0 && errno == EINTR);
    return ready > 0;
  }
};

struct Addresses {
  Addresses(const std::string& host, const std::string& port, bool passive) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = passive ? AI_PASSIVE : 0;
    const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &first);
    require(failed == 0, host, ":", port, ": ", gai_strerror(failed));
  }
  ~Addresses() { freeaddrinfo(first); }
  addrinfo* first = nullptr;
};

Socket connected(const std::string& host, const std::string& port, milliseconds timeout) {
  const Addresses addresses(host, port, false);
  int error = ENOTCONN;
  for (const addrinfo* a = addresses.first; a; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) continue;
    error = ::connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      error = ETIMEDOUT;
      socklen_t size = sizeof(error);
      if (socket.wait(POLLOUT, timeout)) getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error != 0) continue;
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return socket;
  }
  fail(host, ":", port, ": cannot connect: ", std::strerror(error));
}

// All bytes, as fast as they are taken. Error.
void send_all(const Socket& socket, std::span<const uint8_t> frame, milliseconds timeout, const std::string& address) {
  for (size_t done = 0; done < frame.size();) {
    const ssize_t n = ::send(socket.fd(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (n > 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    require(errno == EAGAIN || errno == EWOULDBLOCK, address, ": cannot send: ", std::strerror(errno));
    require(socket.wait(POLLOUT, timeout), address, ": takes nothing");
  }
}

// In an answer, of a window that is reached by the link of its connection.
constexpr std::string_view kByLink = "link";

std::string text_of(const Packet& packet) {
  return {reinterpret_cast<const char*>(packet.bytes.data()), packet.bytes.size()};
}
std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Of this start of this machine, for all its containers; empty where it is not known.
const std::string& machine() {
  static const std::string id = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string text;
    std::getline(file, text);
    return text;
  }();
  return id;
}

}  // namespace

// A connection, and the receiver's memory that was opened by what came over it, or its link.
class TcpTransports::Line {
 public:
  Line(Socket socket, const std::string& address, const TcpOptions& options)
      : address_(address), options_(options), socket_(std::move(socket)) {}
  ~Line() { linking_.request_stop(); }

  // Whether nothing more can be sent: half a frame may be out, or the receiver has closed.
  bool broken() {
    const std::scoped_lock lock(mutex_);
    char byte;
    const ssize_t n = broken_ ? 0 : ::recv(socket_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }
  void send(const Packet& packet) {
    const std::vector<uint8_t> frame = frame_of(packet, options_.key);
    const std::scoped_lock lock(mutex_);
    require(!broken_, address_, ": the connection broke");
    put(frame);
  }

  struct Granted {
    bool given = false;
    uint8_t* data = nullptr;  // null: by the link
    const SharedMemory* memory = nullptr;
  };
  // The receiver's answers, in the order of what is asked.
  std::vector<Granted> ask(std::span<const Transport::Wanted> wanted) {
    const std::scoped_lock lock(mutex_);
    require(!broken_, address_, ": the connection broke");
    try {
      for (const Transport::Wanted& one : wanted)
        put(frame_of({.kind = Packet::Kind::ask,
                      .transfer = one.transfer,
                      .generation = one.generation,
                      .offset = static_cast<uint64_t>(one.bytes)},
                     options_.key));
      answers_.clear();
      const auto deadline = std::chrono::steady_clock::now() + options_.window_timeout;
      while (answers_.size() < wanted.size()) {
        const auto left = deadline - std::chrono::steady_clock::now();
        require(left > milliseconds(0) && hear(left), address_, ": does not answer");
      }
      std::vector<Granted> granted;
      for (size_t i = 0; i < wanted.size(); ++i) {
        const Answer& answer = answers_[i];
        require(answer.transfer == wanted[i].transfer && answers_.size() == wanted.size(), address_,
                ": answers what was not asked");
        granted.push_back(opened(answer, wanted[i].bytes));
        if (!granted.back().given && !answer.place.empty())
          put(frame_of({.kind = Packet::Kind::release, .transfer = answer.transfer, .generation = wanted[i].generation},
                       options_.key));
      }
      return granted;
    } catch (...) {  // an answer may come yet, and must not be taken for that to another question
      broken_ = true;
      throw;
    }
  }
  // Why windows cannot be used; empty: they can, as far as is known.
  std::string no_windows() {
    const std::scoped_lock lock(mutex_);
    return no_windows_;
  }

  // Whether the link is there; if there is none, one is begun. Error: why the last one is not; said once.
  bool linked() {
    const std::scoped_lock lock(mutex_);
    if (makes_link_) return false;
    if (const std::string why = std::exchange(no_link_, {}); !why.empty()) fail(why);
    if (link_) return true;
    makes_link_ = true;
    offered_.reset();
    linking_ = std::jthread([this](const std::stop_token& stop) { make_link(stop); });  // an earlier one has ended
    return false;
  }
  // Window::put and flush.
  void cross(const Packet& landed, int64_t offset, const void* from, int64_t bytes) {
    Packet packet = landed;
    packet.kind = Packet::Kind::crosses;
    packet.offset = static_cast<uint64_t>(offset);
    Crossing crossing{.checksum = 0, .bytes = static_cast<uint64_t>(bytes)};
    HYPIC_CHECK(landed.bytes.size() == sizeof(crossing.checksum));
    std::memcpy(&crossing.checksum, landed.bytes.data(), sizeof(crossing.checksum));
    packet.bytes = {reinterpret_cast<const uint8_t*>(&crossing), sizeof(crossing)};
    on_link([&] {
      put(frame_of(packet, options_.key));
      link_->send(from, bytes);
    });
  }
  void crossed() {
    for (bool idle = false; !idle;) {
      on_link([&] {
        hear({});
        if (!link_) return;
        link_->done();
        idle = link_->idle();
      });
      if (!idle) std::this_thread::sleep_for(kCrossingTick);
    }
  }

 private:
  struct Answer {  // to who asks for a window
    uint64_t transfer, offset;
    std::string place;
  };

  void put(const std::vector<uint8_t>& frame) {
    try {
      send_all(socket_, frame, options_.send_timeout, address_);
    } catch (...) {
      broken_ = true;
      throw;
    }
  }
  // Takes in what the receiver has sent, waiting no longer than this for something. False: nothing. Error: it is gone.
  bool hear(std::chrono::nanoseconds time) {
    if (!socket_.wait(POLLIN, time)) return false;
    std::array<uint8_t, 4096> buffer;
    const ssize_t n = ::recv(socket_.fd(), buffer.data(), buffer.size(), 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    try {
      require(n > 0, address_, ": the connection broke");
      decoder_.feed({buffer.data(), static_cast<size_t>(n)}, [&](const Packet& packet) { take(packet); });
    } catch (...) {
      broken_ = true;
      throw;
    }
    return true;
  }
  void take(const Packet& packet) {
    if (packet.kind == Packet::Kind::window) {
      answers_.push_back({packet.transfer, packet.offset, text_of(packet)});
      return;
    }
    require(packet.kind == Packet::Kind::link || packet.kind == Packet::Kind::unlink, address_,
            ": answers what was not asked");
    if (packet.transfer != links_ || !no_link_.empty()) return;  // of one that is past
    if (packet.kind == Packet::Kind::unlink) {
      no_link_ = text_of(packet);
      link_.reset();
    } else {
      require(makes_link_ && !link_ && !offered_, address_, ": answers what was not asked");
      offered_ = text_of(packet);
    }
  }
  // Of what goes wrong with the link both ends hear.
  template <class Work>
  void on_link(const Work& work) {
    const std::scoped_lock lock(mutex_);
    require(link_.has_value(), no_link_.empty() ? "the link broke" : no_link_);
    try {
      require(!broken_, address_, ": the connection broke");
      work();
    } catch (const std::exception& error) {
      unlink(error.what());
      throw;
    }
    require(link_.has_value(), no_link_);
  }
  void unlink(const std::string& why) {
    link_.reset();
    if (!no_link_.empty()) return;  // the receiver says so, or has heard
    no_link_ = why;
    if (broken_) return;
    try {
      put(frame_of({.kind = Packet::Kind::unlink, .transfer = links_, .bytes = bytes_of(why)}, options_.key));
    } catch (const std::exception&) {  // then the connection ends, which says the same
    }
  }
  void make_link(const std::stop_token& stop) {
    const auto deadline = std::chrono::steady_clock::now() + options_.link_patience.connect;
    for (bool begun = false, ready = false; !ready && !stop.stop_requested();) {
      {
        const std::scoped_lock lock(mutex_);
        try {
          require(!broken_, address_, ": the connection broke");
          const std::string device = begun ? "" : options_.links->device();
          if (!std::exchange(begun, true))
            put(frame_of({.kind = Packet::Kind::link, .transfer = ++links_, .bytes = bytes_of(device)}, options_.key));
          hear({});
          require(no_link_.empty(), no_link_);
          require(link_ || offered_ || std::chrono::steady_clock::now() < deadline, "the receiver makes no link");
          if (offered_) link_.emplace(options_.links->join(*std::exchange(offered_, {})), options_.link_patience);
          if (link_) link_->done();
          ready = link_ && link_->connected();
        } catch (const std::exception& error) {
          unlink(error.what());
          ready = true;
        }
        if (ready) makes_link_ = false;
      }
      if (!ready) std::this_thread::sleep_for(kLinkTick);
    }
  }
  Granted opened(const Answer& answer, int64_t bytes) {
    if (answer.place.empty() || !no_windows_.empty()) return {};
    if (answer.place == kByLink) return {.given = link_.has_value()};
    if (!options_.device) return {};
    try {
      require(!machine().empty() && answer.place.starts_with(machine()), "it is another machine");
      const std::string handle(answer.place.substr(machine().size()));
      std::unique_ptr<SharedMemory>& memory = memories_[handle];
      if (!memory) memory = options_.device->open_shared(handle);
      const auto offset = static_cast<int64_t>(answer.offset);
      require(offset >= 0 && bytes <= memory->size() && offset <= memory->size() - bytes,
              "a window outside its memory");
      return {true, memory->data() + offset, memory.get()};
    } catch (const std::exception& error) {
      no_windows_ = error.what();
      return {};
    }
  }

  const std::string address_;
  const TcpOptions& options_;
  std::mutex mutex_;  // of what follows
  const Socket socket_;
  bool broken_ = false;
  std::string no_windows_;
  PacketDecoder decoder_{options_.key};
  std::vector<Answer> answers_;
  std::map<std::string, std::unique_ptr<SharedMemory>> memories_;  // by handle
  uint64_t links_ = 0;                                             // asked for: the last one's number
  std::optional<std::string> offered_;                             // to join
  std::optional<WatchedLink> link_;
  std::string no_link_;  // why there is none; empty: none was asked for yet, or one is made, or there
  bool makes_link_ = false;
  std::jthread linking_;  // while it makes the link
};

class TcpTransports::RemoteWindow final : public Window {
 public:
  RemoteWindow(std::shared_ptr<Line> line, const Transport::Wanted& wanted, const Line::Granted& granted)
      : line_(std::move(line)), transfer_(wanted.transfer), generation_(wanted.generation) {
    data = granted.data;
    bytes = wanted.bytes;
    memory = granted.memory;
  }
  void put(const Packet& landed, int64_t offset, const void* from, int64_t size) override {
    HYPIC_CHECK(!data && offset >= 0 && size > 0 && offset <= bytes - size);
    line_->cross(landed, offset, from, size);
  }
  void flush() override { line_->crossed(); }
  ~RemoteWindow() override {
    try {
      line_->send({.kind = Packet::Kind::release, .transfer = transfer_, .generation = generation_});
    } catch (const std::exception&) {  // it is closed with its last window, which says the same
    }
  }

 private:
  const std::shared_ptr<Line> line_;
  const uint64_t transfer_, generation_;
};

class TcpTransports::Way final : public Transport {
 public:
  Way(const std::string& address, const TcpOptions& options) : address_(address), options_(options) {
    const size_t colon = address.rfind(':');
    require(colon != address.npos && colon > 0, address, ": is no HOST:PORT");
    host_ = address.substr(0, colon);
    if (host_.front() == '[' && host_.back() == ']') host_ = host_.substr(1, host_.size() - 2);
    port_ = address.substr(colon + 1);
    uint16_t number = 0;
    const auto [end, error] = std::from_chars(port_.data(), port_.data() + port_.size(), number);
    require(error == std::errc() && end == port_.data() + port_.size() && number > 0, address, ": is no HOST:PORT");
  }

  void send(const Packet& packet) override { line()->send(packet); }

  std::vector<std::shared_ptr<Window>> windows(std::span<const Wanted> wanted) override {
    std::vector<std::shared_ptr<Window>> windows(wanted.size());
    {
      const std::scoped_lock lock(mutex_);
      if ((!options_.device && !options_.links) || std::chrono::steady_clock::now() < ask_again_) return windows;
    }
    std::string why;
    try {
      const std::shared_ptr<Line> line = this->line();
      if (options_.links && !line->linked()) return windows;
      const std::vector<Line::Granted> granted = line->ask(wanted);
      for (size_t i = 0; i < wanted.size(); ++i)
        if (granted[i].given) windows[i] = std::make_shared<RemoteWindow>(line, wanted[i], granted[i]);
      why = line->no_windows();
      const std::scoped_lock lock(mutex_);
      if (std::any_of(windows.begin(), windows.end(), [](const auto& window) { return window != nullptr; }) &&
          (std::exchange(told_, line.get()) != line.get() || !said_.empty())) {
        said_.clear();
        if (options_.say) options_.say(str(address_, ": residues go there from device to device"));
      }
    } catch (const std::exception& error) {
      why = error.what();
    }
    if (why.empty()) return windows;
    const std::scoped_lock lock(mutex_);
    ask_again_ = std::chrono::steady_clock::now() + options_.ask_again;
    if (std::exchange(said_, why) != why && options_.say)
      options_.say(str(address_, ": residues go there through host memory for now: ", why));
    return windows;
  }

 private:
  std::shared_ptr<Line> line() {
    const std::scoped_lock lock(mutex_);
    if (!line_ || line_->broken())
      line_ = std::make_shared<Line>(connected(host_, port_, options_.connect_timeout), address_, options_);
    return line_;
  }

  const std::string address_;
  const TcpOptions& options_;
  std::string host_, port_;
  std::mutex mutex_;  // of what follows
  std::shared_ptr<Line> line_;
  const Line* told_ = nullptr;  // of which it was said that it has windows
  std::string said_;            // why it had none; empty: it has some since, or none was asked for
  std::chrono::steady_clock::time_point ask_again_{};
};

TcpTransports::TcpTransports(const TcpOptions& options) : options_(options) {}
TcpTransports::~TcpTransports() = default;

std::shared_ptr<Transport> TcpTransports::to(const std::string& address) {
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<Way>& way = ways_[address];
  if (!way) way = std::make_shared<Way>(address, options_);
  return way;
}

struct TcpReceiver::Connection {
  explicit Connection(int fd) : socket(fd) {}
  ~Connection() {
    if (thread.joinable()) thread.join();
  }
  Socket socket;
  std::atomic<bool> done = false;
  std::thread thread;
};

TcpReceiver::TcpReceiver(PacketSink& sink, const std::string& host, uint16_t port, const TcpOptions& options)
    : sink_(sink), options_(options) {
  const Addresses addresses(host, str(port), true);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = addresses.first; a && listener_ < 0; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (socket) setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (!socket || ::bind(socket.fd(), a->ai_addr, a->ai_addrlen) != 0 || ::listen(socket.fd(), SOMAXCONN) != 0) {
      error = errno;
      continue;
    }
    sockaddr_storage bound{};
    socklen_t size = sizeof(bound);
    getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &size);
    port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                              : reinterpret_cast<sockaddr_in&>(bound).sin_port);
    listener_ = ::dup(socket.fd());
  }
  require(listener_ >= 0, "cannot listen for residues on ", host, ":", port, ": ", std::strerror(error),
          "; choose another address with --data");
  thread_ = std::thread([this] { accept(); });
}

TcpReceiver::~TcpReceiver() {
  ends_ = true;
  thread_.join();
  connections_.clear();
  ::close(listener_);
}

void TcpReceiver::accept() {
  while (!ends_) {
    pollfd one{listener_, POLLIN, 0};
    ::poll(&one, 1, static_cast<int>(kTick.count()));
    std::erase_if(connections_, [](const auto& connection) { return connection->done.load(); });
    Socket socket(::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket || static_cast<int64_t>(connections_.size()) >= options_.max_connections) continue;
    Connection& connection = *connections_.emplace_back(std::make_unique<Connection>(-1));
    connection.socket = std::move(socket);
    connection.thread = std::thread([this, &connection] { serve(connection); });
  }
}

void TcpReceiver::say(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  if (options_.say && std::exchange(said_, why) != why) options_.say(why);
}

// The receiving end of a connection's link: what comes over it, in the order in which packets announced it.
class TcpReceiver::LinkEnd {
 public:
  LinkEnd(std::unique_ptr<PairLink> link, const LinkPatience& patience) : link_(std::move(link), patience) {}

  // Announced for this window, which stays until it is here. Error: it does not lie within.
  void expect(const Packet& packet, std::shared_ptr<Window> window) {
    constexpr size_t kMostAtOnce = 65536;
    Crossing crossing{};
    std::memcpy(&crossing, packet.bytes.data(), sizeof(crossing));
    const auto size = static_cast<uint64_t>(window->bytes);
    require(0 < crossing.bytes && crossing.bytes <= size && packet.offset <= size - crossing.bytes,
            "a layer that comes over the link lies outside its window");
    require(coming_.size() < kMostAtOnce, "too many layers come over the link at once");
    link_.receive(window->data + packet.offset, static_cast<int64_t>(crossing.bytes));
    coming_.push_back({packet, crossing.checksum, std::move(window)});
  }
  // Moves on: to the sink what is here. Error: the link is broken.
  void move_on(PacketSink& sink) {
    for (const int64_t done = link_.done(); here_ < done; ++here_) {
      Coming& first = coming_.front();
      first.packet.kind = Packet::Kind::landed;
      first.packet.offset = 0;
      first.packet.bytes = {reinterpret_cast<const uint8_t*>(&first.checksum), sizeof(first.checksum)};
      sink.take(first.packet);
      coming_.pop_front();
    }
  }
  // How soon that is worth a try.
  std::chrono::nanoseconds tick() const {
    if (link_.idle()) return kTick;
    return link_.connected() ? kCrossingTick : kLinkTick;
  }
  bool connected() const { return link_.connected(); }

 private:
  struct Coming {
    Packet packet;
    uint64_t checksum;
    std::shared_ptr<Window> window;
  };
  std::deque<Coming> coming_;
  int64_t here_ = 0;
  WatchedLink link_;  // goes first: it writes to windows
};

void TcpReceiver::serve(Connection& connection) {
  std::set<uint64_t> transfers;  // that packets came of; the latest ones
  constexpr size_t kMostTransfers = 65536;
  using Windows = std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Window>>;  // by transfer and generation
  Windows windows, by_link;
  bool wants_link = false;
  uint64_t number = 0;  // of the link
  std::optional<LinkEnd> link;
  std::string why = "its sender is gone";
  bool ended = false;  // by the sender
  const auto answer = [&](const Packet& packet) {
    send_all(connection.socket, frame_of(packet, options_.key), options_.send_timeout, "a sender");
  };
  // Residues that came by it do not any more; their sender may ask for another link.
  const auto unlink = [&](const std::string& reason) {
    link.reset();
    std::vector<uint64_t> gone;
    for (const auto& [key, window] : by_link) gone.push_back(key.first);
    sink_.lost(gone, reason);
    say("the link: " + reason);
  };
  const auto make_link = [&](const std::string& device) -> std::string {
    if (link) unlink("its sender makes another");
    require(options_.links != nullptr, "its receiver makes none, which --transport nccl of both is for");
    require(device != options_.links->device(), "both workers are on one GPU, ", device, ", which NCCL does not join");
    Links::Offer offer = options_.links->offer();
    link.emplace(std::move(offer.link), options_.link_patience);
    return offer.id;
  };
  const auto take = [&](const Packet& packet) {
    using Kind = Packet::Kind;
    const std::pair key(packet.transfer, packet.generation);
    if (packet.kind == Kind::link) {
      wants_link = true;
      number = packet.transfer;
      Packet reply{.kind = Kind::link, .transfer = number};
      std::string text;
      try {
        text = make_link(text_of(packet));
      } catch (const std::exception& error) {
        reply.kind = Kind::unlink;
        text = error.what();
        say("no link: " + text);
      }
      reply.bytes = bytes_of(text);
      return answer(reply);
    }
    if (packet.kind == Kind::unlink) {
      if (link && packet.transfer == number) unlink("its sender says: " + text_of(packet));
      return;
    }
    if (packet.kind == Kind::crosses) {
      if (!link) return;  // its sender does not know yet
      const auto found = by_link.find(key);
      require(found != by_link.end(), "a layer comes over the link for which there is no window");
      return link->expect(packet, found->second);
    }
    if (transfers.insert(packet.transfer).second && transfers.size() > kMostTransfers)
      transfers.erase(transfers.begin());
    if (packet.kind == Kind::release) {
      windows.erase(key);
      by_link.erase(key);
    } else if (packet.kind == Kind::ask) {
      const bool can = wants_link ? link && link->connected() : !machine().empty();
      const auto window =
          can ? sink_.window(packet.transfer, packet.generation, static_cast<int64_t>(packet.offset)) : nullptr;
      std::string place;
      Packet reply{.kind = Kind::window, .transfer = packet.transfer, .generation = packet.generation};
      if (window && wants_link) {
        by_link[key] = window;
        place = kByLink;
      } else if (window && !window->memory->handle().empty()) {
        windows[key] = window;
        place = machine() + window->memory->handle();
        reply.offset = static_cast<uint64_t>(window->data - window->memory->data());
      }
      reply.bytes = bytes_of(place);
      answer(reply);
    } else {
      require(packet.kind != Kind::window, "a packet that only a receiver sends");
      sink_.take(packet);
    }
  };
  std::vector<uint8_t> buffer(kReadBytes);
  const auto read = [&] {
    if (!connection.socket.wait(POLLIN, link ? link->tick() : kTick)) return std::span<const uint8_t>();
    const ssize_t n = ::recv(connection.socket.fd(), buffer.data(), buffer.size(), 0);
    ended = n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK);
    require(n >= 0 || !ended, "the connection broke: ", std::strerror(errno));
    return std::span<const uint8_t>(buffer.data(), static_cast<size_t>(std::max<ssize_t>(n, 0)));
  };
  try {
    PacketDecoder decoder(options_.key);
    while (!ends_ && !ended) {
      decoder.feed(read(), take);
      try {
        if (link) link->move_on(sink_);
      } catch (const std::exception& error) {
        const std::string reason = error.what();
        unlink(reason);
        answer({.kind = Packet::Kind::unlink, .transfer = number, .bytes = bytes_of(reason)});
      }
    }
  } catch (const std::exception& error) {
    why = error.what();
    say(why);
  }
  link.reset();
  by_link.clear();
  ::shutdown(connection.socket.fd(), SHUT_WR);  // the sender sees that nothing more is taken
  sink_.lost(std::vector<uint64_t>(transfers.begin(), transfers.end()), why);
  // A sender that lives closes when its copies are done; one that was killed may leave some to its device.
  try {
    while (!windows.empty() && !ends_ && !ended) read();
  } catch (const std::exception&) {
  }
  const auto rested = std::chrono::steady_clock::now() + options_.rest;
  while (!windows.empty() && !ends_ && std::chrono::steady_clock::now() < rested) std::this_thread::sleep_for(kTick);
  connection.socket = Socket();
  connection.done = true;
}

}  // namespace hypic
