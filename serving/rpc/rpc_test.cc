// Router and workers over gRPC and TCP, each as its own process would be.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "core/check.h"
#include "reference/cpu_backend.h"
#include "serving/rpc/peers.h"
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
  Process(Role role, int port = 0, uint8_t identity = 1)
      : backend_(reference::make_cpu_backend()),
        model_(Model::open(*backend_, kModel)),
        engine_(model_, {.cache = {.on_change = [this](Part part, const Tokens& tokens, int32_t first, int32_t tail,
                                                       bool here) { index_.note(part, tokens, first, tail, here); }}}) {
    WorkerServerOptions options{.address = str("127.0.0.1:", port)};
    options.identity[0] = identity;
    if (role == Role::combine) {
      combine_.emplace(engine_, model_, metrics_, SchedulerOptions{.mode = kMode},
                       InboxOptions{.first_patience = 5s, .patience = 1s});
      combine_->scheduler().wait_until_warm();
      receiver_.emplace(combine_->sink(), "127.0.0.1", 0);
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
  std::unique_ptr<Backend> backend_;
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
  explicit Door(const std::vector<WorkerAddress>& workers)
      : router(std::in_place, metrics, RouterOptions{.mode = kMode, .policy = Policy::round_robin}),
        watch(std::in_place, *router, workers, [this](const std::string& line) {
          const std::scoped_lock lock(mutex);
          lines.push_back(line);
          changed.notify_all();
        }) {}
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
  Process other(Role::scatter, 0, 2);  // of another model
  const int port = one->port(), combine_port = combine->port();
  Door door({{Role::combine, combine->address()},
             {Role::scatter, one->address()},
             {Role::scatter, other.address()},
             {Role::scatter, combine->address()}});  // which combines
  door.wait_for_up(2);
  door.wait_for_line("has another model, backend or mode");
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
  combine->cut_off();
  const Door::Answer none = door.run(request);
  EXPECT_EQ(none.status, CombinePeer::kLost);
  EXPECT_NE(none.error, "");
  combine.reset();
  door.wait_for_up(1);
  EXPECT_FALSE(door.router->load().ready);
  combine = std::make_unique<Process>(Role::combine, combine_port);
  door.wait_for_up(2);
  EXPECT_EQ(door.run(request).tokens, expected);
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
