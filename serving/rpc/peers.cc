#include "serving/rpc/peers.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
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

std::string said(const std::string& address, const Status& status) {
  return str(address, ": ", status.error_message().empty() ? "the call failed" : status.error_message());
}

}  // namespace

// A channel to a worker and the calls on it.
class RpcPeer final : public std::enable_shared_from_this<RpcPeer> {
 public:
  explicit RpcPeer(const std::string& address) : address_(address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, rpc::kKeepaliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, rpc::kKeepaliveTimeoutMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(rpc::kMaxMessageBytes);
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    worker_ = pb::Worker::NewStub(channel_);
    scatter_ = pb::Scatter::NewStub(channel_);
    combine_ = pb::Combine::NewStub(channel_);
  }

  const std::string& address() const { return address_; }
  pb::Worker::Stub& worker() { return *worker_; }

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
      const int code = status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ? 400 : CombinePeer::kLost;
      say({.kind = Notice::Kind::failed, .last = true, .status = code, .error = said(peer_->address_, status)});
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

std::shared_ptr<RpcPeer> make_rpc_peer(const std::string& address) { return std::make_shared<RpcPeer>(address); }
std::shared_ptr<ScatterPeer> scatter_of(const std::shared_ptr<RpcPeer>& peer) {
  return std::make_shared<RpcScatter>(peer);
}
std::shared_ptr<CombinePeer> combine_of(const std::shared_ptr<RpcPeer>& peer) {
  return std::make_shared<RpcCombine>(peer);
}

struct WorkerWatch::Followed {
  WorkerAddress wanted;
  std::shared_ptr<RpcPeer> peer;
  int number = 0;                    // with the router
  ClientContext* context = nullptr;  // of the call under way; under the watch's mutex
  std::thread thread;
};

WorkerWatch::WorkerWatch(Router& router, const std::vector<WorkerAddress>& workers,
                         std::function<void(const std::string&)> say)
    : router_(router), say_(std::move(say)) {
  for (const WorkerAddress& worker : workers) {
    Followed& one = *followed_.emplace_back(std::make_unique<Followed>());
    one.wanted = worker;
    one.peer = make_rpc_peer(worker.address);
    one.number = worker.role == Role::scatter ? router.add_scatter(worker.address, scatter_of(one.peer))
                                              : router.add_combine(worker.address, combine_of(one.peer));
  }
  for (const auto& one : followed_) one->thread = std::thread([this, &one = *one] { follow(one); });
}

WorkerWatch::~WorkerWatch() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
    for (const auto& one : followed_)
      if (one->context) one->context->TryCancel();
  }
  ended_.notify_all();
  for (const auto& one : followed_) one->thread.join();
}

std::string WorkerWatch::unlike(const std::string& identity, Role role) {
  const std::scoped_lock lock(mutex_);
  if (identity_.empty() && role == Role::combine) identity_ = identity;
  if (identity_.empty()) return "waits for a combine worker, which says what model, backend and mode are";
  return identity_ == identity ? "" : "has another model, backend or mode than the combine worker";
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
      if (ends_) return;
      worker.context = &context;
    }
    std::string why = "no sign of life";
    auto reader = worker.peer->worker().Watch(&context, {});
    pb::WorkerStatus status;
    while (reader->Read(&status)) {
      const std::string_view role = name_of(worker.wanted.role);
      if (status.role() != role || status.incarnation() == 0) {
        why = str("is a worker of the role ", status.role(), ", not ", role);
      } else if (std::string other = unlike(status.identity(), worker.wanted.role); !other.empty()) {
        why = std::move(other);
      } else {
        Router::Life life{status.incarnation(), status.data_address()};
        if (life.address.starts_with(':')) life.address = address.substr(0, address.rfind(':')) + life.address;
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
    reader->Finish();
    router_.down(worker.number, str(address, ": ", why));
    std::unique_lock lock(mutex_);
    worker.context = nullptr;
    if (ends_) return;
    lock.unlock();
    say(str("down: ", why));
    lock.lock();
    if (ended_.wait_for(lock, 200ms, [&] { return ends_; })) return;
  }
}

}  // namespace hypic
