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
#include <vector>

#include "serving/bootstrap.h"
#include "serving/router.h"
#include "serving/rpc/tls.h"
#include "serving/worker_identity.h"

namespace hypic {

class RpcPeer;

// How workers are called; without files: without TLS.
struct PeerTls {
  Tls files;
  std::string name;  // that workers' certificates are for; empty: the host that they are called by
};

std::shared_ptr<RpcPeer> make_rpc_peer(const std::string& address, const PeerTls& tls = {});  // HOST:PORT
std::shared_ptr<ScatterPeer> scatter_of(const std::shared_ptr<RpcPeer>& peer);
std::shared_ptr<CombinePeer> combine_of(const std::shared_ptr<RpcPeer>& peer);

// Names that stand for workers whose addresses come and go.
struct WorkerNames {
  std::vector<WorkerAddress> names;  // NAME:PORT
  // Called from threads of its own, of which one may outlive the watch. What it throws is no end, but said.
  std::function<std::vector<WorkerAddress>(Role, const std::string&)> resolve = workers_of_dns;
  std::chrono::milliseconds every{5000};
};

// Follows workers from a thread each, tries again while they are away, and tells the router. All must be of the
// identity that the router has, and, in what it cannot know, the first combine worker: one that differs stays down,
// which `say` hears, with what differs. Names are resolved again and again: an address that is new is followed, one
// that a name no longer has is left once it is down, so that what leaves the name before it ends is not cut off.
class WorkerWatch {
 public:
  WorkerWatch(Router& router, const WorkerIdentity& identity, const std::vector<WorkerAddress>& workers,
              std::function<void(const std::string&)> say, const WorkerNames& names = {}, const PeerTls& tls = {});
  ~WorkerWatch();

 private:
  struct Followed;
  void add(const WorkerAddress& worker, const std::string& of);
  void follow(Followed& worker);
  void resolve();
  void update(const WorkerAddress& name, const std::vector<WorkerAddress>& found);
  // Why a worker is not one of these, empty if it is. A combine worker says what weights and backend are, not whoever
  // answers first.
  std::string unlike(const WorkerIdentity& theirs, Role role);

  Router& router_;
  const std::function<void(const std::string&)> say_;
  const PeerTls tls_;
  std::mutex mutex_;  // of what follows
  std::condition_variable ended_;
  bool ends_ = false;
  WorkerIdentity identity_;  // without weights no combine worker was seen
  std::vector<std::unique_ptr<Followed>> followed_;  // changed by one thread, the resolving one
  const WorkerNames names_;
  std::thread resolving_;
};

}  // namespace hypic
