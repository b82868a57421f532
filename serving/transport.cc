#include "serving/transport.h"

#include "core/check.h"

namespace hypic {

void Window::put(const Packet&, int64_t, const void*, int64_t) { HYPIC_CHECK(false, "a window without a link"); }
void Window::flush() { HYPIC_CHECK(false, "a window without a link"); }

std::shared_ptr<Window> PacketSink::window(uint64_t, uint64_t, int64_t) { return nullptr; }

std::vector<std::shared_ptr<Window>> Transport::windows(std::span<const Wanted> wanted) {
  return std::vector<std::shared_ptr<Window>>(wanted.size());
}

class InProcessTransports::Way final : public Transport {
 public:
  Way(InProcessTransports& all, std::string address) : all_(all), address_(std::move(address)) {}
  void send(const Packet& packet) override {
    const std::scoped_lock lock(all_.mutex_);
    const auto found = all_.sinks_.find(address_);
    require(found != all_.sinks_.end(), address_, ": no such receiver");
    found->second->take(packet);
  }
  std::vector<std::shared_ptr<Window>> windows(std::span<const Wanted> wanted) override {
    const std::scoped_lock lock(all_.mutex_);
    std::vector<std::shared_ptr<Window>> windows(wanted.size());
    const auto found = all_.sinks_.find(address_);
    for (size_t i = 0; i < wanted.size() && found != all_.sinks_.end(); ++i)
      windows[i] = found->second->window(wanted[i].transfer, wanted[i].generation, wanted[i].bytes);
    return windows;
  }

 private:
  InProcessTransports& all_;
  const std::string address_;
};

void InProcessTransports::add(const std::string& address, PacketSink& sink) {
  const std::scoped_lock lock(mutex_);
  sinks_[address] = &sink;
}

void InProcessTransports::remove(const std::string& address) {
  const std::scoped_lock lock(mutex_);
  sinks_.erase(address);
}

std::shared_ptr<Transport> InProcessTransports::to(const std::string& address) {
  return std::make_shared<Way>(*this, address);
}

}  // namespace hypic
