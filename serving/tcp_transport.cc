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
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/check.h"

namespace hypic {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kTick{100};  // how long a thread may not notice that it is to end
constexpr size_t kReadBytes = size_t{1} << 18;

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  // Whether it is ready within the time.
  bool wait(short events, milliseconds time) const {
    pollfd one{fd_, events, 0};
    int ready;
    do ready = ::poll(&one, 1, static_cast<int>(time.count()));
    while (ready < 0 && errno == EINTR);
    return ready > 0;
  }

 private:
  int fd_;
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

// A connection, and the receiver's memory that was opened by what came over it.
class TcpTransports::Line {
 public:
  Line(Socket socket, const std::string& address, const TcpOptions& options)
      : address_(address), options_(options), socket_(std::move(socket)) {}

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
    uint8_t* data = nullptr;  // null: nothing
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
      std::vector<Granted> granted;
      const auto deadline = std::chrono::steady_clock::now() + options_.window_timeout;
      std::array<uint8_t, 4096> buffer;
      while (granted.size() < wanted.size()) {
        const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
        require(left > milliseconds(0) && socket_.wait(POLLIN, left), address_, ": does not answer");
        const ssize_t n = ::recv(socket_.fd(), buffer.data(), buffer.size(), 0);
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
        require(n > 0, address_, ": the connection broke");
        answers_.feed({buffer.data(), static_cast<size_t>(n)}, [&](const Packet& packet) {
          require(granted.size() < wanted.size() && packet.kind == Packet::Kind::window &&
                      packet.transfer == wanted[granted.size()].transfer,
                  address_, ": answers what was not asked");
          granted.push_back(opened(packet, wanted[granted.size()].bytes));
          if (!granted.back().data && !packet.bytes.empty())
            put(frame_of(
                {.kind = Packet::Kind::release, .transfer = packet.transfer, .generation = packet.generation},
                options_.key));
        });
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

 private:
  void put(const std::vector<uint8_t>& frame) {
    try {
      send_all(socket_, frame, options_.send_timeout, address_);
    } catch (...) {
      broken_ = true;
      throw;
    }
  }
  Granted opened(const Packet& answer, int64_t bytes) {
    const std::string_view text(reinterpret_cast<const char*>(answer.bytes.data()), answer.bytes.size());
    if (text.empty() || !no_windows_.empty()) return {};
    try {
      require(!machine().empty() && text.starts_with(machine()), "it is another machine");
      const std::string handle(text.substr(machine().size()));
      std::unique_ptr<SharedMemory>& memory = memories_[handle];
      if (!memory) memory = options_.device->open_shared(handle);
      const auto offset = static_cast<int64_t>(answer.offset);
      require(offset >= 0 && bytes <= memory->size() && offset <= memory->size() - bytes,
              "a window outside its memory");
      return {memory->data() + offset, memory.get()};
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
  PacketDecoder answers_{options_.key};
  std::map<std::string, std::unique_ptr<SharedMemory>> memories_;  // by handle
};

class TcpTransports::RemoteWindow final : public Window {
 public:
  RemoteWindow(std::shared_ptr<Line> line, const Transport::Wanted& wanted, const Line::Granted& granted)
      : line_(std::move(line)), transfer_(wanted.transfer), generation_(wanted.generation) {
    data = granted.data;
    bytes = wanted.bytes;
    memory = granted.memory;
  }
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
      if (!options_.device || std::chrono::steady_clock::now() < ask_again_) return windows;
    }
    std::string why;
    try {
      const std::shared_ptr<Line> line = this->line();
      const std::vector<Line::Granted> granted = line->ask(wanted);
      for (size_t i = 0; i < wanted.size(); ++i)
        if (granted[i].data) windows[i] = std::make_shared<RemoteWindow>(line, wanted[i], granted[i]);
      why = line->no_windows();
      const std::scoped_lock lock(mutex_);
      if (std::any_of(windows.begin(), windows.end(), [](const auto& window) { return window != nullptr; }) &&
          std::exchange(told_, line.get()) != line.get() && options_.say)
        options_.say(str(address_, ": residues go there from device to device"));
    } catch (const std::exception& error) {
      why = error.what();
    }
    if (why.empty()) return windows;
    const std::scoped_lock lock(mutex_);
    ask_again_ = std::chrono::steady_clock::now() + kAskAgain;
    if (options_.say) options_.say(str(address_, ": residues go there through host memory for now: ", why));
    return windows;
  }

 private:
  static constexpr std::chrono::seconds kAskAgain{30};

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

void TcpReceiver::serve(Connection& connection) {
  std::set<uint64_t> transfers;  // that packets came of; the latest ones
  constexpr size_t kMostTransfers = 65536;
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Window>> windows;  // by transfer and generation
  std::string why = "its sender is gone";
  bool ended = false;  // by the sender
  const auto take = [&](const Packet& packet) {
    const std::pair key(packet.transfer, packet.generation);
    if (transfers.insert(packet.transfer).second && transfers.size() > kMostTransfers)
      transfers.erase(transfers.begin());
    if (packet.kind == Packet::Kind::release) {
      windows.erase(key);
    } else if (packet.kind == Packet::Kind::ask) {
      const std::shared_ptr<Window> window =
          machine().empty() ? nullptr : sink_.window(packet.transfer, packet.generation, packet.offset);
      std::string place;
      Packet answer{.kind = Packet::Kind::window, .transfer = packet.transfer, .generation = packet.generation};
      if (window && !window->memory->handle().empty()) {
        windows[key] = window;
        place = machine() + window->memory->handle();
        answer.offset = static_cast<uint64_t>(window->data - window->memory->data());
        answer.bytes = {reinterpret_cast<const uint8_t*>(place.data()), place.size()};
      }
      send_all(connection.socket, frame_of(answer, options_.key), options_.send_timeout, "a sender");
    } else {
      require(packet.kind != Packet::Kind::window, "a packet that only a receiver sends");
      sink_.take(packet);
    }
  };
  std::vector<uint8_t> buffer(kReadBytes);
  const auto read = [&] {
    if (!connection.socket.wait(POLLIN, kTick)) return std::span<const uint8_t>();
    const ssize_t n = ::recv(connection.socket.fd(), buffer.data(), buffer.size(), 0);
    ended = n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK);
    require(n >= 0 || !ended, "the connection broke: ", std::strerror(errno));
    return std::span<const uint8_t>(buffer.data(), static_cast<size_t>(std::max<ssize_t>(n, 0)));
  };
  try {
    PacketDecoder decoder(options_.key);
    while (!ends_ && !ended) decoder.feed(read(), take);
  } catch (const std::exception& error) {
    why = error.what();
    say(why);
  }
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
