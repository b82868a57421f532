// Router and workers over gRPC and TCP, each as its own process would be.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "core/check.h"
#include "reference/cpu_backend.h"
#include "serving/rank_backends.h"
#include "serving/rpc/peers.h"
#include "serving/rpc/test_certificates.h"
#include "serving/rpc/worker_server.h"
#include "serving/tcp_transport.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;

const char kModel[] = "datasets/models/tiny-qwen3.5";
const Mode kMode = mode_named("transition_rope_seam");

Tokens random_tokens(int n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Tokens tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 500);
  return tokens;
}

Request cold_request(int segments, uint64_t seed) {
  Request request{.max_tokens = 4, .logits = false};
  for (int i = 0; i < segments; ++i) request.segments.push_back(random_tokens(20 + 5 * i, 100 * seed + i));
  request.segments.push_back(random_tokens(4, 99));
  return request;
}

// A worker with its door. Port 0: any.
class Process {
 public:
  struct Guards {
    Tls tls;
    std::string key;
  };
  explicit Process(Role role, int port = 0, const Mode& mode = kMode, const Guards& guards = {}, int ranks = 1)
      : backends_(reference::make_cpu_ranks(ranks)),
        model_(Model::open(backends_.all, kModel)),
        engine_(model_, {.cache = {.on_change = [this](Part part, const Tokens& tokens, int32_t first, int32_t tail,
                                                       bool here) { index_.note(part, tokens, first, tail, here); }}}),
        transports_({.key = guards.key}) {
    WorkerServerOptions options{.address = str("127.0.0.1:", port)};
    options.identity = identity_of(kModel, model_, mode, guards.key);
    options.tls = guards.tls;
    if (role == Role::combine) {
      combine_.emplace(engine_, model_, metrics_, SchedulerOptions{.mode = kMode},
                       InboxOptions{.first_patience = 60s, .patience = 60s});
      combine_->scheduler().wait_until_warm();
      receiver_.emplace(combine_->sink(), "127.0.0.1", 0, TcpOptions{.key = guards.key});
      options.data_address = str(":", receiver_->port());
    } else {
      scatter_.emplace(engine_, model_, transports_, ScatterOptions{.mode = kMode, .staging_bytes = 8 << 20});
    }
    door_.emplace(scatter_ ? &*scatter_ : nullptr, combine_ ? &*combine_ : nullptr, index_, options);
  }
  ~Process() {
    door_.reset();
    receiver_.reset();
    scatter_.reset();
    combine_.reset();
    while (!engine_.idle()) engine_.step();
    EXPECT_NO_THROW(engine_.check_integrity());
  }
  int port() const { return door_->port(); }
  std::string address() const { return str("127.0.0.1:", port()); }
  InboxCounters inbox() const { return combine_->inbox().counters(); }
  // As if the network were gone: nothing answers any more.
  void cut_off() { door_.reset(); }

 private:
  ResidueIndex index_{kMode};
  RankBackends backends_;
  const Model model_;
  Engine engine_;
  Metrics metrics_;
  TcpTransports transports_;
  std::optional<ScatterWorker> scatter_;
  std::optional<CombineWorker> combine_;
  std::optional<TcpReceiver> receiver_;
  std::optional<WorkerServer> door_;
};

struct Door {
  explicit Door(const std::vector<WorkerAddress>& workers, const WorkerNames& names = {}, const PeerTls& tls = {})
      : router(std::in_place, metrics, RouterOptions{.mode = kMode, .policy = Policy::round_robin}),
        watch(std::in_place, *router, identity_of(kModel, spec_of(kModel), kMode), workers,
              [this](const std::string& line) {
                const std::scoped_lock lock(mutex);
                lines.push_back(line);
                changed.notify_all();
              },
              names, tls) {}
  ~Door() {
    watch.reset();
    router.reset();
  }
  void wait_for_up(int64_t workers) {
    while (router->workers_up() != workers) std::this_thread::sleep_for(5ms);
  }
  void wait_for_line(const std::string& part) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] {
      return std::any_of(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.find(part) != line.npos; });
    });
  }
  struct Answer {
    Tokens tokens;
    int status = 200;
    std::string error;
  };
  Answer run(const Request& request) {
    Answer answer;
    bool ended = false;
    EXPECT_NE(router->submit(request,
                             [&](const Notice& notice) {
                               const std::scoped_lock lock(mutex);
                               if (notice.kind == Notice::Kind::token) answer.tokens.push_back(notice.token);
                               if (notice.kind == Notice::Kind::failed)
                                 answer.status = notice.status, answer.error = notice.error;
                               ended = notice.last;
                               changed.notify_all();
                             }),
              0u);
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended; });
    return answer;
  }

  Metrics metrics;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> lines;
  std::optional<Router> router;
  std::optional<WorkerWatch> watch;
};

Tokens alone(const Request& request) {
  const std::unique_ptr<Backend> backend = reference::make_cpu_backend();
  const Model model = Model::open(*backend, kModel);
  return Engine(model, {}).run({request}, kMode).responses[0].tokens;
}

TEST(Rpc, ProcessesAnswerAsOneEngineDoes) {
  Process combine(Role::combine), one(Role::scatter), two(Role::scatter);
  Door door({{Role::combine, combine.address()}, {Role::scatter, one.address()}, {Role::scatter, two.address()}});
  door.wait_for_up(3);
  const Request request = cold_request(6, 1);
  const Door::Answer answer = door.run(request);
  EXPECT_EQ(answer.status, 200) << answer.error;
  EXPECT_EQ(answer.tokens, alone(request));
  EXPECT_EQ(door.router->counters().sent, 4);
  EXPECT_EQ(combine.inbox().complete, 4);
  // The workers say what they have: the second time nothing is sent.
  Request drawn = request;
  drawn.sampling = {.temperature = 0.9, .top_k = 50, .top_p = 0.9, .seed = 77};
  while (door.router->counters().held < 6) EXPECT_EQ(door.run(drawn).tokens, alone(drawn));
  door.router->flush();
  EXPECT_EQ(door.run(request).tokens, answer.tokens);
  const Door::Answer wrong = door.run({.segments = {{1 << 30}}, .max_tokens = 1});
  EXPECT_EQ(wrong.status, 400);
  EXPECT_NE(wrong.error, "");
}

TEST(Rpc, WorkersComeAndGo) {
  auto combine = std::make_unique<Process>(Role::combine);
  auto one = std::make_unique<Process>(Role::scatter);
  Process other(Role::scatter, 0, mode_named("transition")), shared(Role::scatter, 0, kMode, {}, 2);
  const int port = one->port(), combine_port = combine->port();
  Door door({{Role::combine, combine->address()},
             {Role::scatter, one->address()},
             {Role::scatter, other.address()},
             {Role::scatter, shared.address()},
             {Role::scatter, combine->address()}});  // which combines
  door.wait_for_up(2);
  door.wait_for_line(other.address() + ": down: differs in --mode: ours transition_rope_seam, theirs transition");
  door.wait_for_line(shared.address() + ": down: differs in --tensor-parallel: ours 1, theirs 2");
  door.wait_for_line("is a worker of the role combine, not scatter");
  const Request request = cold_request(5, 2);
  const Tokens expected = alone(request);
  EXPECT_EQ(door.run(request).tokens, expected);
  one.reset();  // its process ended
  EXPECT_EQ(door.run(cold_request(5, 3)).tokens, alone(cold_request(5, 3)));
  door.wait_for_up(1);
  EXPECT_EQ(door.run(cold_request(5, 4)).tokens, alone(cold_request(5, 4)));
  one = std::make_unique<Process>(Role::scatter, port);
  door.wait_for_up(2);
  const int64_t sent = door.router->counters().sent;
  EXPECT_EQ(door.run(cold_request(5, 5)).tokens, alone(cold_request(5, 5)));
  EXPECT_GT(door.router->counters().sent, sent);
  const std::string address = combine->address();
  combine->cut_off();
  const Door::Answer none = door.run(request);
  EXPECT_EQ(none.status, CombinePeer::kLost);
  EXPECT_NE(none.error.find(address), none.error.npos) << none.error;
  combine.reset();
  door.wait_for_up(1);
  // Until it is called again the reason is that its process ends.
  while (door.router->load().why_not_ready != str("no worker that combines is up (", address, ": nothing listens there)"))
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(door.run(request).error, door.router->load().why_not_ready);
  combine = std::make_unique<Process>(Role::combine, combine_port);
  door.wait_for_up(2);
  EXPECT_EQ(door.run(request).tokens, expected);
}

TEST(Rpc, RoutersWaitForWorkersThatStartLater) {
  std::vector<int> ports;
  for (const Role role : {Role::combine, Role::scatter}) ports.push_back(Process(role).port());
  Door door({{Role::combine, str("127.0.0.1:", ports[0])}, {Role::scatter, str("127.0.0.1:", ports[1])}});
  for (const int port : ports) door.wait_for_line(str("127.0.0.1:", port, ": down: nothing listens there"));
  Process combine(Role::combine, ports[0]), scatter(Role::scatter, ports[1]);
  door.wait_for_up(2);
  const Request request = cold_request(4, 8);
  EXPECT_EQ(door.run(request).tokens, alone(request));
}

TEST(Rpc, NamesAreResolvedAgain) {
  struct Zone {
    std::mutex mutex;
    std::map<std::string, std::vector<WorkerAddress>> names;  // one that is not in it does not resolve
  };
  const auto zone = std::make_shared<Zone>();
  const auto set = [&](const std::string& name, Role role, const std::vector<std::string>& addresses) {
    const std::scoped_lock lock(zone->mutex);
    zone->names[name].clear();
    for (const std::string& address : addresses) zone->names[name].push_back({role, address});
  };
  const auto resolve = [zone](Role, const std::string& name) {
    const std::scoped_lock lock(zone->mutex);
    require(zone->names.contains(name), name, ": cannot be resolved: test");
    return zone->names.at(name);
  };
  Process combine(Role::combine);
  auto one = std::make_unique<Process>(Role::scatter), two = std::make_unique<Process>(Role::scatter);
  const std::string address = one->address();
  const WorkerNames names{{{Role::combine, "combine:1"}, {Role::scatter, "scatter:1"}}, resolve, 20ms};
  Door door({}, names);
  door.wait_for_line("combine:1: cannot be resolved: test; it is tried again");
  EXPECT_EQ(door.router->load().why_not_ready,
            "no worker that combines is up (combine:1: cannot be resolved: test)");
  set("combine:1", Role::combine, {combine.address()});
  door.wait_for_up(1);
  set("scatter:1", Role::scatter, {address});
  door.wait_for_up(2);
  set("scatter:1", Role::scatter, {address, two->address()});
  door.wait_for_up(3);
  EXPECT_EQ(door.run(cold_request(5, 20)).tokens, alone(cold_request(5, 20)));
  // One that has left the name is used as long as it is there.
  set("scatter:1", Role::scatter, {two->address()});
  const int64_t sent = door.router->counters().sent;
  EXPECT_EQ(door.run(cold_request(6, 21)).tokens, alone(cold_request(6, 21)));
  EXPECT_EQ(door.router->counters().sent, sent + 4);
  EXPECT_EQ(door.router->workers_up(), 3);
  one.reset();
  door.wait_for_line(address + ": left: scatter:1 no longer stands for it");
  EXPECT_EQ(door.router->workers_up(), 2);
  // A name that does not resolve any more changes nothing; another worker takes the free place.
  {
    const std::scoped_lock lock(zone->mutex);
    zone->names.erase("combine:1");
  }
  one = std::make_unique<Process>(Role::scatter);
  set("scatter:1", Role::scatter, {two->address(), one->address()});
  door.wait_for_up(3);
  EXPECT_EQ(door.run(cold_request(5, 22)).tokens, alone(cold_request(5, 22)));
}

TEST(Rpc, CertificatesAndKeysKeepOthersOut) {
  if (!TestCertificates::can_be_made()) GTEST_SKIP() << "no program openssl here to make certificates";
  TestCertificates made;
  made.authority("ca");
  made.authority("other");
  made.certificate("router", "ca", "DNS:router.example");
  made.certificate("worker", "ca", "IP:127.0.0.1");
  made.certificate("named", "ca", "DNS:workers.example");
  made.certificate("stranger", "other", "IP:127.0.0.1");
  const Process::Guards guards{read_tls(made.files("ca", "worker")), "a key that workers share"};
  Process combine(Role::combine, 0, kMode, guards), one(Role::scatter, 0, kMode, guards);
  Process named(Role::scatter, 0, kMode, {read_tls(made.files("ca", "named")), guards.key});
  Process open(Role::scatter, 0, kMode, {{}, guards.key});
  Process keyless(Role::scatter, 0, kMode, {guards.tls, ""});
  const WorkerAddress combines{Role::combine, combine.address()};
  const PeerTls tls{read_tls(made.files("ca", "router")), ""};
  {
    Door door({combines,
               {Role::scatter, one.address()},
               {Role::scatter, named.address()},
               {Role::scatter, open.address()},
               {Role::scatter, keyless.address()}},
              {}, tls);
    door.wait_for_up(2);
    door.wait_for_line(named.address() + ": down: its certificate is for another name; --tls-name says for which");
    door.wait_for_line(open.address() + ": down: it does not use TLS");
    door.wait_for_line(keyless.address() + ": down: differs in --key-file: ours ");
    const Request request = cold_request(6, 30);
    EXPECT_EQ(door.run(request).tokens, alone(request));
    EXPECT_EQ(door.router->counters().sent, 3);
    EXPECT_EQ(combine.inbox().complete, 3);
  }
  {
    Door door({{Role::combine, combine.address()}, {Role::scatter, named.address()}}, {},
              {tls.files, "workers.example"});
    door.wait_for_line(combine.address() + ": down: its certificate is for another name");
    door.wait_for_line(named.address() + ": down: waits for a combine worker");  // so far it was understood
  }
  Door plain({combines});
  plain.wait_for_line(": down: it closes the connection at once: it may use TLS");
  Door stranger({combines}, {}, {read_tls(made.files("other", "stranger")), ""});
  stranger.wait_for_line(": down: its certificate is not of --tls-ca");
  // One that trusts everybody is not trusted for that.
  made.run("cat ca.pem other.pem >both.pem");
  TlsFiles files = made.files("other", "stranger");
  files.ca = made.path("both.pem");
  Door trusting({combines}, {}, {read_tls(files), ""});
  trusting.wait_for_line(": down: it closes the connection at once: it does not accept our certificate");
}

TEST(Rpc, SaysWhyAWorkerCannotListen) {
  const Process one(Role::scatter);
  const auto error_at = [&](int port) {
    try {
      Process(Role::scatter, port);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(error_at(one.port()), str("cannot listen for routers on ", one.address(),
                                      ": Address already in use; choose another address with --listen"));
}

TEST(Rpc, NewRoutersFindWorkersAsTheyAre) {
  Process combine(Role::combine), one(Role::scatter);
  const std::vector<WorkerAddress> workers = {{Role::combine, combine.address()}, {Role::scatter, one.address()}};
  const Request request = cold_request(4, 6);
  const Tokens expected = alone(request);
  for (int life = 0; life < 3; ++life) {
    Door door(workers);
    door.wait_for_up(2);
    // One that nobody waits for when the router ends.
    door.router->submit(cold_request(4, 7 + life), [](const Notice&) {});
    EXPECT_EQ(door.run(request).tokens, expected);
  }
}

}  // namespace
}  // namespace hypic
