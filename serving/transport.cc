#include "serving/transport.h"

#include "core/check.h"

namespace hypic {

class InProcessTransports::Way final : public Transport {
 public:
  Way(InProcessTransports& all, std::string address) : all_(all), address_(std::move(address)) {}
  void send(const Packet& packet) override {
    const std::scoped_lock lock(all_.mutex_);
    const auto found = all_.sinks_.find(address_);
    require(found != all_.sinks_.end(), address_, ": no such receiver");
    found->second->take(packet);
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
