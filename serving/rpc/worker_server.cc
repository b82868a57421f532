#include "serving/rpc/worker_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <random>

#include "core/check.h"
#include "serving/bootstrap.h"
#include "serving/rpc/cluster.grpc.pb.h"
#include "serving/rpc/limits.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;
using grpc::ServerContext;
using grpc::ServerWriter;
using grpc::Status;
using grpc::StatusCode;
namespace pb = cluster::v1;

constexpr auto kHeartbeat = 500ms, kPoll = 50ms;

uint64_t new_incarnation() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

// Why nothing can listen on an address, which gRPC tells its log alone.
std::string listen_error(const std::string& address) {
  const HostPort wanted = host_port(address, "address");
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const int failed = getaddrinfo(wanted.host.c_str(), std::to_string(wanted.port).c_str(), &hints, &found);
  if (failed != 0) return gai_strerror(failed);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = found; a; a = a->ai_next) {
    const int socket = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
    if (socket < 0 || ::bind(socket, a->ai_addr, a->ai_addrlen) != 0) error = errno;
    if (socket >= 0) ::close(socket);
  }
  freeaddrinfo(found);
  return std::strerror(error);
}

std::shared_ptr<grpc::ServerCredentials> credentials_of(const Tls& tls) {
  if (!tls.on()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.ca;
  options.pem_key_cert_pairs = {{tls.key, tls.cert}};
  return grpc::SslServerCredentials(options);
}

Tokens tokens_of(const auto& ids) { return {ids.begin(), ids.end()}; }

class WorkerService final : public pb::Worker::Service {
 public:
  WorkerService(ScatterWorker* scatter, CombineWorker* combine, ResidueIndex& index, const WorkerServerOptions& options)
      : scatter_(scatter), combine_(combine), index_(index), options_(options) {}

  Status Watch(ServerContext* context, const pb::WatchRequest*, ServerWriter<pb::WorkerStatus>* writer) override {
    uint64_t next = 0;
    while (!context->IsCancelled()) {
      const ResidueIndex::Update update = index_.since(next, kHeartbeat);
      next = update.next;
      // In parts that a message holds.
      constexpr size_t kMost = 32768;
      for (size_t at = 0; at == 0 || at < update.changes.size(); at += kMost) {
        pb::WorkerStatus status;
        status.set_incarnation(incarnation_);
        pb::Identity& identity = *status.mutable_identity();
        identity.set_model(options_.identity.model);
        identity.set_weights(options_.identity.weights);
        identity.set_config(options_.identity.config);
        identity.set_backend(options_.identity.backend);
        identity.set_ranks(options_.identity.ranks);
        identity.set_numerics(options_.identity.numerics);
        identity.set_mode(options_.identity.mode);
        identity.set_key(options_.identity.key);
        status.set_role(combine_ ? "combine" : "scatter");
        status.set_data_address(options_.data_address);
        status.set_snapshot(update.snapshot && at == 0);
        for (size_t i = at; i < std::min(update.changes.size(), at + kMost); ++i) {
          const auto& [key, here] = update.changes[i];
          (here ? status.add_here() : status.add_gone())->assign(reinterpret_cast<const char*>(key.data()), key.size());
        }
        if (!writer->Write(status)) return Status::OK;
      }
    }
    return Status::OK;
  }

  Status Flush(ServerContext*, const pb::FlushRequest*, pb::FlushReply*) override {
    if (scatter_) scatter_->flush();
    if (combine_) combine_->scheduler().flush();
    return Status::OK;
  }

 private:
  ScatterWorker* const scatter_;
  CombineWorker* const combine_;
  ResidueIndex& index_;
  const WorkerServerOptions options_;
  const uint64_t incarnation_ = new_incarnation();
};

class ScatterService final : public pb::Scatter::Service {
 public:
  explicit ScatterService(ScatterWorker& worker) : worker_(worker) {}

  Status Prefill(ServerContext* context, const pb::PrefillRequest* request, pb::PrefillReply* reply) override {
    PrefillJob job;
    job.destination = request->destination();
    // The call's deadline is the wall clock's, the worker's is not.
    job.deadline = std::chrono::steady_clock::now() +
                   std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::clamp<std::chrono::nanoseconds>(
                       context->deadline() - std::chrono::system_clock::now(), 0s, 3600s));
    for (const pb::Segment& segment : request->segments())
      job.segments.push_back({tokens_of(segment.tokens()), segment.transfer(), segment.generation()});
    struct Done {
      std::mutex mutex;
      std::condition_variable changed;
      std::optional<PrefillReport> report;
    };
    const auto done = std::make_shared<Done>();
    worker_.prefill(std::move(job), [done](const PrefillReport& report) {
      const std::scoped_lock lock(done->mutex);
      done->report = report;
      done->changed.notify_all();
    });
    std::unique_lock lock(done->mutex);
    while (!done->changed.wait_for(lock, kPoll, [&] { return done->report.has_value(); }))
      if (context->IsCancelled()) return {StatusCode::CANCELLED, "the router gave up"};
    for (const PrefillReport::Segment& segment : done->report->segments) {
      pb::PrefillReply::Result& result = *reply->add_results();
      result.set_cached(segment.cached);
      result.set_error(segment.error);
    }
    reply->set_waited(done->report->waited);
    reply->set_computed(done->report->computed);
    reply->set_sent(done->report->sent);
    reply->set_computed_tokens(done->report->computed_tokens);
    return Status::OK;
  }

 private:
  ScatterWorker& worker_;
};

class CombineService final : public pb::Combine::Service {
 public:
  explicit CombineService(CombineWorker& worker) : worker_(worker) {}

  Status Generate(ServerContext* context, const pb::GenerateRequest* asked,
                  ServerWriter<pb::GenerateReply>* writer) override {
    Request request{.max_tokens = asked->max_tokens(), .logits = false, .stop = tokens_of(asked->stop())};
    for (const auto& segment : asked->segments()) request.segments.push_back(tokens_of(segment.ids()));
    request.sampling = {asked->temperature(), asked->top_k(), asked->top_p(), asked->seed()};
    std::vector<CombineWorker::Remote> remote;
    for (const auto& one : asked->remote()) remote.push_back({one.transfer(), static_cast<size_t>(one.segment())});

    struct Mailbox {
      std::mutex mutex;
      std::condition_variable changed;
      std::deque<Notice> notices;
    };
    const auto mailbox = std::make_shared<Mailbox>();
    CombineWorker::Opened opened;
    try {
      opened = worker_.submit(std::move(request), remote, [mailbox](const Notice& notice) {
        const std::scoped_lock lock(mailbox->mutex);
        mailbox->notices.push_back(notice);
        mailbox->changed.notify_all();
      });
    } catch (const Error& error) {
      return {StatusCode::INVALID_ARGUMENT, error.what()};
    }
    pb::GenerateReply reply;
    for (const uint64_t generation : opened.generations) reply.mutable_opened()->add_generations(generation);
    reply.mutable_opened();
    bool reads = writer->Write(reply);
    for (bool ended = false; reads && !ended;) {
      std::deque<Notice> notices;
      {
        std::unique_lock lock(mailbox->mutex);
        mailbox->changed.wait_for(lock, kPoll, [&] { return !mailbox->notices.empty(); });
        notices.swap(mailbox->notices);
      }
      reads = !context->IsCancelled();
      for (const Notice& notice : notices) {
        reply.Clear();
        ended = notice.last;
        if (notice.kind == Notice::Kind::failed) {
          reply.mutable_failed()->set_status(notice.status);
          reply.mutable_failed()->set_error(notice.error);
        } else {
          pb::GenerateReply::Token& token = *reply.mutable_token();
          token.set_id(notice.token);
          token.set_last(notice.last);
          token.set_prefix(notice.reused.prefix);
          token.set_segments(notice.reused.segments);
          token.set_recomputed(notice.reused.recomputed);
        }
        reads = reads && writer->Write(reply);
      }
      if (ended) return Status::OK;
    }
    worker_.cancel(opened.id);
    return {StatusCode::CANCELLED, "the router is gone"};
  }

  Status Fail(ServerContext*, const pb::FailRequest* request, pb::FailReply*) override {
    for (const uint64_t transfer : request->transfers()) worker_.fail(transfer, request->why());
    return Status::OK;
  }

 private:
  CombineWorker& worker_;
};

}  // namespace

struct WorkerServer::Impl {
  Impl(ScatterWorker* scatter, CombineWorker* combine, ResidueIndex& index, const WorkerServerOptions& options)
      : worker(scatter, combine, index, options) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options.address, credentials_of(options.tls), &port);
    builder.RegisterService(&worker);
    if (scatter) builder.RegisterService((scatter_service = std::make_unique<ScatterService>(*scatter)).get());
    if (combine) builder.RegisterService((combine_service = std::make_unique<CombineService>(*combine)).get());
    builder.SetMaxReceiveMessageSize(rpc::kMaxMessageBytes);
    grpc::ResourceQuota quota("hypic");
    builder.SetResourceQuota(quota.SetMaxThreads(options.max_threads));
    // Routers ask for signs of life more often than gRPC expects.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, rpc::kKeepaliveMs / 2);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    server = builder.BuildAndStart();
    if (!server || port <= 0)
      fail("cannot listen for routers on ", options.address, ": ", listen_error(options.address),
           "; choose another address with --listen");
    server->GetHealthCheckService()->SetServingStatus(true);
  }
  ~Impl() { server->Shutdown(std::chrono::system_clock::now()); }

  int port = 0;
  WorkerService worker;
  std::unique_ptr<ScatterService> scatter_service;
  std::unique_ptr<CombineService> combine_service;
  std::unique_ptr<grpc::Server> server;
};

WorkerServer::WorkerServer(ScatterWorker* scatter, CombineWorker* combine, ResidueIndex& index,
                           const WorkerServerOptions& options)
    : impl_(std::make_unique<Impl>(scatter, combine, index, options)) {}
WorkerServer::~WorkerServer() = default;
int WorkerServer::port() const { return impl_->port; }

}  // namespace hypic
