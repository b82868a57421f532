// Workers of this process, as a router calls them.
#pragma once

#include <memory>
#include <utility>

#include "serving/router.h"

namespace hypic {

// The worker outlives it and what was asked of it.
class LocalScatter final : public ScatterPeer {
 public:
  explicit LocalScatter(ScatterWorker& worker) : worker_(worker) {}
  void prefill(PrefillJob job, std::function<void(const PrefillReport&)> done) override {
    worker_.prefill(std::move(job), std::move(done));
  }
  void flush() override { worker_.flush(); }

 private:
  ScatterWorker& worker_;
};

class LocalCombine final : public CombinePeer {
 public:
  explicit LocalCombine(CombineWorker& worker) : worker_(worker) {}
  uint64_t generate(Request request, std::vector<CombineWorker::Remote> remote, Events events) override {
    const CombineWorker::Opened opened = worker_.submit(std::move(request), remote, std::move(events.notice));
    if (!remote.empty()) events.opened(opened.generations);
    return opened.id;
  }
  void cancel(uint64_t call) override { worker_.cancel(call); }
  void fail(uint64_t transfer, const std::string& why) override { worker_.fail(transfer, why); }
  void flush() override { worker_.scheduler().flush(); }

 private:
  CombineWorker& worker_;
};

}  // namespace hypic
