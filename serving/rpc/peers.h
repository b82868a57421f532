// Workers of other processes, as a router calls and watches them: over gRPC.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "serving/bootstrap.h"
#include "serving/router.h"

namespace hypic {

class RpcPeer;

std::shared_ptr<RpcPeer> make_rpc_peer(const std::string& address);  // HOST:PORT
std::shared_ptr<ScatterPeer> scatter_of(const std::shared_ptr<RpcPeer>& peer);
std::shared_ptr<CombinePeer> combine_of(const std::shared_ptr<RpcPeer>& peer);

// Follows workers from a thread each, tries again while they are away, and tells the router. All must be of one model,
// backend and mode: one that differs from the first stays down, which `say` hears.
class WorkerWatch {
 public:
  WorkerWatch(Router& router, const std::vector<WorkerAddress>& workers, std::function<void(const std::string&)> say);
  ~WorkerWatch();

 private:
  struct Followed;
  void follow(Followed& worker);
  // Why a worker is not one of these, empty if it is. A combine worker says what model, backend and mode are, not
  // whoever answers first.
  std::string unlike(const std::string& identity, Role role);

  Router& router_;
  const std::function<void(const std::string&)> say_;
  std::mutex mutex_;  // of what follows
  std::condition_variable ended_;
  bool ends_ = false;
  std::string identity_;  // empty: no combine worker was seen
  std::vector<std::unique_ptr<Followed>> followed_;
};

}  // namespace hypic
