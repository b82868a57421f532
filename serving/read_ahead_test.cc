// Files of the segment cache that are read before somebody needs them: what lookups find then, whatever happens
// meanwhile, and what of it a scheduler's requests see.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "core/check.h"
#include "core/temporary_folder.h"
#include "reference/cpu_backend.h"
#include "serving/scheduler.h"
#include "serving/small_model.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr char kMode[] = "transition_rope_seam";

struct World {
  std::unique_ptr<Backend> backend = reference::make_cpu_backend();
  Model model =
      Model::random(*backend, small_spec({.layers = {"linear_attention", "full_attention"}, .max_positions = 4096}), 3);
  static World& shared() {
    static World world;
    return world;
  }
};

constexpr PoolSizes kPools{.state_slots = 32, .operator_slots = 32, .pages = 400, .page_size = 16};

// Documents and a question.
Request request(const std::vector<int>& documents, int max_tokens = 1) {
  Request request{.segments = {}, .max_tokens = max_tokens};
  for (const int i : documents) request.segments.push_back(random_tokens(18 + i % 7 * 5, 100 + i));
  request.segments.push_back(random_tokens(5, 1));
  return request;
}
Tokens document(int i) { return request({i}).segments[0]; }

// What an engine answers that has seen nothing.
Response fresh(const std::vector<int>& documents, int max_tokens = 1, const std::string& mode = kMode) {
  Engine engine(World::shared().model, {.pools = kPools, .cache = {}});
  return engine.run({request(documents, max_tokens)}, mode_named(mode)).responses[0];
}

// A folder with the residues of documents, and, in mode prefix, of the prefixes that they make; no engine has any of
// them in memory.
class Folder {
 public:
  explicit Folder(const std::vector<int>& documents, const std::string& mode = kMode) {
    Engine engine(World::shared().model, {.pools = kPools, .cache = cache()});
    engine.run({request(documents)}, mode_named(mode));
    engine.persist();
    bytes_ = engine.usage().disk.total();
  }
  Folder(const Folder& other) : bytes_(other.bytes_) { fs::copy(other.folder_.path(), folder_.path()); }
  CacheOptions cache() const { return {.disk_folder = folder_.path(), .disk_bytes = 1 << 30}; }
  int64_t bytes() const { return bytes_; }
  std::vector<std::string> files() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_.path())) files.push_back(entry.path());
    return files;
  }

 private:
  TemporaryFolder folder_;
  int64_t bytes_ = 0;
};

// Lets the threads of the cache read nothing until it opens, and counts what they come for.
class Gate {
 public:
  std::function<void()> before_read() {
    return [this] {
      std::unique_lock lock(mutex_);
      ++came_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
    };
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_for(int count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, 60s, [&] { return came_ >= count; }));
  }
  int came() {
    const std::lock_guard lock(mutex_);
    return came_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int came_ = 0;
};

// An engine of a later life of the folder, step by step.
struct Life {
  explicit Life(const Folder& folder, const std::function<void(CacheOptions&)>& change = {}) {
    EngineOptions options{.pools = kPools, .cache = folder.cache()};
    if (change) change(options.cache);
    options.cache.before_read = gate.before_read();
    engine.emplace(World::shared().model, options);
    engine->on_read([this] {
      const std::lock_guard lock(mutex);
      changed.notify_all();
    });
  }
  ~Life() {
    gate.open();
    EXPECT_NO_THROW(engine->check_integrity());
    engine.reset();
  }
  SegmentCache::Ahead read_ahead(const Request& wanted, const std::string& mode = kMode) {
    SegmentCache::Ahead ahead = engine->wanted(wanted, mode_named(mode));
    engine->read_ahead(ahead, true);
    engine->check_integrity();
    return ahead;
  }
  template <class Condition>
  void wait(const Condition& condition) {
    gate.open();
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, 60s, condition));
  }
  void wait_for(const SegmentCache::Ahead& ahead) {
    wait([&] { return ahead.arrived(); });
  }
  void expect_answer(const std::vector<int>& documents, const std::string& mode = kMode) {
    EXPECT_EQ(engine->run({request(documents)}, mode_named(mode)).responses[0].logits,
              fresh(documents, 1, mode).logits);
    engine->check_integrity();
  }
  CacheUsage usage() const { return engine->usage(); }

  Gate gate;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Engine> engine;  // before the gate and the rest go
};

TEST(ReadAhead, IsWhatTheLookupsFind) {
  for (const char* mode : {kMode, "prefix"}) {
    const Folder folder({0, 1}, mode);
    Life life(folder);
    {
      const auto ahead = life.read_ahead(request({0, 1}), mode);
      EXPECT_TRUE(ahead.begun());
      EXPECT_FALSE(ahead.arrived());
      EXPECT_GT(life.usage().ahead_bytes, 0);
      life.wait_for(ahead);
      life.expect_answer({0, 1}, mode);
    }
    const int64_t files = mode == std::string("prefix") ? 1 : 4;
    EXPECT_EQ(life.usage().read_ahead, files);
    EXPECT_EQ(life.usage().read_late, 0);
    EXPECT_EQ(life.usage().misses, 0);
    EXPECT_GT(life.usage().disk_hits, 0);
    EXPECT_EQ(life.usage().ahead_bytes, 0);
  }
}

// A second request for the same files, and the lookup itself, which does not wait for a thread that has not begun.
TEST(ReadAhead, ReadsAFileOnce) {
  const Folder folder({0, 1});
  Life life(folder);
  const auto one = life.read_ahead(request({0, 1}));
  const int64_t held = life.usage().ahead_bytes;
  const auto other = life.read_ahead(request({1, 0}));
  EXPECT_EQ(life.usage().ahead_bytes, held);
  life.gate.wait_for(4);
  life.expect_answer({0, 1});
  EXPECT_EQ(life.usage().misses, 0);
  life.wait_for(other);
  EXPECT_EQ(life.gate.came(), 4);
  life.expect_answer({1, 0});
  EXPECT_EQ(life.usage().promoted, 4);
}

TEST(ReadAhead, OfAResidueBothHalvesOrNone) {
  const Folder folder({0});
  Life life(folder);
  const auto other_operator = life.read_ahead(request({0}), "transition_rope:head=4");
  const auto unknown = life.read_ahead(request({7}));
  EXPECT_TRUE(other_operator.arrived() && unknown.arrived());
  EXPECT_EQ(life.usage().ahead_bytes, 0);
}

TEST(ReadAhead, NeverHoldsMoreThanTheLimit) {
  const Folder folder({0, 1, 2});
  for (const int share : {0, 3, 2}) {
    Life life(folder, [&](CacheOptions& options) { options.queue_bytes = share == 0 ? 0 : folder.bytes() / share; });
    const auto first = life.read_ahead(request({0, 1}));
    const auto second = life.read_ahead(request({2}));
    EXPECT_FALSE(first.begun() || second.begun());
    EXPECT_EQ(first.arrived(), share == 0);
    life.expect_answer({0, 1});
    life.wait_for(first);
    life.expect_answer({2, 0});
    EXPECT_EQ(life.usage().misses, 0);
  }
}

TEST(ReadAhead, WaitsForWhatOthersHold) {
  const Folder folder({0, 1});
  Life life(folder, [&](CacheOptions& options) { options.queue_bytes = folder.bytes() / 2; });
  std::optional<SegmentCache::Ahead> first = life.read_ahead(request({0}));
  SegmentCache::Ahead second = life.read_ahead(request({1}));
  EXPECT_FALSE(second.begun());
  life.wait_for(*first);
  first.reset();
  life.wait([&] { return life.usage().ahead_bytes == 0; });
  life.engine->read_ahead(second, true);
  EXPECT_TRUE(second.begun());
  life.wait_for(second);
}

// Whatever happens to a file between its reading and its lookup; `closed`: while it is being read.
TEST(ReadAhead, WhatIsLostMeanwhileIsAMiss) {
  for (const bool closed : {true, false}) {
    const auto check = [&](const std::string& what, int warnings, int misses,
                           const std::function<void(Life&, Folder&)>& happen) {
      SCOPED_TRACE(what + (closed ? ", while it is read" : ", afterwards"));
      Folder folder({0});
      Life life(folder);
      const auto ahead = life.read_ahead(request({0}));
      if (closed)
        life.gate.wait_for(2);
      else
        life.wait_for(ahead);
      happen(life, folder);
      life.engine->check_integrity();
      if (closed) life.wait_for(ahead);
      life.expect_answer({0});
      EXPECT_EQ(life.usage().warning_count, warnings);
      EXPECT_EQ(life.usage().misses, misses);
    };
    check("flush", 0, 1, [](Life& life, Folder&) { life.engine->flush(); });
    check("persist", 0, 0, [](Life& life, Folder&) { life.engine->persist(); });
    check("computed again", 0, 1, [](Life& life, Folder&) {
      life.engine->flush();
      life.engine->run({request({0})}, mode_named(kMode));
      life.engine->evict_one();
      life.engine->evict_one();
      life.engine->drain();
    });
    if (!closed) continue;
    check("damage", 1, 1, [](Life&, Folder& folder) {
      for (const std::string& file : folder.files())
        if (file.find("-kv.") != file.npos) std::ofstream(file, std::ios::app) << "x";
    });
    check("removed by somebody", 1, 1, [](Life&, Folder& folder) {
      for (const std::string& file : folder.files()) fs::remove(file);
    });
    check("cannot be read", 1, 1, [](Life&, Folder& folder) {
      for (const std::string& file : folder.files()) {
        fs::remove(file);
        fs::create_directory(file);
      }
    });
  }
}

// The disk has room for two: what others leave takes the place of files that are being read.
TEST(ReadAhead, OfFilesThatHaveToMakeRoom) {
  const Folder folder({0, 7});
  Life life(folder, [&](CacheOptions& options) { options.disk_bytes = folder.bytes(); });
  const auto ahead = life.read_ahead(request({0, 7}));
  life.gate.wait_for(4);
  for (const int i : {14, 21}) {
    life.engine->run({request({i})}, mode_named(kMode));
    while (life.engine->evict_one()) life.engine->check_integrity();
  }
  life.engine->drain();
  life.engine->check_integrity();
  EXPECT_FALSE(life.engine->cache().has_residue(document(0), 8, 0));
  life.wait_for(ahead);
  life.expect_answer({0, 7});
  EXPECT_EQ(life.usage().warning_count, 0);
}

TEST(ReadAhead, WhoeverLetsGoFreesTheMemory) {
  const Folder folder({0, 1, 2, 3});
  Life life(folder);
  {
    const auto ahead = life.read_ahead(request({0, 1, 2, 3}));
    life.gate.wait_for(4);  // as many as there are threads
  }
  life.wait([&] { return life.usage().ahead_bytes == 0; });
  EXPECT_EQ(life.gate.came(), 4);
  life.expect_answer({3, 2, 1, 0});
}

TEST(ReadAhead, TheEndWaitsForNobody) {
  const Folder folder({0, 1, 2});
  Life life(folder);
  const auto ahead = life.read_ahead(request({0, 1, 2}));
  life.gate.wait_for(4);
}  // the gate opens, the threads end with what they have begun

// Requests that wait with or without their files, others beside them, damage, lookups in any order.
TEST(ReadAhead, AnswersNeverDependOnIt) {
  std::map<std::pair<std::string, std::vector<int>>, std::vector<double>> answers;
  const auto answer = [&](const std::string& mode, const std::vector<int>& documents) {
    auto& logits = answers[{mode, documents}];
    if (logits.empty()) logits = fresh(documents, 1, mode).logits;
    return logits;
  };
  const Folder full({0, 1, 2});
  EXPECT_TRUE(rc::check("bit-equal answers, limits hold", [&] {
    const Folder folder(full);
    Life life(folder, [](CacheOptions& options) {
      options.budget_bytes = *rc::gen::inRange<int64_t>(10000, 60000);
      options.host_bytes = *rc::gen::element<int64_t>(0, 20000);
      options.queue_bytes = *rc::gen::element<int64_t>(0, 20000, 100000);
      options.disk_bytes = *rc::gen::element<int64_t>(40000, 1 << 20);
    });
    if (*rc::gen::arbitrary<bool>()) life.gate.open();
    std::vector<SegmentCache::Ahead> waiting;
    const int steps = *rc::gen::inRange(1, 20);
    for (int step = 0; step < steps; ++step) {
      const int action = *rc::gen::inRange(0, 12);
      const auto documents = *rc::gen::container<std::vector<int>>(2, rc::gen::inRange(0, 5));
      const std::string mode = *rc::gen::element<std::string>(kMode, "prefix");
      if (action == 0) {
        life.engine->flush();
      } else if (action <= 2) {
        life.engine->evict_one();
      } else if (action == 3) {
        life.engine->persist();
        if (const auto files = folder.files(); !files.empty()) std::ofstream(files[0], std::ios::app) << "x";
      } else if (action <= 6) {
        waiting.push_back(life.engine->wanted(request(documents), mode_named(mode)));
        life.engine->read_ahead(waiting.back(), action < 6);
      } else if (action == 7 && !waiting.empty()) {
        waiting.erase(waiting.begin());
      } else {
        RC_ASSERT(life.engine->run({request(documents)}, mode_named(mode)).responses[0].logits ==
                  answer(mode, documents));
      }
      life.engine->check_integrity();
    }
  }));
}

// A scheduler on such an engine.
struct Served {
  explicit Served(const Folder& folder, const std::function<void(CacheOptions&)>& change = {}) : life(folder, change) {
    scheduler.emplace(*life.engine, metrics, SchedulerOptions{.mode = mode_named(kMode)});
    scheduler->wait_until_warm();
  }
  ~Served() {
    life.gate.open();
    scheduler.reset();
    while (!life.engine->idle()) life.engine->step();
  }
  // Notes the name when it ends, and its tokens.
  uint64_t submit(const std::string& name, Request wanted) {
    wanted.logits = false;
    return scheduler->submit(std::move(wanted), [this, name](const Notice& notice) {
      const std::lock_guard lock(mutex);
      if (notice.kind == Notice::Kind::failed)
        ADD_FAILURE() << notice.error;
      else
        tokens[name].push_back(notice.token);
      if (notice.last) order.push_back(name);
      changed.notify_all();
    });
  }
  void wait_for_ends(size_t count) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, 60s, [&] { return order.size() >= count; }));
  }

  Life life;
  Metrics metrics;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> order;
  std::map<std::string, Tokens> tokens;
  std::optional<Scheduler> scheduler;
};

TEST(ReadAheadServed, ARequestThatWaitsForItsFilesHoldsUpNobody) {
  const Folder folder({0, 1});
  Served served(folder);
  served.submit("disk", request({0, 1}, 3));
  served.life.gate.wait_for(4);
  served.submit("cold", request({2}, 200));
  served.wait_for_ends(1);
  served.submit("plain", request({}, 5));
  served.wait_for_ends(2);
  served.life.gate.open();
  served.wait_for_ends(3);
  EXPECT_EQ(served.order, (std::vector<std::string>{"cold", "plain", "disk"}));
  EXPECT_EQ(served.tokens["disk"], fresh({0, 1}, 3).tokens);
  EXPECT_EQ(served.tokens["cold"], fresh({2}, 200).tokens);
  served.scheduler.reset();
  EXPECT_EQ(served.life.usage().read_ahead, 4);
  EXPECT_EQ(served.life.usage().read_late, 0);
}

TEST(ReadAheadServed, NobodyIsPassedForEver) {
  const Folder folder({0});
  Served served(folder);
  served.submit("disk", request({0}));
  served.life.gate.wait_for(2);
  for (int i = 0; i < Scheduler::kMostPassed; ++i) served.submit("passes", request({}, 2));
  served.wait_for_ends(Scheduler::kMostPassed);
  served.submit("waits", request({}, 2));
  served.scheduler->flush();
  served.scheduler->flush();  // between the two it had its chance
  {
    const std::lock_guard lock(served.mutex);
    EXPECT_EQ(served.tokens.count("waits"), 0u);
  }
  served.life.gate.open();
  served.wait_for_ends(Scheduler::kMostPassed + 2);
  EXPECT_EQ(served.tokens["disk"], fresh({0}).tokens);
}

// There is memory for one at a time.
TEST(ReadAheadServed, WhereRoomIsShortTheyTakeTurns) {
  const Folder folder({0, 1, 2, 3});
  for (const int share : {4, 100}) {
    Served served(folder, [&](CacheOptions& options) { options.queue_bytes = folder.bytes() / share; });
    served.life.gate.open();
    for (int i = 0; i < 4; ++i) served.submit(std::to_string(i), request({i}, 2));
    served.wait_for_ends(4);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(served.tokens[std::to_string(i)], fresh({i}, 2).tokens);
  }
}

// Those behind hold what the first one lacks room for, and may not pass it any more.
TEST(ReadAheadServed, TheFirstWaitsForNoRoom) {
  const Folder folder({0, 1});
  Served served(folder, [&](CacheOptions& options) { options.queue_bytes = folder.bytes() / 2; });
  served.submit("reads", request({0}));
  served.life.gate.wait_for(2);
  served.submit("has no room", request({1}));
  for (int i = 0; i < 2 * Scheduler::kMostPassed; ++i) served.submit("joins", request({0}));
  served.life.gate.open();
  served.wait_for_ends(2 + 2 * Scheduler::kMostPassed);
  EXPECT_EQ(served.tokens["has no room"], fresh({1}).tokens);
}

TEST(ReadAheadServed, CancelFlushAndTheEndWhileFilesAreRead) {
  const Folder folder({0, 1});
  for (const bool cancels : {true, false}) {
    Served served(folder);
    const uint64_t id = served.submit("disk", request({0, 1}, 3));
    served.life.gate.wait_for(4);
    if (cancels) {
      served.scheduler->cancel(id);
      served.submit("other", request({0}, 2));
      served.life.gate.open();
      served.wait_for_ends(1);
      EXPECT_EQ(served.tokens["other"], fresh({0}, 2).tokens);
    } else {
      served.scheduler->flush();
    }
  }
}

}  // namespace
}  // namespace hypic
