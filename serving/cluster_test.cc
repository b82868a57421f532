// Workers and a router in one process, over both transports, under every fault that can be made here.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "core/check.h"
#include "reference/cpu_backend.h"
#include "reference/socket_links.h"
#include "serving/faulty_links.h"
#include "serving/local_peers.h"
#include "serving/rank_backends.h"
#include "serving/tcp_transport.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;

const char kModel[] = "datasets/models/tiny-qwen3.5";
const Mode kMode = mode_named("transition_rope_seam");
const char kRankLost[] = "rank 0 waits for rank 1, which has failed";

// Faults by chance, in 1000; all off at first.
struct Chances {
  int drop = 0, twice = 0, cut = 0, late = 0, replay = 0, broken = 0;  // of packets
  int refuse = 0, hang = 0, silent = 0, slow = 0;                      // of prefills
  int lose = 0;                                                        // of calls to who combines
  int rank = 0;                                                        // of either's: one of its ranks is lost
};

// The same of links, which threads of their own make.
struct LinkChances {
  std::atomic<int> hang = 0, broken = 0, damage = 0, cut = 0;
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : bits_(seed) {}
  bool operator()(int in_thousand) {
    const std::scoped_lock lock(mutex_);
    return static_cast<int>(bits_() % 1000) < in_thousand;
  }
  int below(int n) {
    const std::scoped_lock lock(mutex_);
    return static_cast<int>(bits_() % n);
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 bits_;
};

// Packets are lost, doubled, cut, late, or come once more long afterwards.
class FaultyTransports final : public Transports {
 public:
  FaultyTransports(Transports& inner, Dice& dice, const Chances& chances)
      : inner_(inner), dice_(dice), chances_(chances) {}
  std::shared_ptr<Transport> to(const std::string& address) override {
    return std::make_shared<Way>(*this, inner_.to(address));
  }
  std::function<void(const Packet&)> before;

 private:
  struct Old {
    Packet packet;
    std::vector<uint8_t> bytes;
  };
  class Way final : public Transport {
   public:
    Way(FaultyTransports& all, std::shared_ptr<Transport> inner) : all_(all), inner_(std::move(inner)) {}
    void send(const Packet& packet) override {
      Dice& dice = all_.dice_;
      const Chances& chances = all_.chances_;
      if (all_.before) all_.before(packet);
      require(!dice(chances.broken), "the connection broke");
      if (dice(chances.drop)) return;
      if (dice(chances.late)) std::this_thread::sleep_for(std::chrono::milliseconds(dice.below(20)));
      if (dice(chances.replay)) {
        Old old;
        {
          const std::scoped_lock lock(all_.mutex_);
          if (!all_.old_.empty()) old = all_.old_[dice.below(static_cast<int>(all_.old_.size()))];
          if (all_.old_.size() < 64) all_.old_.push_back({packet, {packet.bytes.begin(), packet.bytes.end()}});
        }
        old.packet.bytes = old.bytes;
        if (old.packet.transfer != 0) inner_->send(old.packet);
      }
      Packet sent = packet;
      if (dice(chances.cut)) sent.bytes = sent.bytes.first(sent.bytes.size() / 2);
      inner_->send(sent);
      if (dice(chances.twice)) inner_->send(sent);
    }
    std::vector<std::shared_ptr<Window>> windows(std::span<const Wanted> wanted) override {
      if (all_.dice_(all_.chances_.broken)) return Transport::windows(wanted);
      return inner_->windows(wanted);
    }

   private:
    FaultyTransports& all_;
    const std::shared_ptr<Transport> inner_;
  };

  Transports& inner_;
  Dice& dice_;
  const Chances& chances_;
  std::mutex mutex_;
  std::vector<Old> old_;
};

struct Machine {
  explicit Machine(int64_t operators, int ranks = 1, const std::string& name = kModel)
      : backends(reference::make_cpu_ranks(ranks)),
        model(Model::open(backends.all, name)),
        engine(model, {.pools = {.state_slots = 48, .operator_slots = operators, .pages = 400, .page_size = 16},
                       .cache = {.on_change = [this](Part part, const Tokens& tokens, int32_t first, int32_t tail,
                                                     bool here) { index.note(part, tokens, first, tail, here); }}}) {}
  ~Machine() {
    while (!engine.idle()) engine.step();
    EXPECT_NO_THROW(engine.check_integrity());
    std::map<SegmentKey, bool> known;
    for (const ResidueChange& change : index.since(0, 0ms).changes) known[change.key] = change.here;
    EXPECT_EQ(2 * static_cast<int64_t>(known.size()) <= engine.usage().entries, true);
  }
  // As if the last one had failed.
  void lose_rank() { backends.all.back()->leave_group(); }
  ResidueIndex index{kMode};
  RankBackends backends;  // by tensor-parallel rank
  Model model;
  Engine engine;
};

class FaultyScatter final : public ScatterPeer {
 public:
  FaultyScatter(ScatterWorker& worker, Machine& machine, Dice& dice, const Chances& chances)
      : inner_(worker), machine_(machine), dice_(dice), chances_(chances) {}
  void prefill(PrefillJob job, std::function<void(const PrefillReport&)> done) override {
    if (dice_(chances_.rank)) machine_.lose_rank();
    if (dice_(chances_.refuse)) {
      PrefillReport report;
      report.segments.resize(job.segments.size(), {.error = "refused"});
      return done(report);
    }
    if (dice_(chances_.hang)) return;  // killed, or stopped: it neither sends nor answers
    if (dice_(chances_.slow)) std::this_thread::sleep_for(20ms);
    if (dice_(chances_.silent)) done = [](const PrefillReport&) {};  // killed after the transfer
    inner_.prefill(std::move(job), std::move(done));
  }
  void flush() override { inner_.flush(); }

 private:
  LocalScatter inner_;
  Machine& machine_;
  Dice& dice_;
  const Chances& chances_;
};

// A worker that combines and may be lost with a request: before its first token or after.
class FaultyCombine final : public CombinePeer {
 public:
  FaultyCombine(CombineWorker& worker, Machine& machine, Dice& dice, const Chances& chances)
      : inner_(worker), machine_(machine), dice_(dice), chances_(chances) {}
  uint64_t generate(Request request, std::vector<CombineWorker::Remote> remote, Events events) override {
    if (dice_(chances_.rank)) machine_.lose_rank();
    if (dice_(chances_.lose)) {
      const auto left = std::make_shared<std::atomic<int>>(dice_.below(3));
      events.notice = [left, notice = events.notice](const Notice& said) {
        const int now = (*left)--;
        if (now > 0) notice(said);
        if (now == 0) notice({.kind = Notice::Kind::failed, .last = true, .status = kLost, .error = "lost"});
      };
    }
    return inner_.generate(std::move(request), std::move(remote), std::move(events));
  }
  void cancel(uint64_t call) override { inner_.cancel(call); }
  void fail(uint64_t transfer, const std::string& why) override { inner_.fail(transfer, why); }
  void flush() override { inner_.flush(); }

 private:
  LocalCombine inner_;
  Machine& machine_;
  Dice& dice_;
  const Chances& chances_;
};

struct Answer {
  Tokens tokens;
  bool ended = false;
  int status = 200;
  std::string error;
};

Tokens random_tokens(int n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Tokens tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 500);
  return tokens;
}

// Over which way residues go.
struct Way {
  bool tcp, windows, links = false;
  int ranks = 1;
  std::string name() const {
    return str(tcp ? "tcp" : "in process", windows ? ", windows" : "", links ? ", links" : "",
               ranks > 1 ? ", ranks" : "");
  }
  bool lands() const { return windows && ranks == 1; }
};
constexpr Way kWays[] = {{false, false}, {true, false},      {false, true},
                         {true, true},   {true, true, true}, {true, true, false, 2}};

class Cluster {
 public:
  struct Options {
    int scatter = 2;
    bool tcp = false;
    bool windows = false;  // device to device
    bool links = false;    // over links, with tcp and windows
    int64_t operators = 24;
    Policy policy = Policy::round_robin;  // so that every worker takes part
    std::chrono::milliseconds patience = 60ms, link_patience = 60ms;
    ResidueStore* store = nullptr;
    int ranks = 1;
    std::string model = kModel;
  };
  explicit Cluster(const Options& options, uint64_t seed = 1)
      : options_(options), dice_(seed), combine_(options.operators, options.ranks, options.model) {
    if (options.tcp) {
      const bool opens = options.windows && !options.links;
      tcp_ = std::make_unique<TcpTransports>(
          TcpOptions{.connect_timeout = 500ms,
                     .send_timeout = 500ms,
                     .device = opens ? combine_.backends.all[0] : nullptr,
                     .links = options.links ? &links_ : nullptr,
                     .link_patience = {.connect = 500ms, .progress = options.link_patience},
                     .ask_again = 5ms});
      inner_ = tcp_.get();
    } else {
      inner_ = &local_;
    }
    worker_ = std::make_unique<CombineWorker>(combine_.engine, combine_.model, combine_metrics_,
                                              SchedulerOptions{.mode = kMode},
                                              InboxOptions{.device_bytes = options.windows ? 4 << 20 : 0,
                                                           .first_patience = options.patience,
                                                           .patience = options.patience});
    worker_->scheduler().wait_until_warm();
    if (options.tcp) {
      receiver_ = std::make_unique<TcpReceiver>(
          worker_->sink(), "127.0.0.1", 0,
          TcpOptions{.rest = 20ms,
                     .links = options.links ? &combine_links_ : nullptr,
                     .link_patience = {.connect = 500ms, .progress = options.link_patience}});
      address_ = str("127.0.0.1:", receiver_->port());
    } else {
      address_ = "combine";
      local_.add(address_, worker_->sink());
    }
    ways_ = std::make_unique<FaultyTransports>(*inner_, dice_, chances);
    for (int i = 0; i < options.scatter; ++i) {
      machines_.push_back(std::make_unique<Machine>(options.operators, options.ranks, options.model));
      scatter_.push_back(std::make_unique<ScatterWorker>(machines_.back()->engine, machines_.back()->model, *ways_,
                                                         ScatterOptions{.mode = kMode,
                                                                        .staging_bytes = 8 << 20,
                                                                        .device_bytes = options.windows ? 8 << 20 : 0,
                                                                        .store = options.store}));
    }
    start_router();
  }
  ~Cluster() {
    router.reset();
    scatter_.clear();
    receiver_.reset();
    local_.remove(address_);
    worker_.reset();
  }

  void start_router() {
    router.reset();
    router = std::make_unique<Router>(metrics_, RouterOptions{.mode = kMode, .policy = options_.policy});
    router->up(router->add_combine("combine", std::make_shared<FaultyCombine>(*worker_, combine_, dice_, chances)),
               {.incarnation = 1, .address = address_});
    for (size_t i = 0; i < scatter_.size(); ++i)
      router->up(router->add_scatter(str("scatter ", i),
                                     std::make_shared<FaultyScatter>(*scatter_[i], *machines_[i], dice_, chances)),
                 {.incarnation = 1});
    positions_.assign(1 + scatter_.size(), 0);
  }

  // Asks until residues go by it; nothing is cached afterwards.
  void wait_for_link() {
    const int64_t before = inbox().counters().landed;
    for (uint64_t i = 0; inbox().counters().landed == before; ++i) {
      ASSERT_LT(i, 1000);
      Request request{.max_tokens = 1, .logits = false};
      for (uint64_t segment = 0; segment < 3; ++segment)
        request.segments.push_back(random_tokens(20, 1000 + 3 * i + segment));
      request.segments.push_back(random_tokens(4, 99));
      EXPECT_EQ(run(request).status, 200);
    }
    router->flush();
  }

  // What workers would say over the control plane.
  void tell() {
    for (size_t w = 0; w < positions_.size(); ++w) {
      ResidueIndex& index = w == 0 ? combine_.index : machines_[w - 1]->index;
      const ResidueIndex::Update update = index.since(positions_[w], 0ms);
      router->residues(static_cast<int>(w), 1, update.snapshot, update.changes);
      positions_[w] = update.next;
    }
  }

  std::shared_ptr<Answer> ask(const Request& request, uint64_t* id = nullptr) {
    auto answer = std::make_shared<Answer>();
    const uint64_t number = router->submit(request, [this, answer](const Notice& notice) {
      const std::scoped_lock lock(mutex_);
      if (notice.kind == Notice::Kind::token) answer->tokens.push_back(notice.token);
      if (notice.kind == Notice::Kind::failed) answer->status = notice.status, answer->error = notice.error;
      answer->ended = notice.last;
      ended_.notify_all();
    });
    EXPECT_NE(number, 0u);
    if (id) *id = number;
    return answer;
  }
  Answer wait(const std::shared_ptr<Answer>& answer) {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return answer->ended; });
    return *answer;
  }
  Answer run(const Request& request) { return wait(ask(request)); }

  int64_t restarts() const { return combine_.engine.restarts(); }
  const Inbox& inbox() const { return worker_->inbox(); }
  Machine& combine() { return combine_; }
  Machine& scatter(int i) { return *machines_[i]; }
  // Before anything is sent.
  void before_packet(std::function<void(const Packet&)> see) { ways_->before = std::move(see); }
  ScatterWorker& scatter_worker(int i) { return *scatter_[i]; }
  CombineWorker& combine_worker() { return *worker_; }

  Chances chances;
  LinkChances link_chances;
  std::unique_ptr<Router> router;

 private:
  const Options options_;
  Dice dice_;
  Metrics metrics_, combine_metrics_;
  std::mutex mutex_;
  std::condition_variable ended_;
  Machine combine_;
  std::vector<std::unique_ptr<Machine>> machines_;
  LinkFault link_fault(bool connecting) {
    if (dice_(link_chances.hang)) return LinkFault::hangs;
    if (dice_(link_chances.broken)) return LinkFault::breaks;
    if (connecting) return LinkFault::none;
    if (dice_(link_chances.damage)) return LinkFault::damages;
    return dice_(link_chances.cut) ? LinkFault::shortens : LinkFault::none;
  }
  FaultyLinks links_{reference::make_socket_links(), [this](bool connecting) { return link_fault(connecting); }};
  FaultyLinks combine_links_{reference::make_socket_links(),
                             [this](bool connecting) { return link_fault(connecting); }};
  InProcessTransports local_;
  std::unique_ptr<TcpTransports> tcp_;
  Transports* inner_ = nullptr;
  std::unique_ptr<FaultyTransports> ways_;
  std::unique_ptr<CombineWorker> worker_;
  std::unique_ptr<TcpReceiver> receiver_;
  std::string address_;
  std::vector<std::unique_ptr<ScatterWorker>> scatter_;
  std::vector<uint64_t> positions_;
};

Request request_of(std::mt19937_64& rng) {
  Request request{.logits = false};
  const int segments = static_cast<int>(rng() % 5);
  for (int i = 0; i < segments; ++i) {
    const uint64_t which = rng() % 14;
    request.segments.push_back(random_tokens(6 + static_cast<int>(which) * 3, which));  // the first too short for any
  }
  request.segments.push_back(random_tokens(3, 100 + rng() % 20));
  request.max_tokens = 1 + static_cast<int32_t>(rng() % 3);
  if (rng() % 3 == 0) request.sampling = {.temperature = 0.8, .top_k = 20, .seed = rng() % 1000};
  return request;
}

Request cold_request(int segments) {
  Request request{.max_tokens = 3, .logits = false};
  for (int i = 0; i < segments; ++i) request.segments.push_back(random_tokens(20 + 7 * i, i));
  request.segments.push_back(random_tokens(4, 99));
  return request;
}

// What one engine without workers answers.
class Alone {
 public:
  explicit Alone(int ranks = 1, const std::string& model = kModel) : machine_(24, ranks, model) {}
  Tokens operator()(const Request& request) { return machine_.engine.run({request}, kMode).responses[0].tokens; }

 private:
  Machine machine_;
};

TEST(Cluster, AnswersAsOneWorkerDoes) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name());
    Alone alone(way.ranks);
    Cluster cluster({.tcp = way.tcp,
                     .windows = way.windows,
                     .links = way.links,
                     .patience = 60s,
                     .link_patience = 60s,
                     .ranks = way.ranks});
    const Request request = cold_request(6);
    if (way.links) cluster.wait_for_link();
    const RouterCounters before = cluster.router->counters();
    const InboxCounters came = cluster.inbox().counters();
    const Answer answer = cluster.run(request);
    EXPECT_EQ(answer.status, 200) << answer.error;
    EXPECT_EQ(answer.tokens, alone(request));
    const RouterCounters counters = cluster.router->counters();
    EXPECT_EQ(counters.own - before.own, 2);  // three take turns, one of them combines
    EXPECT_EQ(counters.recomputed, 0);
    EXPECT_EQ(cluster.inbox().counters().complete - came.complete, 4);
    EXPECT_EQ(cluster.inbox().counters().landed - came.landed, way.lands() ? 4 : 0);
    EXPECT_EQ(cluster.restarts(), 0);
    cluster.tell();  // all of it is with who combines now
    EXPECT_EQ(cluster.run(request).tokens, answer.tokens);
    EXPECT_EQ(cluster.router->counters().held - before.held, 6);
    EXPECT_EQ(cluster.inbox().counters().opened - came.opened, 4);
  }
}

TEST(Cluster, WhoHasAResidueOnlySendsIt) {
  Cluster cluster({.scatter = 1, .policy = Policy::lpt, .patience = 60s});
  const Request request = cold_request(4);
  cluster.scatter_worker(0).prefill({.destination = "combine",
                                     .segments = {{request.segments[0], 1, 1}, {request.segments[3], 2, 1}},
                                     .deadline = std::chrono::steady_clock::now() + 60s},
                                    [](const PrefillReport&) {});
  while (cluster.scatter(0).index.since(0, 0ms).changes.size() < 2) std::this_thread::sleep_for(1ms);
  cluster.tell();
  // Each job is answered once, also where it is done before prefill() returns.
  std::atomic<int> answered = 0;
  for (int i = 0; i < 200; ++i)
    cluster.scatter_worker(0).prefill({.destination = "combine",
                                       .segments = {{request.segments[0], 3, 1}},
                                       .deadline = std::chrono::steady_clock::now() + 60s},
                                      [&](const PrefillReport& report) {
                                        EXPECT_EQ(report.segments[0].error, "");
                                        ++answered;
                                      });
  while (cluster.scatter_worker(0).waiting() > 0 || answered < 200) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(answered, 200);
  const Answer answer = cluster.run(request);
  EXPECT_EQ(answer.tokens, Alone()(request));
  EXPECT_EQ(cluster.router->counters().sent_cached, 2);
  EXPECT_GT(cluster.inbox().counters().stale, 0);  // what nobody waited for
}

// Of four ranks several have the same KV head.
TEST(Cluster, RanksThatShareKvHeadsAnswerAsTheyDoAlone) {
  const std::string model = "random:qwen3.5-35b-a3b-tiny:3";
  const Request request = cold_request(3);
  Cluster cluster({.scatter = 1, .patience = 60s, .ranks = 4, .model = model});
  EXPECT_EQ(cluster.run(request).tokens, Alone(4, model)(request));
  EXPECT_GT(cluster.inbox().counters().complete, 0);
  EXPECT_EQ(cluster.inbox().counters().failed, 0);
}

TEST(Cluster, ARankThatIsLostTakesNoMoreAlongThanItsForward) {
  const Request request = cold_request(6);
  const Tokens expected = Alone(2)(request);
  Cluster cluster({.patience = 60s, .ranks = 2});
  std::atomic<bool> armed = false;
  cluster.before_packet([&](const Packet& packet) {
    if (packet.layer == 3 && armed.exchange(false)) cluster.combine().lose_rank();
  });
  cluster.scatter(0).lose_rank();  // its segments are computed where they were to go
  EXPECT_EQ(cluster.run(request).tokens, expected);
  EXPECT_EQ(cluster.router->counters().recomputed, 2);
  cluster.router->flush();
  armed = true;  // in the middle of the forward, which waits for the last layer of what this packet is of
  const Answer none = cluster.run(request);
  EXPECT_EQ(none.status, 500);
  EXPECT_EQ(none.error, kRankLost);
  const int64_t complete = cluster.inbox().counters().complete;
  EXPECT_EQ(cluster.run(request).tokens, expected);
  EXPECT_EQ(cluster.inbox().counters().complete - complete, 4);
}

// Counts what goes in and out; may be damaged.
class MemoryStore final : public ResidueStore {
 public:
  std::optional<std::vector<uint8_t>> get(const std::string& name, int64_t bytes) override {
    const std::scoped_lock lock(mutex);
    const auto found = values.find(name);
    if (found == values.end() || static_cast<int64_t>(found->second.size()) != bytes) return std::nullopt;
    return found->second;
  }
  void put(const std::string& name, std::span<const uint8_t> value) override {
    const std::scoped_lock lock(mutex);
    values[name] = {value.begin(), value.end()};
  }
  std::string error() override { return {}; }
  size_t size() {
    const std::scoped_lock lock(mutex);
    return values.size();
  }
  std::mutex mutex;
  std::map<std::string, std::vector<uint8_t>> values;
};

TEST(Cluster, WorkersShareAStore) {
  const Request request = cold_request(6);
  for (const int ranks : {1, 2}) {
    const Tokens expected = Alone(ranks)(request);
    MemoryStore store;
    {
      Cluster cluster({.windows = true, .patience = 60s, .store = &store, .ranks = ranks});
      EXPECT_EQ(cluster.run(request).tokens, expected);
      EXPECT_EQ(cluster.inbox().counters().landed, ranks == 1 ? 4 : 0);
      while (store.size() < 4) std::this_thread::sleep_for(1ms);
    }
    {  // others, later, with an empty cache
      Cluster cluster({.windows = true, .patience = 60s, .store = &store, .ranks = ranks});
      EXPECT_EQ(cluster.run(request).tokens, expected);
      EXPECT_EQ(cluster.scatter_worker(0).fetched() + cluster.scatter_worker(1).fetched(), 4);
      EXPECT_EQ(cluster.inbox().counters().landed, 0);  // from the store to host memory, and on from there
      EXPECT_EQ(cluster.router->counters().sent_cached, 4);
    }
    for (auto& [name, value] : store.values) value[100] ^= 1;
    Cluster cluster({.patience = 60s, .store = &store, .ranks = ranks});
    EXPECT_EQ(cluster.run(request).tokens, expected);
    EXPECT_EQ(cluster.scatter_worker(0).fetched() + cluster.scatter_worker(1).fetched(), 0);
  }
}

TEST(Cluster, EveryFaultAloneIsAnswered) {
  Alone alone;
  const Request request = cold_request(6);
  const Tokens expected = alone(request);
  for (int Chances::*fault : {&Chances::drop, &Chances::twice, &Chances::cut, &Chances::late, &Chances::replay,
                              &Chances::broken, &Chances::refuse, &Chances::hang, &Chances::silent, &Chances::slow})
    for (const bool windows : {false, true}) {
      Cluster cluster({.tcp = true, .windows = windows, .patience = fault == &Chances::late ? 5s : 60ms});
      cluster.chances.*fault = 1000;
      for (int i = 0; i < 2; ++i) {
        const Answer answer = cluster.run(request);
        EXPECT_EQ(answer.status, 200) << answer.error;
        EXPECT_EQ(answer.tokens, expected);
        cluster.router->flush();
      }
    }
}

TEST(Cluster, EveryFaultOfALinkIsAnsweredAndTheLinkIsMadeAgain) {
  Alone alone;
  const Request request = cold_request(6);
  const Tokens expected = alone(request);
  for (std::atomic<int> LinkChances::*fault :
       {&LinkChances::hang, &LinkChances::broken, &LinkChances::damage, &LinkChances::cut}) {
    Cluster cluster({.tcp = true, .windows = true, .links = true, .patience = 5s, .link_patience = 100ms});
    for (bool struck = false; !struck;) {  // a slow machine may lose the link before the fault does
      cluster.link_chances.*fault = 0;
      cluster.wait_for_link();
      const InboxCounters before = cluster.inbox().counters();
      cluster.link_chances.*fault = 1000;
      for (int i = 0; i < 3; ++i) {
        const Answer answer = cluster.run(request);
        EXPECT_EQ(answer.status, 200) << answer.error;
        EXPECT_EQ(answer.tokens, expected);
        cluster.router->flush();
      }
      struck = cluster.inbox().counters().failed > before.failed;
      EXPECT_EQ(cluster.inbox().counters().landed, before.landed);
    }
    cluster.link_chances.*fault = 0;
    cluster.wait_for_link();
    EXPECT_EQ(cluster.run(request).tokens, expected);
  }
}

TEST(Cluster, KeysGuardTheWayOfResidues) {
  struct Sink final : PacketSink {
    void take(const Packet& packet) override { taken += packet.bytes.size(); }
    void lost(std::span<const uint64_t>, const std::string&) override {}
    std::atomic<size_t> taken = 0;
  };
  const auto bytes = std::vector<uint8_t>(1000, 7);
  for (const std::string theirs : {"the key of both of them", "", "another key than theirs"}) {
    Sink sink;
    std::mutex mutex;
    std::condition_variable changed;
    std::string said;
    TcpReceiver receiver(sink, "127.0.0.1", 0, {.key = "the key of both of them", .say = [&](const std::string& why) {
                                                  const std::scoped_lock lock(mutex);
                                                  said = why;
                                                  changed.notify_all();
                                                }});
    TcpTransports transports({.key = theirs});
    transports.to(str("127.0.0.1:", receiver.port()))->send({.transfer = 1, .generation = 2, .bytes = bytes});
    if (theirs == "the key of both of them") {
      while (sink.taken < bytes.size()) std::this_thread::sleep_for(1ms);
      continue;
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !said.empty(); });
    EXPECT_EQ(said, theirs.empty() ? "packets without a shared key; give their sender the same --key-file"
                                   : "a packet of a residue does not match its key, or is damaged");
    EXPECT_EQ(sink.taken, 0u);
  }
}

TEST(Cluster, LostWorkersAreReplacedOrSaid) {
  const Request request = cold_request(5);
  const Tokens expected = Alone()(request);
  Cluster cluster({.patience = 60s});
  cluster.chances.hang = 1000;
  uint64_t id = 0;
  auto answer = cluster.ask(request, &id);
  // Nothing comes from either of them, and nobody waits for that once they are known to be lost.
  cluster.router->down(1, "no sign of life");
  cluster.router->down(2, "no sign of life");
  EXPECT_EQ(cluster.wait(answer).tokens, expected);
  cluster.router->flush();
  EXPECT_EQ(cluster.run(request).tokens, expected);  // without any of them
  cluster.chances.lose = 1000;
  int lost = 0;
  for (int i = 0; i < 12; ++i) {
    const Answer one = cluster.run(request);
    if (one.status == 200) {
      EXPECT_EQ(one.tokens, expected);
    } else {
      EXPECT_EQ(one.status, CombinePeer::kLost);
      EXPECT_FALSE(one.error.empty());
      ++lost;
    }
  }
  EXPECT_GT(lost, 0);
  cluster.chances = {};
  cluster.router->down(0, "killed");
  const Answer none = cluster.run(request);
  EXPECT_EQ(none.status, 503);
  EXPECT_FALSE(none.error.empty());
  EXPECT_FALSE(cluster.router->load().ready());
  cluster.router->up(0, {.incarnation = 2, .address = "combine"});
  EXPECT_EQ(cluster.run(request).tokens, expected);
}

TEST(Cluster, ARequestOutlivesItsRouterNowhere) {
  const Request request = cold_request(5);
  Cluster cluster({.patience = 5s});
  for (int i = 0; i < 3; ++i) {
    cluster.ask(request);
    cluster.start_router();
  }
  uint64_t id = 0;
  cluster.ask(request, &id);
  cluster.router->cancel(id);
  EXPECT_EQ(cluster.run(request).tokens, Alone()(request));
  while (cluster.inbox().bytes_in_use() > 0) std::this_thread::sleep_for(1ms);
}

// Hundreds of requests, eight at a time, while everything goes wrong now and then.
TEST(Cluster, TokensNeverDependOnFaults) {
  constexpr int kRequests = 96, kAtOnce = 8;
  InboxCounters seen;  // over all ways: chance, or a busy machine, spares one of them now and then
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name());
    Alone alone(way.ranks);
    Cluster cluster({.tcp = way.tcp, .windows = way.windows, .links = way.links, .operators = 20, .ranks = way.ranks},
                    5);
    cluster.chances = {.drop = 20,
                       .twice = 150,
                       .cut = 10,
                       .late = 5,
                       .replay = 60,
                       .broken = 3,
                       .refuse = 50,
                       .hang = 15,
                       .silent = 50,
                       .slow = 20,
                       .lose = 40};
    if (way.ranks > 1) cluster.chances.rank = 15;
    cluster.link_chances.hang = 3;
    cluster.link_chances.broken = 10;
    cluster.link_chances.damage = 20;
    cluster.link_chances.cut = 3;
    std::mt19937_64 rng(7);
    int answered = 0, refused = 0;
    for (int begin = 0; begin < kRequests; begin += kAtOnce) {
      std::vector<Request> requests;
      std::vector<std::shared_ptr<Answer>> answers;
      for (int i = 0; i < kAtOnce; ++i) {
        requests.push_back(request_of(rng));
        answers.push_back(cluster.ask(requests.back()));
      }
      for (int i = 0; i < kAtOnce; ++i) {
        const Answer answer = cluster.wait(answers[i]);
        if (answer.status == 200) {
          EXPECT_EQ(answer.tokens, alone(requests[i]));
          ++answered;
        } else {
          const bool of_rank = way.ranks > 1 && answer.error == kRankLost;
          EXPECT_EQ(answer.status, of_rank ? 500 : CombinePeer::kLost) << answer.error;
          EXPECT_FALSE(answer.error.empty());
          ++refused;
        }
      }
      cluster.tell();
      if (begin % 5 == 0) cluster.router->flush();
      if (begin == kRequests / 2) cluster.start_router();
    }
    EXPECT_EQ(answered + refused, kRequests);
    EXPECT_GT(answered, 4 * refused);
    const InboxCounters inbox = cluster.inbox().counters();
    seen.complete += inbox.complete;
    seen.failed += inbox.failed;
    seen.duplicate += inbox.duplicate;
  }
  EXPECT_GT(seen.complete, 0);
  EXPECT_GT(seen.failed, 0);
  EXPECT_GT(seen.duplicate, 0);
}

}  // namespace
}  // namespace hypic
