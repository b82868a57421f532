#include "reference/socket_links.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <random>
#include <utility>

#include "core/check.h"
#include "core/file_descriptor.h"

namespace hypic::reference {
namespace {

constexpr std::string_view kPrefix = "hypic-link-";

FileDescriptor new_socket() {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  require(static_cast<bool>(socket), "a link: ", std::strerror(errno));
  return socket;
}

// A name that lies in no folder and goes with its socket.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& id) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  require(id.starts_with(kPrefix) && id.size() < sizeof(address.sun_path), "a link: no id of a CPU backend");
  std::memcpy(address.sun_path + 1, id.data(), id.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + id.size())};
}

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

class SocketLink final : public PairLink {
 public:
  // By a socket that the other end is to connect to, or by the other end's.
  explicit SocketLink(FileDescriptor listener) : listener_(std::move(listener)) {}
  explicit SocketLink(const std::string& id) : id_(id) {}

  void send(const void* from, int64_t bytes) override { pieces_.push_back({.from = from, .bytes = bytes}); }
  void receive(void* to, int64_t bytes) override { pieces_.push_back({.to = to, .bytes = bytes}); }
  int64_t done() override {
    if (!connect()) return 0;
    while (!pieces_.empty() && move(pieces_.front())) {
      pieces_.pop_front();
      ++done_;
    }
    return done_;
  }

 private:
  struct Piece {
    const void* from = nullptr;
    void* to = nullptr;
    int64_t bytes = 0;
    uint64_t head = 0;  // its size, as it comes
    size_t moved = 0;   // of the head and the bytes
  };

  bool connect() {
    if (socket_) return true;
    if (listener_) {
      socket_ = FileDescriptor(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      require(socket_ || would_wait(), "a link: ", std::strerror(errno));
    } else {
      const auto [address, size] = address_of(id_);
      FileDescriptor socket = new_socket();
      if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), size) == 0)
        socket_ = std::move(socket);
      else
        require(would_wait(), "a link: ", std::strerror(errno));
    }
    if (socket_) done_ = 1;
    return static_cast<bool>(socket_);
  }
  // Whether all of it has gone or come.
  bool move(Piece& piece) {
    constexpr size_t kHead = sizeof(piece.head);
    if (piece.from) piece.head = static_cast<uint64_t>(piece.bytes);
    for (const size_t all = kHead + static_cast<size_t>(piece.bytes); piece.moved < all;) {
      const bool head = piece.moved < kHead;
      const size_t at = head ? piece.moved : piece.moved - kHead, left = (head ? kHead : all) - piece.moved;
      auto* const own = reinterpret_cast<char*>(&piece.head) + at;
      const ssize_t n =
          piece.from ? ::send(socket_.fd(), head ? own : static_cast<const char*>(piece.from) + at, left, MSG_NOSIGNAL)
                     : ::recv(socket_.fd(), head ? own : static_cast<char*>(piece.to) + at, left, 0);
      if (n < 0 && would_wait()) return false;
      require(n > 0, "a link: its other end is gone");
      piece.moved += static_cast<size_t>(n);
      require(piece.moved < kHead || piece.head == static_cast<uint64_t>(piece.bytes), "a link: ", piece.head,
              " bytes come, not ", piece.bytes);
    }
    return true;
  }

  const FileDescriptor listener_;
  const std::string id_;
  FileDescriptor socket_;
  std::deque<Piece> pieces_;
  int64_t done_ = 0;
};

std::string random_name() {
  std::random_device random;
  return str(kPrefix, std::hex, random(), "-", random(), "-", random(), "-", random());
}

class SocketLinks final : public Links {
 public:
  std::string device() const override { return device_; }
  Offer offer() override {
    const std::string id = random_name();
    const auto [address, size] = address_of(id);
    FileDescriptor socket = new_socket();
    require(
        ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), size) == 0 && ::listen(socket.fd(), 1) == 0,
        "a link: ", std::strerror(errno));
    return {id, std::make_unique<SocketLink>(std::move(socket))};
  }
  std::unique_ptr<PairLink> join(const std::string& id) override {
    address_of(id);
    return std::make_unique<SocketLink>(id);
  }

 private:
  const std::string device_ = random_name();
};

}  // namespace

std::unique_ptr<Links> make_socket_links() { return std::make_unique<SocketLinks>(); }

}  // namespace hypic::reference
