// Links of which anything may go wrong; for tests.
#pragma once

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/pair_link.h"

namespace hypic {

enum class LinkFault {
  none,
  hangs,     // it moves no more
  breaks,    // at this end; the other one sees its end
  damages,   // a byte on its way
  shortens,  // it sends less than it says
};

class FaultyLinks final : public Links {
 public:
  // `fault` is asked before each piece, and before a connection (`connecting`), on any thread.
  FaultyLinks(std::unique_ptr<Links> inner, std::function<LinkFault(bool connecting)> fault)
      : inner_(std::move(inner)), fault_(std::move(fault)) {}
  std::string device() const override { return inner_->device(); }
  Offer offer() override {
    Offer offer = inner_->offer();
    return {offer.id, std::make_unique<Link>(std::move(offer.link), fault_)};
  }
  std::unique_ptr<PairLink> join(const std::string& id) override {
    return std::make_unique<Link>(inner_->join(id), fault_);
  }

 private:
  class Link final : public PairLink {
   public:
    Link(std::unique_ptr<PairLink> inner, const std::function<LinkFault(bool)>& fault)
        : inner_(std::move(inner)), fault_(fault), now_(fault(true)) {}
    void send(const void* from, int64_t bytes) override {
      if (bad()) return;
      if (now_ == LinkFault::damages) {
        const auto* const begin = static_cast<const uint8_t*>(from);
        damaged_.emplace_back(begin, begin + bytes)[static_cast<size_t>(bytes) / 2] ^= 4;
        from = damaged_.back().data();
      }
      inner_->send(from, now_ == LinkFault::shortens ? bytes - 1 : bytes);
    }
    void receive(void* to, int64_t bytes) override {
      if (!bad()) inner_->receive(to, bytes);
    }
    int64_t done() override {
      if (now_ == LinkFault::breaks) {
        inner_.reset();
        fail("the link is broken on purpose");
      }
      if (now_ != LinkFault::hangs) done_ = inner_->done();
      return done_;
    }

   private:
    bool bad() {
      if (now_ != LinkFault::hangs && now_ != LinkFault::breaks) now_ = fault_(false);
      return now_ == LinkFault::hangs || now_ == LinkFault::breaks;
    }
    std::unique_ptr<PairLink> inner_;
    const std::function<LinkFault(bool)> fault_;
    LinkFault now_;
    std::list<std::vector<uint8_t>> damaged_;
    int64_t done_ = 0;
  };
  const std::unique_ptr<Links> inner_;
  const std::function<LinkFault(bool)> fault_;
};

}  // namespace hypic
