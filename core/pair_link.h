// Links between devices of two processes, on one machine or two, over which bytes go past the hosts' memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace hypic {

// One end: all that the other one sends, this one receives. For one thread at a time, any; nothing here waits.
class PairLink {
 public:
  // Aborts what is under way: from then on nothing is read or written for it, and at the other end it never ends.
  virtual ~PairLink() = default;
  // Memory of the device that the link was made on, which stays until it is done, or the link is gone. Both ends call
  // their own in the same order with the same sizes; the link may break where they do not.
  virtual void send(const void* from, int64_t bytes) = 0;
  virtual void receive(void* to, int64_t bytes) = 0;
  // How many of these are done, in their order, the connection itself being the first. The link moves on by being
  // asked. Error: it is broken; what is not done never will be.
  virtual int64_t done() = 0;
};

// Makes links on one device. For any thread.
class Links {
 public:
  virtual ~Links() = default;
  // Names the device, at most 256 bytes: devices of the same name cannot be linked.
  virtual std::string device() const = 0;
  // A new link, this end receiving, and what the other end joins it by, at most 256 bytes. Returns at once, as join
  // does.
  struct Offer {
    std::string id;
    std::unique_ptr<PairLink> link;
  };
  virtual Offer offer() = 0;
  // The end that sends. Error: this id makes no link.
  virtual std::unique_ptr<PairLink> join(const std::string& id) = 0;
};

}  // namespace hypic
