#include "serving/tcp_transport.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

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

}  // namespace

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

  void send(const Packet& packet) override {
    const std::vector<uint8_t> frame = frame_of(packet);
    const std::scoped_lock lock(mutex_);
    if (!socket_ || gone()) socket_ = connected(host_, port_, options_.connect_timeout);
    try {
      for (size_t done = 0; done < frame.size();) {
        const ssize_t n = ::send(socket_.fd(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
        if (n > 0) {
          done += static_cast<size_t>(n);
          continue;
        }
        if (errno == EINTR) continue;
        require(errno == EAGAIN || errno == EWOULDBLOCK, address_, ": cannot send: ", std::strerror(errno));
        require(socket_.wait(POLLOUT, options_.send_timeout), address_, ": takes nothing");
      }
    } catch (...) {  // half a frame may be out: what follows must begin anew
      socket_ = Socket();
      throw;
    }
  }

 private:
  // Whether the receiver has closed: it never sends.
  bool gone() const {
    char byte;
    const ssize_t n = ::recv(socket_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

  const std::string address_;
  const TcpOptions options_;
  std::string host_, port_;
  std::mutex mutex_;
  Socket socket_;
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

void TcpReceiver::serve(Connection& connection) {
  std::set<uint64_t> transfers;  // that packets came of; the latest ones
  constexpr size_t kMostTransfers = 65536;
  std::string why = "its sender is gone";
  try {
    PacketDecoder decoder;
    std::vector<uint8_t> buffer(kReadBytes);
    while (!ends_) {
      if (!connection.socket.wait(POLLIN, kTick)) continue;
      const ssize_t n = ::recv(connection.socket.fd(), buffer.data(), buffer.size(), 0);
      if (n == 0) break;
      if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
      require(n > 0, "the connection broke: ", std::strerror(errno));
      decoder.feed({buffer.data(), static_cast<size_t>(n)}, [&](const Packet& packet) {
        if (transfers.insert(packet.transfer).second && transfers.size() > kMostTransfers)
          transfers.erase(transfers.begin());
        sink_.take(packet);
      });
    }
  } catch (const std::exception& error) {
    why = error.what();
  }
  connection.socket = Socket();
  sink_.lost(std::vector<uint64_t>(transfers.begin(), transfers.end()), why);
  connection.done = true;
}

}  // namespace hypic
