#include "serving/rpc/peers.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <future>
#include <map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "serving/rpc/cluster.grpc.pb.h"
#include "serving/rpc/limits.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;
using grpc::ClientContext;
using grpc::Status;
namespace pb = cluster::v1;

const std::string kClosed = "the connection was closed: its process has ended";

// Why a call to a worker failed, in words where gRPC gives those of a system call.
std::string cause_of(const Status& status) {
  const std::string& said = status.error_message();
  const auto has = [&](const char* part) { return said.find(part) != said.npos; };
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    if (has("Connection refused")) return "nothing listens there";
    if (has("keepalive"))
      return str("no answer for ", (rpc::kKeepaliveMs + rpc::kKeepaliveTimeoutMs) / 1000,
                 " s: it is stopped, or the network is gone");
    if (has("Cancelling all calls")) return "its process ends";
    if (has("Socket closed") || has("onnection reset") || has("roken pipe") || has("GOAWAY") || has("recvmsg"))
      return kClosed;
    if (has("certificate verify failed")) return "its certificate is not of --tls-ca, or its time is over";
    if (has("is not in peer certificate")) return "its certificate is for another name; --tls-name says for which";
    if (has("SSL routines") && has("wrong version")) return "it does not use TLS";
    if (has("DNS") || has("esolution")) return "its name cannot be resolved";
    if (const size_t colon = said.rfind(": "); has("failed to connect") && colon != said.npos)
      return str("cannot be reached: ", said.substr(colon + 2));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) return "no answer in time";
  return said.empty() ? str("the call failed, status ", static_cast<int>(status.error_code())) : said;
}

WorkerIdentity identity_of(const pb::Identity& said) {
  return {.model = said.model(),
          .weights = said.weights(),
          .config = said.config(),
          .backend = said.backend(),
          .ranks = said.ranks(),
          .numerics = said.numerics(),
          .mode = said.mode(),
          .key = said.key()};
}

std::string said(const std::string& address, const Status& status) { return str(address, ": ", cause_of(status)); }

}  // namespace

// A channel to a worker and the calls on it.
class RpcPeer final : public std::enable_shared_from_this<RpcPeer> {
 public:
  RpcPeer(const std::string& address, const PeerTls& tls) : address_(address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, rpc::kKeepaliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, rpc::kKeepaliveTimeoutMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, rpc::kFirstRetryMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, rpc::kRetryMs);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, rpc::kConnectMs);  // this one is the time of a try
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(rpc::kMaxMessageBytes);
    if (!tls.name.empty()) arguments.SetSslTargetNameOverride(tls.name);
    channel_ = grpc::CreateCustomChannel(
        address,
        tls.files.on() ? grpc::SslCredentials({tls.files.ca, tls.files.key, tls.files.cert})
                       : grpc::InsecureChannelCredentials(),
        arguments);
    worker_ = pb::Worker::NewStub(channel_);
    scatter_ = pb::Scatter::NewStub(channel_);
    combine_ = pb::Combine::NewStub(channel_);
  }

  const std::string& address() const { return address_; }
  pb::Worker::Stub& worker() { return *worker_; }

  // Tries to connect, for a while. A channel only gets on while somebody waits on it like this or in a call: otherwise
  // gRPC looks after it every five seconds, and calls on one that failed to connect end before that.
  void connect() { channel_->WaitForConnected(std::chrono::system_clock::now() + 200ms); }

  void prefill(PrefillJob job, std::function<void(const PrefillReport&)> done) {
    struct Call {
      ClientContext context;
      pb::PrefillRequest request;
      pb::PrefillReply reply;
    };
    const auto call = std::make_shared<Call>();
    call->context.set_deadline(std::chrono::system_clock::now() +
                               std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                   job.deadline - std::chrono::steady_clock::now()));
    call->request.set_destination(job.destination);
    for (const PrefillJob::Segment& segment : job.segments) {
      pb::Segment& one = *call->request.add_segments();
      one.set_transfer(segment.transfer);
      one.set_generation(segment.generation);
      one.mutable_tokens()->Assign(segment.tokens.begin(), segment.tokens.end());
    }
    scatter_->async()->Prefill(
        &call->context, &call->request, &call->reply,
        [self = shared_from_this(), call, segments = job.segments.size(), done = std::move(done)](Status status) {
          PrefillReport report;
          report.segments.resize(segments);
          for (size_t i = 0; i < segments; ++i) {
            PrefillReport::Segment& one = report.segments[i];
            if (!status.ok()) {
              one.error = said(self->address_, status);
            } else if (static_cast<int>(i) < call->reply.results_size()) {
              one.cached = call->reply.results(static_cast<int>(i)).cached();
              one.error = call->reply.results(static_cast<int>(i)).error();
            } else {
              one.error = str(self->address_, ": said nothing of it");
            }
          }
          report.waited = call->reply.waited();
          report.computed = call->reply.computed();
          report.sent = call->reply.sent();
          report.computed_tokens = call->reply.computed_tokens();
          done(report);
        });
  }

  void flush() {
    ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 10s);
    pb::FlushReply reply;
    worker_->Flush(&context, {}, &reply);
  }

  uint64_t generate(Request request, std::vector<CombineWorker::Remote> remote, CombinePeer::Events events) {
    pb::GenerateRequest asked;
    for (const Tokens& segment : request.segments)
      asked.add_segments()->mutable_ids()->Assign(segment.begin(), segment.end());
    asked.set_max_tokens(request.max_tokens);
    asked.set_temperature(request.sampling.temperature);
    asked.set_top_k(request.sampling.top_k);
    asked.set_top_p(request.sampling.top_p);
    asked.set_seed(request.sampling.seed);
    asked.mutable_stop()->Assign(request.stop.begin(), request.stop.end());
    for (const CombineWorker::Remote& one : remote) {
      asked.add_remote()->set_transfer(one.transfer);
      asked.mutable_remote()->rbegin()->set_segment(static_cast<int32_t>(one.segment));
    }
    std::shared_ptr<Generating> call;
    uint64_t id = 0;
    {
      const std::scoped_lock lock(mutex_);
      id = ++last_call_;
      call = std::make_shared<Generating>(shared_from_this(), id, std::move(asked), std::move(events));
      calls_.emplace(id, call);
    }
    call->start(*combine_);
    return id;
  }

  void cancel(uint64_t id) {
    std::shared_ptr<Generating> call;
    {
      const std::scoped_lock lock(mutex_);
      const auto found = calls_.find(id);
      if (found == calls_.end()) return;
      call = found->second;
    }
    call->cancel();
  }

  void fail(uint64_t transfer, const std::string& why) {
    struct Call {
      ClientContext context;
      pb::FailRequest request;
      pb::FailReply reply;
    };
    const auto call = std::make_shared<Call>();
    call->context.set_deadline(std::chrono::system_clock::now() + 10s);
    call->request.add_transfers(transfer);
    call->request.set_why(why);
    combine_->async()->Fail(&call->context, &call->request, &call->reply, [self = shared_from_this(), call](Status) {});
  }

 private:
  // A call of Generate; it lives until gRPC has said that it is done.
  class Generating final : public grpc::ClientReadReactor<pb::GenerateReply> {
   public:
    Generating(std::shared_ptr<RpcPeer> peer, uint64_t id, pb::GenerateRequest request, CombinePeer::Events events)
        : peer_(std::move(peer)), id_(id), request_(std::move(request)), events_(std::move(events)) {}

    void start(pb::Combine::Stub& stub) {
      stub.async()->Generate(&context_, &request_, this);
      StartRead(&reply_);
      StartCall();
    }
    void cancel() {
      silent_ = true;
      context_.TryCancel();
    }

    void OnReadDone(bool ok) override {
      if (!ok) return;
      if (reply_.has_opened() && !silent_) {
        if (!request_.remote().empty())
          events_.opened({reply_.opened().generations().begin(), reply_.opened().generations().end()});
      } else if (reply_.has_token()) {
        const pb::GenerateReply::Token& token = reply_.token();
        say({.token = token.id(),
             .last = token.last(),
             .reused = {.prefix = token.prefix(), .segments = token.segments(), .recomputed = token.recomputed()}});
      } else if (reply_.has_failed()) {
        say({.kind = Notice::Kind::failed,
             .last = true,
             .status = reply_.failed().status(),
             .error = reply_.failed().error()});
      }
      StartRead(&reply_);
    }

    void OnDone(const Status& status) override {
      if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT)
        say({.kind = Notice::Kind::failed, .last = true, .status = 400, .error = status.error_message()});
      else
        say({.kind = Notice::Kind::failed,
             .last = true,
             .status = CombinePeer::kLost,
             .error = CombinePeer::lost(said(peer_->address_, status))});
      const std::shared_ptr<RpcPeer> peer = peer_;
      const std::scoped_lock lock(peer->mutex_);
      peer->calls_.erase(id_);  // and this with it
    }

   private:
    void say(const Notice& notice) {
      if (silent_) return;
      silent_ = notice.last;
      events_.notice(notice);
    }

    const std::shared_ptr<RpcPeer> peer_;
    const uint64_t id_;
    const pb::GenerateRequest request_;
    const CombinePeer::Events events_;
    ClientContext context_;
    pb::GenerateReply reply_;
    std::atomic<bool> silent_ = false;  // it has ended, or nobody listens
  };

  const std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<pb::Worker::Stub> worker_;
  std::unique_ptr<pb::Scatter::Stub> scatter_;
  std::unique_ptr<pb::Combine::Stub> combine_;
  std::mutex mutex_;  // of what follows
  uint64_t last_call_ = 0;
  std::map<uint64_t, std::shared_ptr<Generating>> calls_;
};

namespace {

class RpcScatter final : public ScatterPeer {
 public:
  explicit RpcScatter(std::shared_ptr<RpcPeer> peer) : peer_(std::move(peer)) {}
  void prefill(PrefillJob job, std::function<void(const PrefillReport&)> done) override {
    peer_->prefill(std::move(job), std::move(done));
  }
  void flush() override { peer_->flush(); }

 private:
  const std::shared_ptr<RpcPeer> peer_;
};

class RpcCombine final : public CombinePeer {
 public:
  explicit RpcCombine(std::shared_ptr<RpcPeer> peer) : peer_(std::move(peer)) {}
  uint64_t generate(Request request, std::vector<CombineWorker::Remote> remote, Events events) override {
    return peer_->generate(std::move(request), std::move(remote), std::move(events));
  }
  void cancel(uint64_t call) override { peer_->cancel(call); }
  void fail(uint64_t transfer, const std::string& why) override { peer_->fail(transfer, why); }
  void flush() override { peer_->flush(); }

 private:
  const std::shared_ptr<RpcPeer> peer_;
};

}  // namespace

std::shared_ptr<RpcPeer> make_rpc_peer(const std::string& address, const PeerTls& tls) {
  return std::make_shared<RpcPeer>(address, tls);
}
std::shared_ptr<ScatterPeer> scatter_of(const std::shared_ptr<RpcPeer>& peer) {
  return std::make_shared<RpcScatter>(peer);
}
std::shared_ptr<CombinePeer> combine_of(const std::shared_ptr<RpcPeer>& peer) {
  return std::make_shared<RpcCombine>(peer);
}

struct WorkerWatch::Followed {
  WorkerAddress wanted;
  std::shared_ptr<RpcPeer> peer;
  int number = 0;  // with the router
  std::string of;  // the name that it was found by; empty: it stays
  // Under the watch's mutex.
  ClientContext* context = nullptr;  // of the call under way
  bool up = false, ends = false;
  std::thread thread;
};

WorkerWatch::WorkerWatch(Router& router, const WorkerIdentity& identity, const std::vector<WorkerAddress>& workers,
                         std::function<void(const std::string&)> say, const WorkerNames& names, const PeerTls& tls)
    : router_(router), say_(std::move(say)), tls_(tls), identity_(identity), names_(names) {
  for (const WorkerAddress& worker : workers) add(worker, "");
  for (const WorkerAddress& name : names_.names)
    if (name.role == Role::combine) router_.unknown(name.address, name.address + ": not resolved yet");
  if (!names_.names.empty()) resolving_ = std::thread([this] { resolve(); });
}

WorkerWatch::~WorkerWatch() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
    for (const auto& one : followed_)
      if (one->context) one->context->TryCancel();
  }
  ended_.notify_all();
  if (resolving_.joinable()) resolving_.join();
  for (const auto& one : followed_) one->thread.join();
}

void WorkerWatch::add(const WorkerAddress& worker, const std::string& of) {
  auto followed = std::make_unique<Followed>();
  Followed& one = *followed;
  one.wanted = worker;
  one.of = of;
  PeerTls tls = tls_;
  if (tls.files.on() && tls.name.empty() && !of.empty()) tls.name = host_port(of, "name").host;
  one.peer = make_rpc_peer(worker.address, tls);
  one.number = worker.role == Role::scatter ? router_.add_scatter(worker.address, scatter_of(one.peer))
                                            : router_.add_combine(worker.address, combine_of(one.peer));
  const std::scoped_lock lock(mutex_);
  followed_.push_back(std::move(followed));
  one.thread = std::thread([this, &one] { follow(one); });
}

void WorkerWatch::resolve() {
  std::map<std::string, std::string> told;  // by name: why it does not resolve
  for (;;) {
    for (const WorkerAddress& name : names_.names) {
      // A resolver may take long, and the end does not wait for it.
      std::packaged_task<std::vector<WorkerAddress>()> task(
          [resolve = names_.resolve, name] { return resolve(name.role, name.address); });
      std::future<std::vector<WorkerAddress>> found = task.get_future();
      std::thread(std::move(task)).detach();
      while (found.wait_for(20ms) != std::future_status::ready) {
        const std::scoped_lock lock(mutex_);
        if (ends_) return;
      }
      std::string why;
      try {
        update(name, found.get());
      } catch (const std::exception& error) {
        why = error.what();
      }
      if (name.role == Role::combine) router_.unknown(name.address, why);
      if (std::exchange(told[name.address], why) != why && !why.empty()) say_(str(why, "; it is tried again"));
    }
    std::unique_lock lock(mutex_);
    if (ended_.wait_for(lock, names_.every, [&] { return ends_; })) return;
  }
}

void WorkerWatch::update(const WorkerAddress& name, const std::vector<WorkerAddress>& found) {
  constexpr size_t kMost = 1024;
  require(found.size() <= kMost, name.address, ": stands for ", found.size(), " addresses, at most ", kMost);
  const auto follows = [&](const WorkerAddress& worker) {
    return std::any_of(followed_.begin(), followed_.end(), [&](const auto& one) { return one->wanted == worker; });
  };
  for (const WorkerAddress& worker : found)
    if (!follows(worker)) add(worker, name.address);
  std::vector<std::unique_ptr<Followed>> left;
  {
    const std::scoped_lock lock(mutex_);
    for (auto& one : followed_) {
      const bool stays = one->of != name.address || one->wanted.role != name.role || one->up ||
                         std::find(found.begin(), found.end(), one->wanted) != found.end();
      if (stays) continue;
      one->ends = true;
      if (one->context) one->context->TryCancel();
      left.push_back(std::move(one));
    }
    std::erase(followed_, nullptr);
  }
  ended_.notify_all();
  for (const auto& one : left) {
    one->thread.join();
    router_.remove(one->number);
    say_(str(one->wanted.address, ": left: ", name.address, " no longer stands for it"));
  }
}

std::string WorkerWatch::unlike(const WorkerIdentity& theirs, Role role) {
  const std::scoped_lock lock(mutex_);
  std::string differs = difference(identity_, theirs);
  if (!differs.empty() || !identity_.weights.empty()) return differs;
  if (role == Role::scatter) return "waits for a combine worker, which says what weights and backend are";
  identity_ = theirs;
  return {};
}

void WorkerWatch::follow(Followed& worker) {
  const std::string& address = worker.wanted.address;
  std::string told;  // the last line about it, which is said once
  const auto say = [&](const std::string& line) {
    if (std::exchange(told, line) != line) say_(str(address, ": ", line));
  };
  for (;;) {
    ClientContext context;
    {
      const std::scoped_lock lock(mutex_);
      if (ends_ || worker.ends) return;
      worker.context = &context;
    }
    worker.peer->connect();
    std::string why;
    auto reader = worker.peer->worker().Watch(&context, {});
    pb::WorkerStatus status;
    bool heard = false;
    while (reader->Read(&status)) {
      heard = true;
      const std::string_view role = name_of(worker.wanted.role);
      if (status.role() != role || status.incarnation() == 0) {
        why = str("is a worker of the role ", status.role(), ", not ", role);
      } else if (std::string other = unlike(identity_of(status.identity()), worker.wanted.role); !other.empty()) {
        why = std::move(other);
      } else {
        Router::Life life{status.incarnation(), status.data_address()};
        if (life.address.starts_with(':')) life.address = address.substr(0, address.rfind(':')) + life.address;
        {
          const std::scoped_lock lock(mutex_);
          worker.up = !worker.ends;
          if (!worker.up) break;
        }
        router_.up(worker.number, life);
        say(str("up, ", role));
        std::vector<ResidueChange> changes;
        for (const auto& [list, here] : {std::pair(&status.here(), true), {&status.gone(), false}})
          for (const std::string& key : *list) {
            if (key.size() != sizeof(SegmentKey)) continue;
            std::copy(key.begin(), key.end(), changes.emplace_back().key.begin());
            changes.back().here = here;
          }
        router_.residues(worker.number, status.incarnation(), status.snapshot(), changes);
        continue;
      }
      context.TryCancel();
    }
    const Status ended = reader->Finish();
    if (why.empty()) why = ended.ok() ? "its process ends" : cause_of(ended);
    if (why == kClosed && !heard)
      why = tls_.files.on() ? "it closes the connection at once: it does not accept our certificate"
                            : "it closes the connection at once: it may use TLS (--tls-ca, --tls-cert, --tls-key)";
    router_.down(worker.number, why);
    std::unique_lock lock(mutex_);
    worker.context = nullptr;
    worker.up = false;
    if (ends_ || worker.ends) return;
    lock.unlock();
    say(str("down: ", why));
    lock.lock();
    if (ended_.wait_for(lock, 200ms, [&] { return ends_ || worker.ends; })) return;
  }
}

}  // namespace hypic
