// The segment cache in its engine: budget, pins, admission, tiers; and the published faults of such
// caches, each of which a test here would see again.
#include "serving/segment_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "core/temporary_folder.h"
#include "reference/cpu_backend.h"
#include "serving/engine.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

constexpr char kMode[] = "transition_rope_seam";
constexpr int kHead = 8;  // its seam

ModelSpec hybrid() {
  const nlohmann::json config = {
      {"model_type", "qwen3_5_text"},
      {"vocab_size", 64},
      {"hidden_size", 24},
      {"intermediate_size", 24},
      {"num_hidden_layers", 3},
      {"layer_types", {"linear_attention", "full_attention", "linear_attention"}},
      {"num_attention_heads", 2},
      {"num_key_value_heads", 1},
      {"head_dim", 8},
      {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}},
      {"linear_num_key_heads", 1},
      {"linear_num_value_heads", 2},
      {"linear_key_head_dim", 8},
      {"linear_value_head_dim", 6},
      {"linear_conv_kernel_dim", 4}};
  ModelSpec spec = spec_from_config(config.dump(), "test");
  spec.name = "test";
  return spec;
}

Tokens tokens_of(int n, int seed) {
  std::mt19937 rng(seed);
  Tokens tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 64);
  return tokens;
}

// Segment i: 18 … 40 tokens, so two or three pages of 16.
Tokens segment(int i) { return tokens_of(18 + i * 5 % 23, 100 + i); }
Tokens question() { return tokens_of(5, 1); }

std::vector<Tokens> prompt(const std::vector<int>& segments) {
  std::vector<Tokens> prompt;
  for (const int i : segments) prompt.push_back(segment(i));
  prompt.push_back(question());
  return prompt;
}

// One model for all tests of a backend: engines share nothing but its weights.
struct World {
  World(std::unique_ptr<Backend> backend, ModelSpec spec)
      : backend(std::move(backend)), model(Model::random(*this->backend, std::move(spec), 3)) {}
  explicit World(ModelSpec spec, bool wide = false)
      : World(wide ? reference::make_cpu64_backend() : reference::make_cpu_backend(), std::move(spec)) {}
  static World& shared() {
    static World world(hybrid());
    return world;
  }
  std::unique_ptr<Backend> backend;
  Model model;
};

constexpr PoolSizes kPools{.state_slots = 12, .operator_slots = 24, .pages = 96, .page_size = 16};

EngineOptions with(CacheOptions cache, PoolSizes pools = kPools) {
  return {.pools = pools, .cache = std::move(cache)};
}

// An engine that proves its integrity when the test is over.
struct Fixture {
  explicit Fixture(EngineOptions options = with({}), World& world = World::shared())
      : engine(world.model, options) {}
  ~Fixture() { EXPECT_NO_THROW(engine.check_integrity()); }

  RunResult run(const std::vector<int>& segments, const std::string& mode = kMode,
                int max_tokens = 1) {
    return engine.run({{prompt(segments), max_tokens}}, mode_named(mode));
  }
  bool has(int i, int head = kHead) const {
    return engine.cache().has_residue(segment(i), head, 0);
  }
  CacheUsage usage() const { return engine.usage(); }
  int64_t residue_bytes(int i) const {
    const int64_t pages = (static_cast<int64_t>(segment(i).size()) + 15) / 16;
    return pages * engine.pools().page_bytes() + engine.pools().operator_bytes();
  }

  Engine engine;
};

Response fresh(const std::vector<int>& segments, const std::string& mode = kMode,
               int max_tokens = 1) {
  return Fixture().run(segments, mode, max_tokens).responses[0];
}

class Folder : public TemporaryFolder {
 public:
  std::vector<std::string> files() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(path())) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }
};

CacheOptions on_disk(const Folder& folder, int64_t disk_bytes = int64_t{1} << 30) {
  return {.disk_folder = folder.path(), .disk_bytes = disk_bytes};
}

void evict_all(Engine& engine) {
  while (engine.evict_one()) {
  }
  engine.drain();
  EXPECT_EQ(engine.usage().device.entries, 0);
  EXPECT_EQ(engine.usage().device.total(), 0);
}

// Runs `act` before the given layer of each forward.
struct During : LayerHooks {
  During(int layer, std::function<void()> act) : layer(layer), act(std::move(act)) {}
  void before(int l) override {
    if (l == layer) act();
  }
  void after(int) override {}
  int layer;
  std::function<void()> act;
};

// A disk that writes nothing until it may; before the engine ends, it must.
class SlowDisk {
 public:
  std::function<void()> before_write() {
    return [this] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return goes_on_; });
    };
  }
  void go_on() {
    const std::lock_guard lock(mutex_);
    goes_on_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool goes_on_ = false;
};

CacheOptions on_slow_disk(const Folder& folder, SlowDisk& disk) {
  CacheOptions options = on_disk(folder);
  options.before_write = disk.before_write();
  return options;
}

// Copies of the cache as a GPU makes them: late, but in order with all other operations.
class LateBackend final : public Backend {
 public:
  explicit LateBackend(std::unique_ptr<Backend> now) : now_(std::move(now)) {}
  ~LateBackend() override { EXPECT_TRUE(copies_.empty()); }

  std::string_view name() const override { return now_->name(); }
  DType compute_dtype() const override { return now_->compute_dtype(); }
  DType state_dtype() const override { return now_->state_dtype(); }
  bool batch_invariant() const override { return now_->batch_invariant(); }
  size_t available_bytes() const override { return now_->available_bytes(); }
  void* allocate(size_t bytes) override { return now_->allocate(bytes); }
  void release(void* memory) noexcept override { now_->release(memory); }
  void* allocate_host(size_t bytes) override {
    void* memory = Backend::allocate_host(bytes);
    std::memset(memory, 0xff, bytes);
    return memory;
  }
  void upload_async(const Tensor& to, const void* from) override { later({to.data, from, to.bytes()}); }
  void download_async(void* to, const Tensor& from) override { later({to, from.data, from.bytes()}); }
  std::unique_ptr<Event> record() override { return std::make_unique<Point>(*this); }
  void upload(const Tensor& to, const void* from) override { settle(), now_->upload(to, from); }
  void download(void* to, const Tensor& from) override { settle(), now_->download(to, from); }
  void copy(const Tensor& to, const Tensor& from) override { settle(), now_->copy(to, from); }
  void fill_zero(const Tensor& tensor) override { settle(), now_->fill_zero(tensor); }
  Rows begin(const ChainTable& table) override { return settle(), now_->begin(table); }

#define HYPIC_OPERATION(name, Args) \
  void name(const Args& a) override { settle(), now_->name(a); }
  HYPIC_OPERATION(random_normal, RandomNormalArgs)
  HYPIC_OPERATION(embedding, EmbeddingArgs)
  HYPIC_OPERATION(matmul, MatmulArgs)
  HYPIC_OPERATION(head_matmul, HeadMatmulArgs)
  HYPIC_OPERATION(add, AddArgs)
  HYPIC_OPERATION(rms_norm, RmsNormArgs)
  HYPIC_OPERATION(l2_norm, L2NormArgs)
  HYPIC_OPERATION(gate_mul, GateMulArgs)
  HYPIC_OPERATION(decay_gate, DecayGateArgs)
  HYPIC_OPERATION(sigmoid, SigmoidArgs)
  HYPIC_OPERATION(causal_conv, CausalConvArgs)
  HYPIC_OPERATION(linear_attention, LinearAttentionArgs)
  HYPIC_OPERATION(rope, RopeArgs)
  HYPIC_OPERATION(append_kv, AppendKvArgs)
  HYPIC_OPERATION(attention, AttentionArgs)
  HYPIC_OPERATION(route, RouteArgs)
  HYPIC_OPERATION(experts, ExpertsArgs)
  HYPIC_OPERATION(gather_rows, GatherRowsArgs)
  HYPIC_OPERATION(sample, SampleArgs)
#undef HYPIC_OPERATION

 private:
  struct Copy {
    void* to;
    const void* from;
    int64_t bytes;
  };
  struct Point : Event {
    explicit Point(LateBackend& backend) : backend(backend), copies(backend.enqueued_) {}
    bool done() override {
      const std::lock_guard lock(backend.mutex_);
      return backend.made_ >= copies;
    }
    void wait() override { backend.settle(); }
    LateBackend& backend;
    int64_t copies;
  };
  void later(Copy copy) {
    const std::lock_guard lock(mutex_);
    copies_.push_back(copy);
    ++enqueued_;
  }
  void settle() {
    const std::lock_guard lock(mutex_);
    for (; !copies_.empty(); copies_.pop_front(), ++made_)
      std::memcpy(copies_.front().to, copies_.front().from, copies_.front().bytes);
  }

  std::unique_ptr<Backend> now_;
  std::mutex mutex_;  // of what follows
  std::deque<Copy> copies_;
  int64_t enqueued_ = 0, made_ = 0;
};

// Budget.

TEST(SegmentCache, BytesAreThoseOfThePools) {
  Fixture f;
  f.run({0, 1});
  const CacheUsage usage = f.usage();
  EXPECT_EQ(usage.device.total(), f.residue_bytes(0) + f.residue_bytes(1));
  EXPECT_EQ(usage.device.operators + usage.device.tails, 2 * f.engine.pools().operator_bytes());
  EXPECT_GT(usage.device.tails, 0);
  EXPECT_EQ(usage.entries, 4);
  EXPECT_EQ(usage.admitted, 2);
  EXPECT_EQ(usage.misses, 2);
  f.run({1, 0});
  EXPECT_EQ(f.usage().hits, 2);
  EXPECT_EQ(f.usage().device.total(), usage.device.total());
}

TEST(SegmentCache, TheBudgetKeepsTheLatest) {
  const int64_t three = [] {
    Fixture f;
    return f.residue_bytes(0) + f.residue_bytes(1) + f.residue_bytes(2);
  }();
  Fixture f(with({.budget_bytes = three}));
  f.run({0, 1, 2});
  EXPECT_TRUE(f.has(0) && f.has(1) && f.has(2));
  f.run({0});  // 1 is now the oldest
  f.run({3});
  EXPECT_FALSE(f.has(1));
  EXPECT_TRUE(f.has(0) && f.has(3));
  EXPECT_LE(f.usage().device.total(), three);
  EXPECT_GT(f.usage().evicted, 0);
  EXPECT_EQ(f.run({1, 0}).responses[0].logits, fresh({1, 0}).logits);
}

TEST(SegmentCache, WhatTheBudgetCannotHoldStillWorks) {
  Fixture f(with({.budget_bytes = 1}));
  for (int i = 0; i < 2; ++i) {
    const RunResult result = f.run({0, 1}, kMode, 3);
    EXPECT_EQ(result.responses[0].logits, fresh({0, 1}).logits);
    EXPECT_EQ(result.counters.jumps, 2);
  }
  f.run({0, 1}, "prefix");
  EXPECT_EQ(f.usage().entries, 0);
  EXPECT_EQ(f.usage().refused, 6);
}

// Two operators over the spans of two seams, one K, V.
TEST(SegmentCache, HalvesAreStoredOnce) {
  Fixture f;
  f.run({0}, "transition_rope:head=8");
  f.run({0}, "transition_rope:head=4");
  EXPECT_EQ(f.usage().entries, 3);
  EXPECT_TRUE(f.has(0, 8) && f.has(0, 4));
  EXPECT_EQ(f.run({0}, "transition_rope:head=4").counters.isolated, 0);
}

// Pins.

TEST(SegmentCache, WhatARequestUsesIsNotEvictedUnderIt) {
  // Two operator slots: 0 is cached, 1 and 2 are misses of a request that also uses 0.
  PoolSizes pools = kPools;
  pools.operator_slots = 2;
  const std::vector<double> expected = fresh({0, 1, 2}).logits;
  Fixture f(with({}, pools));
  f.engine.warm({segment(0)}, mode_named(kMode));
  EXPECT_THROW(f.run({0, 1, 2}), OutOfMemory);
  EXPECT_TRUE(f.has(0));
  EXPECT_EQ(f.run({0}).responses[0].logits, fresh({0}).logits);

  Engine faulty(World::shared().model,
                {.pools = pools, .faults = {.hits_not_pinned = true}, .cache = {}});
  faulty.warm({segment(0)}, mode_named(kMode));
  EXPECT_NE(faulty.run({{prompt({0, 1, 2}), 1}}, mode_named(kMode)).responses[0].logits, expected);
}

TEST(SegmentCache, FlushDropsWhatIsInUseWhenItsLastUserIsDone) {
  for (const char* mode : {kMode, "prefix"}) {
    Fixture f;
    const Response expected = fresh({0, 1}, mode, 4);
    f.run({0, 1}, mode);
    if (mode == std::string("prefix")) f.engine.evict_one();  // the shorter one is of no use here
    const int64_t held = f.usage().device.total();
    int64_t during = 0;
    During flush(1, [&] {
      f.engine.flush();
      EXPECT_FALSE(f.engine.evict_one());
      during = std::max(during, f.usage().pinned);
      EXPECT_EQ(f.usage().entries, 0);
      EXPECT_EQ(f.usage().device.total(), held);  // nobody else may get these slots yet
    });
    const RunResult result =
        f.engine.run({{prompt({0, 1}), 4}}, mode_named(mode), {.hooks = &flush});
    EXPECT_EQ(result.responses[0].logits, expected.logits) << mode;
    EXPECT_EQ(result.responses[0].tokens, expected.tokens) << mode;
    EXPECT_EQ(during, mode == std::string(kMode) ? 4 : 1);
    EXPECT_EQ(f.usage().pinned, 0);
    EXPECT_EQ(f.usage().device.total(), 0) << mode;
  }
}

// A cache without an engine.
struct Bare {
  explicit Bare(const CacheOptions& options)
      : cache("bare", World::shared().model, pools, pages, operators, states, options) {}
  bool insert(int i) {
    const Tokens tokens = segment(i);
    return cache.insert_residue(tokens, kHead, 0, pages.take((tokens.size() + 15) / 16), operators.take(), 0);
  }
  SegmentCache::ResiduePins find(int i) { return cache.find_residue(segment(i), kHead, 0); }
  SegmentCache::Prefix prefix(int i) const { return cache.prefixes(std::vector<Tokens>{segment(i)})[0]; }

  Pools pools{*World::shared().backend, World::shared().model.spec(), kPools};
  Slots pages{"page", kPools.pages}, operators{"operator", kPools.operator_slots}, states{"state", kPools.state_slots};
  SegmentCache cache;
};

// Segments 0, 1 and 2 have two pages each, 3 has three.
TEST(SegmentCache, WhatCannotFitBesidePinnedEntriesEvictsNothing) {
  const int64_t one = Fixture().residue_bytes(0);
  ASSERT_EQ(Fixture().residue_bytes(1), one);
  Bare bare({.budget_bytes = 2 * one});
  ASSERT_TRUE(bare.insert(0) && bare.insert(1));
  {
    const auto used = bare.find(0);
    ASSERT_TRUE(used);
    EXPECT_FALSE(bare.insert(3));
    EXPECT_EQ(bare.cache.usage().evicted, 0);
    bare.cache.check_integrity();
    EXPECT_TRUE(bare.insert(2));  // in the place of 1
    EXPECT_EQ(bare.cache.usage().evicted, 2);
  }
  EXPECT_TRUE(bare.cache.has_residue(segment(0), kHead, 0));
  EXPECT_TRUE(bare.insert(3));
  bare.cache.check_integrity();
}

// Neither does what cannot come back from a lower tier, be it for one half alone.
TEST(SegmentCache, WhatCannotBePromotedEvictsNothing) {
  const int64_t one = Fixture().residue_bytes(0);
  Bare bare({.budget_bytes = 2 * one, .host_bytes = 1 << 20});
  ASSERT_TRUE(bare.insert(3));
  while (bare.cache.evict_one()) {
  }
  ASSERT_TRUE(bare.insert(0) && bare.insert(1));
  const int64_t demoted = bare.cache.usage().demoted;
  {
    const auto used = bare.find(0);
    EXPECT_FALSE(bare.find(3));
    EXPECT_EQ(bare.cache.usage().demoted, demoted);
    EXPECT_EQ(bare.cache.usage().promoted, 0);
    bare.cache.check_integrity();
  }
  EXPECT_TRUE(bare.find(3));
  EXPECT_GT(bare.cache.usage().demoted, demoted);
}

// Pages of snapshots that a request holds too become free with it only: evicting them makes no room.
TEST(SegmentCache, RoomThatEvictionCannotMakeEvictsNothing) {
  Bare bare({});
  const std::vector<int32_t> pages = bare.pages.take(3);
  bare.pages.share(pages[0]);
  ASSERT_TRUE(bare.cache.insert_prefix(bare.prefix(0), {pages[0]}, bare.states.take()));
  const int64_t free = bare.pages.available();
  bare.cache.make_room(bare.pages, free + 1);
  EXPECT_EQ(bare.cache.usage().evicted, 0);
  ASSERT_TRUE(bare.cache.insert_prefix(bare.prefix(1), {pages[1], pages[2]}, bare.states.take()));
  bare.cache.make_room(bare.pages, free + 3);
  EXPECT_EQ(bare.cache.usage().evicted, 0);
  bare.cache.make_room(bare.pages, free + 2);
  EXPECT_EQ(bare.pages.available(), free + 2);
  bare.cache.flush();
  bare.pages.give_back(pages[0]);
  bare.cache.check_integrity();
}

// In one batch, whoever asks: one isolated chain, stored once, and each answer as if it were alone.
TEST(SegmentCache, EqualMissesOfABatchAreComputedOnce) {
  Fixture f;
  const std::vector<std::vector<int>> prompts = {{0, 1}, {1, 2}, {2, 1, 0}};
  std::vector<Request> batch;
  for (const auto& segments : prompts) batch.push_back({prompt(segments), 2});
  const RunResult result = f.engine.run(batch, mode_named(kMode));
  EXPECT_EQ(result.counters.isolated, segment(0).size() + segment(1).size() + segment(2).size());
  EXPECT_EQ(f.usage().misses, 3);
  EXPECT_EQ(f.usage().admitted, 3);
  EXPECT_EQ(f.usage().entries, 6);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Response alone = fresh(prompts[i], kMode, 2);
    EXPECT_EQ(result.responses[i].logits, alone.logits);
    EXPECT_EQ(result.responses[i].tokens, alone.tokens);
  }
}

TEST(SegmentCache, EvictionDuringARequestSparesWhatItUses) {
  Fixture f;
  f.run({0, 1, 2});
  During evict(0, [&] {
    while (f.engine.evict_one()) {
    }
  });
  const RunResult result =
      f.engine.run({{prompt({0, 2}), 3}}, mode_named(kMode), {.hooks = &evict});
  EXPECT_EQ(result.responses[0].logits, fresh({0, 2}, kMode, 3).logits);
  EXPECT_TRUE(f.has(0) && f.has(2));
  EXPECT_FALSE(f.has(1));
}

// Admission.

TEST(Admission, IsAtTheSecondTouch) {
  Fixture f(with({.admission = Admission::second_touch}));
  const std::vector<double> expected = fresh({0, 1}).logits;
  EXPECT_EQ(f.run({0, 1}, kMode, 2).responses[0].logits, expected);
  EXPECT_EQ(f.usage().entries, 0);
  EXPECT_EQ(f.usage().refused, 2);
  const RunResult second = f.run({0, 1});
  EXPECT_EQ(second.responses[0].logits, expected);
  EXPECT_GT(second.counters.isolated, 0);
  EXPECT_TRUE(f.has(0) && f.has(1));
  EXPECT_EQ(f.run({1, 0}).counters.isolated, 0);
}

TEST(Admission, OfPrefixesToo) {
  Fixture f(with({.admission = Admission::second_touch}));
  EXPECT_EQ(f.run({0, 1}, "prefix").counters.prefix, 0);
  EXPECT_EQ(f.usage().entries, 0);
  f.run({0, 2}, "prefix");  // [0] is seen twice, [0, 2] once
  EXPECT_EQ(f.usage().entries, 1);
  EXPECT_EQ(f.run({0, 1}, "prefix").counters.prefix, segment(0).size());
}

TEST(Admission, OfAWarmUpIsAlways) {
  Fixture f(with({.admission = Admission::second_touch}));
  f.engine.warm({segment(0)}, mode_named(kMode));
  EXPECT_TRUE(f.has(0));
  EXPECT_EQ(f.run({0}).counters.isolated, 0);
}

// The same segment twice in one request is one touch; in two requests of a batch it is two.
TEST(Admission, CountsRequests) {
  Fixture f(with({.admission = Admission::second_touch}));
  EXPECT_EQ(f.run({0, 0}).responses[0].logits, fresh({0, 0}).logits);
  EXPECT_FALSE(f.has(0));
  const RunResult batch =
      f.engine.run({{prompt({1, 1, 2}), 2}, {prompt({3, 1}), 3}}, mode_named(kMode));
  EXPECT_EQ(batch.counters.isolated, segment(1).size() + segment(2).size() + segment(3).size());
  EXPECT_TRUE(f.has(1));
  EXPECT_FALSE(f.has(2) || f.has(3));
  EXPECT_EQ(f.usage().entries, 2);
}

TEST(Admission, RemembersBoundedlyManyKeys) {
  Fixture f(with({.admission = Admission::second_touch, .seen_keys = 2}));
  f.run({0});
  f.run({1});
  f.run({2});  // 0 is forgotten
  f.run({0});
  EXPECT_FALSE(f.has(0));
  f.run({2});
  EXPECT_TRUE(f.has(2));
  f.engine.flush();  // as new
  f.run({2});
  EXPECT_FALSE(f.has(2));
}

// Slots run short.

TEST(SegmentCache, EntriesMakeRoomForRequests) {
  PoolSizes pools{.state_slots = 4, .operator_slots = 3, .pages = 12, .page_size = 16};
  Fixture f(with({}, pools));
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 7; ++i) {
      EXPECT_EQ(f.run({i, (i + 3) % 7}).responses[0].logits, fresh({i, (i + 3) % 7}).logits);
      f.engine.check_integrity();
    }
  EXPECT_GT(f.usage().evicted, 0);
}

TEST(SegmentCache, ARequestThatCannotFitIsRefusedInOneLineAndChangesNothing) {
  PoolSizes pools{.state_slots = 8, .operator_slots = 3, .pages = 12, .page_size = 16};
  const auto refused = [&](Fixture& f, const std::vector<Request>& requests, const char* what) {
    const CacheUsage before = f.usage();
    try {
      f.engine.run(requests, mode_named(kMode));
      ADD_FAILURE() << "accepted; expected: " << what;
    } catch (const OutOfMemory& error) {
      const std::string line = error.what();
      EXPECT_NE(line.find(what), std::string::npos) << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
    EXPECT_NO_THROW(f.engine.check_integrity());
    EXPECT_EQ(f.usage().admitted, before.admitted);
    EXPECT_EQ(f.usage().device.entries, before.device.entries);  // nobody else pays for it
  };
  Fixture f(with({}, pools));
  f.run({0});
  refused(f, {{prompt({1, 2, 3, 4}), 1}}, "4 operator slots are needed, there are 3");
  refused(f, {{prompt({}), 400}}, "26 K, V pages are needed, there are 12");
  refused(f, std::vector<Request>(9, {prompt({}), 1}),
          "9 state slots are needed, there are 8");
  EXPECT_EQ(f.run({0}).responses[0].logits, fresh({0}).logits);
}

// Prefix snapshots.

// A batch whose requests share a cached prefix needs its pages once.
TEST(Prefixes, OfABatchCountOnce) {
  const PoolSizes pools{.state_slots = 12, .operator_slots = 4, .pages = 12, .page_size = 16};
  for (const int length : {128, 120}) {
    Fixture f(with({}, pools));
    const Tokens shared = tokens_of(length, 7), other = tokens_of(length, 8);
    const auto ask = [](const Tokens& first, int seed) { return Request{{first, tokens_of(5, seed)}, 1}; };
    f.engine.run({ask(shared, 1)}, mode_named("prefix"));
    const RunResult both = f.engine.run({ask(shared, 2), ask(shared, 3)}, mode_named("prefix"));
    EXPECT_EQ(both.counters.prefix, 2 * length);
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(both.responses[i].logits,
                Fixture().engine.run({ask(shared, 2 + i)}, mode_named("full")).responses[0].logits);
    EXPECT_THROW(f.engine.run({ask(shared, 2), ask(other, 3)}, mode_named("prefix")), OutOfMemory);
    EXPECT_THROW(f.engine.run({ask(shared, 2), ask(shared, 3)}, mode_named("full")), OutOfMemory);
    EXPECT_TRUE(f.engine.cache().has_prefix(shared));
  }
}

TEST(Prefixes, OfAPromptShareItsTokens) {
  Bare bare({});
  const std::vector<Tokens> segments = {segment(0), segment(1), segment(2)};
  const auto prefixes = bare.cache.prefixes(segments);
  Tokens whole;
  for (size_t i = 0; i < segments.size(); ++i) {
    whole.insert(whole.end(), segments[i].begin(), segments[i].end());
    EXPECT_EQ(Tokens(prefixes[i].tokens().begin(), prefixes[i].tokens().end()), whole);
    EXPECT_EQ(prefixes[i].prompt, prefixes[0].prompt);
  }
}

TEST(Prefixes, AreEvictedLikeSegments) {
  const int64_t budget = [] {
    Fixture f;
    f.run({0, 1}, "prefix");
    return f.usage().device.total();
  }();
  Fixture f(with({.budget_bytes = budget}));
  const std::vector<double> expected = fresh({0, 1}, "full").logits;
  f.run({0, 1}, "prefix");
  EXPECT_EQ(f.usage().entries, 2);
  EXPECT_EQ(f.usage().device.states, 2 * f.engine.pools().state_bytes());
  f.run({2, 3}, "prefix");
  f.run({4}, kMode);
  EXPECT_FALSE(f.engine.cache().has_prefix(segment(0)));
  EXPECT_LE(f.usage().device.total(), budget);
  const RunResult again = f.run({0, 1}, "prefix", 2);
  EXPECT_EQ(again.counters.prefix, 0);
  EXPECT_EQ(again.responses[0].logits, expected);
}

// A snapshot is worth less than a request: it takes no slot that one needs, in the same batch too.
TEST(Prefixes, AreLeftOutWhereStatesRunShort) {
  Fixture f(with({}, {.state_slots = 2, .operator_slots = 0, .pages = 40, .page_size = 16}));
  const RunResult batch =
      f.engine.run({{prompt({0, 1}), 2}, {prompt({2, 3}), 2}}, mode_named("prefix"));
  EXPECT_EQ(batch.responses[0].logits, fresh({0, 1}, "full").logits);
  EXPECT_EQ(batch.responses[1].logits, fresh({2, 3}, "full").logits);
  EXPECT_EQ(f.usage().entries, 0);
  f.run({0, 1}, "prefix");
  EXPECT_EQ(f.usage().entries, 1);
}

// The published faults.

TEST(Faults, MissesStoredTwiceAreFreedTwice) {
  const auto breaks = [](bool fault, int max_tokens) {
    Engine engine(World::shared().model,
                  {.pools = kPools, .faults = {.stored_twice = fault}, .cache = {}});
    engine.run({{prompt({0, 1}), max_tokens}}, mode_named(kMode));
    try {
      engine.check_integrity();
      return false;
    } catch (const InternalError&) {
      return true;
    }
  };
  EXPECT_FALSE(breaks(false, 1));
  EXPECT_FALSE(breaks(false, 2));
  EXPECT_FALSE(breaks(true, 1));  // as published: only with two output tokens or more
  EXPECT_TRUE(breaks(true, 2));
}

// Every slot holds what somebody left: states, windows, operators, K, V.
void soil(Engine& engine, Backend& backend) {
  const auto put = [&](const Buffer& buffer) {
    if (!buffer || buffer.tensor().size() == 0) return;
    const std::vector<float> garbage(buffer.tensor().size(), 3.5f);
    backend.upload(buffer, garbage.data());
  };
  for (const LinearPool& pool : engine.pools().linear)
    for (const Buffer* part :
         {&pool.state, &pool.window, &pool.tail, &pool.log_scale, &pool.T, &pool.U})
      put(*part);
  for (const AttentionPool& pool : engine.pools().attention) {
    put(pool.k);
    put(pool.v);
  }
}

TEST(Faults, StatesOfOthersLeakFromASlotThatIsNotCleared) {
  const auto differs = [](bool fault, const char* mode) {
    World& world = World::shared();
    Engine engine(world.model,
                  {.pools = kPools, .faults = {.state_not_cleared = fault}, .cache = {}});
    soil(engine, *world.backend);
    const RunResult soiled = engine.run({{prompt({0, 1}), 3}}, mode_named(mode));
    const Response clean = fresh({0, 1}, mode, 3);
    return soiled.responses[0].logits != clean.logits || soiled.responses[0].tokens != clean.tokens;
  };
  for (const Mode& mode : modes()) {
    EXPECT_FALSE(differs(false, mode.name.c_str())) << mode.name;
    EXPECT_TRUE(differs(true, mode.name.c_str())) << mode.name;
  }
}

// Tiers.

TEST(Tiers, HostMemoryGivesBackTheVeryBits) {
  for (const char* mode : {kMode, "prefix", "addition_rope_seam"}) {
    Fixture f(with({.host_bytes = 1 << 30}));
    const std::vector<double> expected = fresh({0, 1, 2}, mode).logits;
    f.run({0, 1, 2}, mode);
    const int64_t entries = f.usage().entries;
    evict_all(f.engine);
    EXPECT_EQ(f.usage().host.entries, entries) << mode;
    EXPECT_EQ(f.usage().demoted, entries) << mode;
    EXPECT_EQ(f.usage().evicted, 0) << mode;
    f.engine.check_integrity();
    soil(f.engine, *World::shared().backend);
    const RunResult again = f.run({0, 1, 2}, mode, 2);
    EXPECT_EQ(again.responses[0].logits, expected) << mode;
    EXPECT_EQ(again.counters.isolated, 0) << mode;
    EXPECT_GT(f.usage().promoted, 0) << mode;
    f.engine.flush();
    EXPECT_EQ(f.usage().host.total(), 0) << mode;
  }
}

TEST(Tiers, HostMemoryOverflowsToDisk) {
  Folder folder;
  CacheOptions options = on_disk(folder);
  options.host_bytes = 4000;
  Fixture f(with(options));
  f.run({0, 1, 2});
  evict_all(f.engine);
  const CacheUsage usage = f.usage();
  EXPECT_GT(usage.host.entries, 0);
  EXPECT_LE(usage.host.total(), 4000);
  EXPECT_GT(usage.disk.entries, 0);
  EXPECT_EQ(usage.host.entries + usage.disk.entries, 6);
  EXPECT_EQ(static_cast<int64_t>(folder.files().size()), usage.disk.entries);
  EXPECT_EQ(usage.evicted, 0);
  const RunResult again = f.run({2, 1, 0});
  EXPECT_EQ(again.counters.isolated, 0);
  EXPECT_EQ(again.responses[0].logits, fresh({2, 1, 0}).logits);
  f.engine.flush();
  EXPECT_TRUE(folder.files().empty());
}

TEST(Tiers, WithoutLowerTiersEvictionForgets) {
  Fixture f;
  f.run({0});
  evict_all(f.engine);
  EXPECT_EQ(f.usage().entries, 0);
  EXPECT_EQ(f.usage().evicted, 2);
  EXPECT_EQ(f.usage().demoted, 0);
}

// Promotion needs room on the device: where pins leave none, it is a miss.
TEST(Tiers, PromotionStaysWithinTheBudget) {
  const int64_t one = Fixture().residue_bytes(0);
  Fixture f(with({.budget_bytes = one, .host_bytes = 1 << 30}));
  f.run({0});
  f.run({5});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(f.run({0, 5}).responses[0].logits, fresh({0, 5}).logits);
    EXPECT_LE(f.usage().device.total(), one);
    f.engine.check_integrity();
  }
}

TEST(Tiers, RestartFromDiskGivesTheVeryLogits) {
  for (const char* mode :
       {kMode, "prefix", "addition_rope_seam", "transition_rope:rotate=built_at"}) {
    Folder folder;
    std::vector<double> before;
    {
      Fixture f(with(on_disk(folder)));
      f.run({0, 1, 2}, mode);
      before = f.run({1, 0, 2}, mode).responses[0].logits;
      f.engine.persist();
      f.engine.persist();  // nothing left to do
    }
    Fixture f(with(on_disk(folder)));
    EXPECT_TRUE(f.usage().warnings.empty()) << f.usage().warnings[0];
    EXPECT_EQ(f.usage().device.total(), 0);
    const RunResult again = f.run({1, 0, 2}, mode);
    EXPECT_EQ(again.responses[0].logits, before) << mode;
    EXPECT_EQ(again.counters.isolated, 0) << mode;
    if (mode == std::string("prefix")) {
      EXPECT_EQ(again.counters.prefix, segment(0).size() + segment(1).size() + segment(2).size());
    }
    f.engine.flush();
    EXPECT_TRUE(folder.files().empty());
  }
}

// Latent attention, every kind of operator, both dtypes.
TEST(Tiers, EveryArchitectureSurvivesARestart) {
  int count = 0;
  for (const std::string& name : model_names()) {
    if (!name.ends_with("-tiny") || spec_named(name).hidden > 256) continue;
    World world(spec_named(name), ++count % 2 == 0);
    Folder folder;
    const EngineOptions options{.pools = {8, 8, 32, 16}, .cache = on_disk(folder)};
    std::vector<std::vector<double>> before, after;
    for (const bool restarted : {false, true}) {
      Fixture f(options, world);
      for (const char* mode : {kMode, "prefix"}) {
        const RunResult result = f.run({0, 1}, mode);
        (restarted ? after : before).push_back(result.responses[0].logits);
        EXPECT_EQ(result.counters.isolated + result.counters.prefix == 0,
                  restarted ? mode == std::string(kMode) : mode == std::string("prefix"));
      }
      f.engine.persist();
    }
    EXPECT_EQ(before, after) << name;
  }
  EXPECT_EQ(count, 10);
}

TEST(Tiers, AnotherModelsFilesAreLeftAlone) {
  Folder folder;
  {
    Fixture f(with(on_disk(folder)));
    f.run({0, 1});
    f.engine.persist();
  }
  World other(hybrid(), true);
  {
    Fixture f(with(on_disk(folder)), other);
    EXPECT_EQ(f.usage().warning_count, 4);
    EXPECT_NE(f.usage().warnings[0].find("another model"), std::string::npos);
    EXPECT_EQ(f.run({0, 1}).counters.isolated, segment(0).size() + segment(1).size());
    f.engine.flush();
  }
  EXPECT_EQ(folder.files().size(), 4u);
  CacheOptions compact = on_disk(folder);
  compact.format = ResidueFormat::compact;
  EXPECT_EQ(Fixture(with(compact)).usage().entries, 0);
  EXPECT_EQ(Fixture(with(on_disk(folder))).usage().entries, 4);
}

// Damage before the start: in the header it is seen at once, in the payload when it is read.
TEST(Tiers, DamagedFilesAreIgnoredWithAWarning) {
  const std::vector<double> expected = fresh({0}).logits;
  Folder folder;
  {
    Fixture f(with(on_disk(folder)));
    f.run({0});
    f.engine.persist();
  }
  const std::vector<std::string> files = folder.files();
  std::vector<std::string> sound;
  for (const std::string& path : files) {
    std::ifstream file(path, std::ios::binary);
    sound.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::mt19937 rng(5);
  for (int round = 0; round < 60; ++round) {
    for (size_t i = 0; i < files.size(); ++i) {
      std::string bytes = sound[i];
      if (i == round % files.size()) {
        if (round % 10 == 0)
          bytes.resize(rng() % bytes.size());
        else
          bytes[rng() % (round % 3 ? 400 : bytes.size())] ^= static_cast<char>(1 << rng() % 8);
      }
      std::ofstream(files[i], std::ios::binary | std::ios::trunc) << bytes;
    }
    Fixture f(with(on_disk(folder)));
    const RunResult result = f.run({0});
    EXPECT_EQ(result.responses[0].logits, expected);
    EXPECT_EQ(result.counters.isolated, segment(0).size());
    EXPECT_EQ(f.usage().warning_count, 1);
    EXPECT_EQ(f.usage().warnings[0].find('\n'), std::string::npos);
    EXPECT_TRUE(f.has(0));  // computed again
  }
}

TEST(Tiers, HalfWrittenAndForeignFilesAreNotTaken) {
  Folder folder;
  {
    Fixture f(with(on_disk(folder)));
    f.run({0});
    f.engine.persist();
  }
  const std::string first = folder.files()[0], part = first + ".part-1";
  fs::rename(first, part);
  std::ofstream(folder.path() + "/notes.txt") << "mine";
  std::ofstream(folder.path() + "/x.residue") << std::string(500, 'x');
  std::ofstream(folder.path() + "/short.residue") << "8 bytes!";
  const std::string recent = str(folder.path(), "/", std::string(64, 'a'), "-kv.residue.part-1");
  std::ofstream(recent) << "of an entry that was last used long ago";
  set_time(recent, 1);
  const std::string old_notes = folder.path() + "/a.residue.part-notes.txt";
  std::ofstream(old_notes) << "mine too";
  fs::last_write_time(old_notes, fs::file_time_type::clock::now() - std::chrono::hours(2));
  fs::create_directory(folder.path() + "/y.residue");
  {
    Fixture f(with(on_disk(folder)));
    EXPECT_EQ(f.usage().entries, 1);
    EXPECT_EQ(f.usage().warning_count, 3);
    EXPECT_TRUE(fs::exists(part) && fs::exists(recent));  // somebody may be writing them
  }
  EXPECT_TRUE(fs::exists(folder.path() + "/notes.txt"));
  EXPECT_TRUE(fs::exists(folder.path() + "/x.residue"));
  EXPECT_TRUE(fs::exists(folder.path() + "/short.residue"));
  EXPECT_TRUE(fs::exists(old_notes));
}

TEST(Tiers, ACorpusLongerThanAPromptIsWarmedAndKept) {
  ModelSpec spec = hybrid();
  spec.max_positions = 64;
  World world(spec);
  Folder folder;
  std::vector<Tokens> corpus;
  for (int i = 0; i < 8; ++i) corpus.push_back(segment(i));
  {
    Fixture f(with(on_disk(folder)), world);
    f.engine.warm(corpus, mode_named(kMode));
    f.engine.persist();
    EXPECT_THROW(f.engine.warm({tokens_of(64, 9)}, mode_named(kMode)), Error);
  }
  EXPECT_EQ(folder.files().size(), 16);  // K, V and an operator each
  Fixture f(with(on_disk(folder)), world);
  EXPECT_EQ(f.usage().warning_count, 0) << f.usage().warnings[0];
  EXPECT_EQ(f.usage().entries, 16);
}

TEST(Tiers, TheDiskKeepsTheLatest) {
  Folder folder;
  int64_t two;
  {
    Fixture f(with(on_disk(folder)));
    f.run({0, 1});
    f.engine.persist();
    two = f.usage().disk.total();
    f.engine.flush();
  }
  {
    Fixture f(with(on_disk(folder, two)));
    for (int i = 0; i < 6; ++i) {
      f.run({i});
      f.engine.persist();
      EXPECT_LE(f.usage().disk.total(), two);
      f.engine.check_integrity();
    }
    evict_all(f.engine);
    EXPECT_TRUE(f.has(5));
    EXPECT_FALSE(f.has(0));
  }
  // A smaller limit after a restart drops the oldest files.
  const size_t before = folder.files().size();
  Fixture f(with(on_disk(folder, two / 2)));
  EXPECT_LT(folder.files().size(), before);
  EXPECT_LE(f.usage().disk.total(), two / 2);
}

// Nothing that is older takes the place of a file, whether it was used since it was written or never.
TEST(Tiers, TheLatestOfTheDiskStay) {
  Folder folder;
  int64_t one;
  {
    Fixture f(with(on_disk(folder)));
    f.run({0});
    f.engine.persist();
    one = f.usage().disk.total();
    f.engine.flush();
  }
  ASSERT_EQ(segment(0).size(), 18u);
  for (const bool persists : {true, false}) {
    {
      Fixture f(with(on_disk(folder, one)));
      f.run({0});
      f.engine.persist();
      f.engine.run({{{tokens_of(18, 7), question()}, 1}}, mode_named(kMode));
      f.run({0});
      if (persists)
        f.engine.persist();
      else
        evict_all(f.engine);
    }
    Fixture f(with(on_disk(folder, one)));
    EXPECT_TRUE(f.has(0)) << persists;
    EXPECT_EQ(f.usage().entries, 2);
    f.engine.flush();
  }
}

TEST(Tiers, AFileThatCannotBeRemovedCostsAWarning) {
  Folder folder;
  Fixture f(with(on_disk(folder)));
  f.run({0});
  f.engine.persist();
  const std::string file = folder.files()[0];
  fs::remove(file);
  fs::create_directories(file + "/full");  // in the way
  f.engine.flush();
  ASSERT_EQ(f.usage().warning_count, 1);
  EXPECT_NE(f.usage().warnings[0].find(file + ": cannot remove: "), std::string::npos) << f.usage().warnings[0];
}

TEST(Tiers, ADiskThatFailsCostsWarningsOnly) {
  Folder folder;
  const std::string path = folder.path() + "/gone";
  CacheOptions options{.disk_folder = path, .disk_bytes = 1 << 30};
  Fixture f(with(options));
  f.run({0, 1});
  f.engine.persist();
  fs::remove_all(path);
  evict_all(f.engine);
  EXPECT_EQ(f.run({0, 1}).responses[0].logits, fresh({0, 1}).logits);
  EXPECT_GT(f.usage().warning_count, 0);
  evict_all(f.engine);  // what is new cannot be written
  EXPECT_EQ(f.run({0, 1}).responses[0].logits, fresh({0, 1}).logits);
}

TEST(Tiers, RefusesSettingsThatMakeNoSense) {
  Folder folder;
  std::ofstream(folder.path() + "/file") << "x";
  for (const CacheOptions& options :
       {CacheOptions{.budget_bytes = -1}, CacheOptions{.host_bytes = -1},
        CacheOptions{.host_bytes = INT64_MAX}, CacheOptions{.host_bytes = INT64_MAX, .queue_bytes = INT64_MAX},
        CacheOptions{.disk_folder = folder.path()}, CacheOptions{.seen_keys = 0},
        CacheOptions{.disk_folder = folder.path() + "/file/x", .disk_bytes = 1}})
    EXPECT_THROW(Fixture{with(options)}, Error);
}

// Under way.

// Nothing is written while these requests run: what leaves the device is used from memory, and nobody waits.
TEST(UnderWay, ARequestNeverWaitsForTheDisk) {
  for (const int64_t host_bytes : {0, 4000}) {
    Folder folder;
    SlowDisk disk;
    CacheOptions options = on_slow_disk(folder, disk);
    options.host_bytes = host_bytes;
    options.budget_bytes = 12000;
    Fixture f(with(options));
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(f.run({i}).responses[0].logits, fresh({i}).logits);
      f.engine.check_integrity();
    }
    while (f.engine.evict_one()) f.engine.check_integrity();
    EXPECT_GT(f.usage().writing, 0);
    EXPECT_EQ(f.usage().disk.entries, 0);
    EXPECT_TRUE(folder.files().empty());
    EXPECT_EQ(f.usage().entries, 12);
    for (int i = 0; i < 6; ++i) {
      const RunResult result = f.run({i});
      EXPECT_EQ(result.counters.isolated, 0);
      EXPECT_EQ(result.responses[0].logits, fresh({i}).logits);
      f.engine.check_integrity();
    }
    EXPECT_EQ(f.usage().host_hits, 6);
    EXPECT_EQ(f.usage().dropped, 0);
    disk.go_on();
    evict_all(f.engine);
    EXPECT_EQ(f.usage().writing, 0);
    EXPECT_EQ(f.usage().queued_bytes, 0);
    EXPECT_EQ(f.usage().entries, 12);
    EXPECT_EQ(static_cast<int64_t>(folder.files().size()), f.usage().disk.entries);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(f.run({i}).counters.isolated, 0);
    EXPECT_GT(f.usage().disk_hits, 0);
  }
}

TEST(UnderWay, AFullQueueDropsAndCounts) {
  for (const ResidueFormat format : {ResidueFormat::full, ResidueFormat::compact}) {
    Folder folder;
    SlowDisk disk;
    CacheOptions options = on_slow_disk(folder, disk);
    options.queue_bytes = 9000;
    options.format = format;
    Fixture f(with(options));
    f.run({0, 1, 2, 3, 4, 5});
    while (f.engine.evict_one()) {
      EXPECT_LE(f.usage().queued_bytes, 9000);
      f.engine.check_integrity();
    }
    const CacheUsage usage = f.usage();
    EXPECT_GT(usage.writing, 0);
    EXPECT_GT(usage.dropped, 0);
    EXPECT_EQ(usage.dropped, usage.evicted);
    EXPECT_EQ(usage.entries, usage.writing);
    disk.go_on();
    f.engine.drain();
    EXPECT_EQ(f.usage().disk.entries, usage.writing);
    if (format == ResidueFormat::full) {
      EXPECT_EQ(f.run({0, 1, 2, 3}).responses[0].logits, fresh({0, 1, 2, 3}).logits);
    }
  }
}

TEST(UnderWay, TheEndWaitsForTheDisk) {
  Folder folder;
  SlowDisk disk;
  std::thread later;
  {
    Fixture f(with(on_slow_disk(folder, disk)));
    f.run({0, 1, 2});
    while (f.engine.evict_one()) {
    }
    later = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      disk.go_on();
    });
  }
  later.join();
  EXPECT_EQ(folder.files().size(), 6u);
  Fixture f(with(on_disk(folder)));
  EXPECT_EQ(f.usage().warning_count, 0);
  EXPECT_EQ(f.run({0, 1, 2}).counters.isolated, 0);
}

TEST(UnderWay, FlushLeavesNothingBehind) {
  Folder folder;
  SlowDisk disk;
  Fixture f(with(on_slow_disk(folder, disk)));
  f.run({0, 1, 2});
  while (f.engine.evict_one()) {
  }
  EXPECT_EQ(f.run({1}).counters.isolated, 0);  // on the device again, and being written
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    disk.go_on();
  });
  f.engine.flush();
  later.join();
  EXPECT_TRUE(folder.files().empty());
  EXPECT_EQ(f.usage().entries, 0);
  EXPECT_EQ(f.usage().device.total(), 0);
}

// A folder that holds two residues: of six that leave in a burst the last two stay, though the first are written first.
TEST(UnderWay, TheDiskKeepsTheLatestOfABurst) {
  Folder folder;
  int64_t two;
  {
    Fixture f(with(on_disk(folder)));
    f.run({4, 5});
    f.engine.persist();
    two = f.usage().disk.total();
    f.engine.flush();
  }
  SlowDisk disk;
  CacheOptions options = on_slow_disk(folder, disk);
  options.disk_bytes = two;
  Fixture f(with(options));
  for (int i = 0; i < 6; ++i) f.run({i});
  while (f.engine.evict_one()) f.engine.check_integrity();
  disk.go_on();
  f.engine.drain();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(f.has(i), i >= 4) << i;
  EXPECT_EQ(folder.files().size(), 4u);
  EXPECT_EQ(f.run({4, 5}).counters.isolated, 0);
}

// An answer must not depend on whether the writer has rounded an operator yet.
TEST(UnderWay, FormatsDoNotDependOnTime) {
  for (const ResidueFormat format : {ResidueFormat::T16, ResidueFormat::compact}) {
    std::vector<std::vector<double>> logits;
    for (const bool late : {false, true}) {
      Folder folder;
      SlowDisk disk;
      CacheOptions options = on_slow_disk(folder, disk);
      options.format = format;
      if (!late) disk.go_on();
      Fixture f(with(options));
      f.run({0, 1});
      while (f.engine.evict_one()) {
      }
      if (!late) f.engine.drain();
      EXPECT_EQ(f.usage().writing, late ? 4 : 0);
      logits.push_back(f.run({0, 1}).responses[0].logits);
      disk.go_on();
    }
    EXPECT_EQ(logits[0], logits[1]);
    EXPECT_NE(logits[0], fresh({0, 1}).logits);
  }
}

// Everything through copies that come late, with memory for few: the very bits of a backend that copies at once.
TEST(UnderWay, CopiesMayComeLate) {
  World late(std::make_unique<LateBackend>(reference::make_cpu_backend()), hybrid());
  for (const ResidueFormat format : {ResidueFormat::full, ResidueFormat::compact}) {
    std::vector<std::vector<double>> logits[2];
    for (World* world : {&World::shared(), &late}) {
      Folder folder;
      CacheOptions options = on_disk(folder);
      options.budget_bytes = 14000;
      options.host_bytes = 9000;
      options.queue_bytes = 40000;
      options.format = format;
      Fixture f(with(options), *world);
      std::mt19937 rng(11);
      for (int step = 0; step < 80; ++step) {
        const int a = static_cast<int>(rng() % 6), b = static_cast<int>(rng() % 6);
        logits[world == &late].push_back(
            f.run({a, b}, step % 4 == 3 ? "prefix" : kMode, 1 + step % 2).responses[0].logits);
        f.engine.drain();  // else hits would depend on how fast the disk is
        f.engine.check_integrity();
      }
      EXPECT_GT(f.usage().host_hits, 0);
      EXPECT_GT(f.usage().disk_hits, 0);
      EXPECT_EQ(f.usage().dropped, 0);
    }
    EXPECT_TRUE(logits[0] == logits[1]) << name_of(format);
  }
}

// What is read ahead takes memory that the device still copies from: nothing is written there before it has.
TEST(UnderWay, ReadingAheadSparesCopiesThatComeLate) {
  World late(std::make_unique<LateBackend>(reference::make_cpu_backend()), hybrid());
  const Mode mode = mode_named(kMode);
  Folder folder;
  CacheOptions options = on_disk(folder);
  options.queue_bytes = 40000;
  {
    Fixture f(with(options), late);
    f.run({0, 1});
    f.engine.persist();
  }
  Fixture f(with(options), late);
  for (const int i : {0, 1}) {
    SegmentCache::Ahead ahead = f.engine.wanted({prompt({i}), 1}, mode);
    f.engine.read_ahead(ahead, true);
    f.engine.submit({{prompt({i}), 1}}, mode);
  }
  while (!f.engine.idle()) f.engine.step();
  for (const int i : {0, 1}) EXPECT_EQ(f.run({i}).responses[0].logits, fresh({i}).logits) << i;
  EXPECT_EQ(f.usage().misses, 0);
}

TEST(UnderWay, AWriteThatFailsForgetsTheEntry) {
  Folder folder;
  SlowDisk disk;
  CacheOptions options = on_slow_disk(folder, disk);
  options.disk_folder = folder.path() + "/gone";
  Fixture f(with(options));
  f.run({0, 1});
  while (f.engine.evict_one()) {
  }
  EXPECT_EQ(f.run({0}).counters.isolated, 0);
  fs::remove_all(options.disk_folder);
  disk.go_on();
  f.engine.drain();
  EXPECT_EQ(f.usage().warning_count, 4);
  EXPECT_TRUE(f.has(0));
  EXPECT_FALSE(f.has(1));
  f.engine.check_integrity();
}

// Which files a small folder keeps after a restart follows the last use, not the writing, and tells uses of the same
// moment apart.
TEST(Tiers, ARestartRemembersTheLastUse) {
  Folder folder;
  int64_t bytes;
  {
    Fixture f(with(on_disk(folder)));
    for (int i = 0; i < 4; ++i) f.run({i});
    f.engine.persist();
    bytes = f.usage().disk.total();
    f.run({1});  // written before 2 and 3
    f.run({0});
  }
  Fixture f(with(on_disk(folder, bytes * 2 / 3)));
  EXPECT_TRUE(f.has(0) && f.has(1));
  EXPECT_FALSE(f.has(2));
}

TEST(Tiers, AFileThatSomebodyRemovedIsForgotten) {
  Folder folder;
  Fixture f(with(on_disk(folder)));
  f.run({0});
  evict_all(f.engine);
  for (const std::string& file : folder.files()) fs::remove(file);
  EXPECT_EQ(f.run({0}).responses[0].logits, fresh({0}).logits);
  EXPECT_EQ(f.usage().warning_count, 1);
  evict_all(f.engine);
  f.engine.flush();
  f.run({0});
  evict_all(f.engine);
  EXPECT_EQ(folder.files().size(), 2u);
}

// Between batches, so that the next one need not wait for copies: as much as the last one took, up to a share.
TEST(Tiers, RoomIsMadeAhead) {
  PoolSizes pools{.state_slots = 8, .operator_slots = 16, .pages = 96, .page_size = 16};
  Fixture f(with({.host_bytes = 1 << 30}, pools));
  for (int i = 0; i < 24; ++i) f.run({i});
  EXPECT_EQ(f.usage().device.operators + f.usage().device.tails, 15 * f.engine.pools().operator_bytes());
  for (int i = 0; i < 24; ++i) EXPECT_TRUE(f.has(i));
  Fixture without(with({}, pools));
  for (int i = 0; i < 24; ++i) without.run({i});
  EXPECT_EQ(without.usage().device.operators + without.usage().device.tails,
            16 * without.engine.pools().operator_bytes());
}

double relative(const std::vector<double>& x, const std::vector<double>& y) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return std::sqrt(difference / norm);
}

// The state that three residues compose to, after they were out in each format.
TEST(Tiers, CompactFormsStayClose) {
  for (const ResidueFormat format :
       {ResidueFormat::full, ResidueFormat::T16, ResidueFormat::compact}) {
    Fixture f(with({.host_bytes = 1 << 30, .format = format}));
    const auto run = [&] {
      return f.engine.run({{prompt({0, 1, 2}), 1}}, mode_named(kMode), {.keep_state = true});
    };
    const Response expected = run().responses[0];
    const int64_t device = f.usage().device.operators;
    evict_all(f.engine);
    EXPECT_EQ(f.usage().host.operators < device, format != ResidueFormat::full);
    const RunResult again = run();
    EXPECT_EQ(again.counters.isolated, 0);
    double state = 0;
    for (size_t l = 0; l < expected.state_before_question.size(); ++l)
      if (!expected.state_before_question[l].empty())
        state = std::max(state, relative(again.responses[0].state_before_question[l],
                                         expected.state_before_question[l]));
    const double logits = relative(again.responses[0].logits, expected.logits);
    std::cout << name_of(format) << ": state error " << state << ", logits " << logits << "\n";
    const double bound = format == ResidueFormat::full ? 0 : 1e-3;
    EXPECT_LE(state, bound) << name_of(format);
    EXPECT_LE(logits, bound) << name_of(format);
    // Once more costs nothing more.
    evict_all(f.engine);
    EXPECT_EQ(run().responses[0].logits, again.responses[0].logits);
  }
}

// Any sequence of uses, against a cache of a few lines.

class Oracle {
 public:
  Oracle(const Fixture& f, int64_t budget, bool second_touch)
      : f_(f), budget_(budget), second_touch_(second_touch) {}

  using Half = std::pair<int, int>;  // segment; head of the operator, or −1: K, V
  static Half kv(int i) { return {i, -1}; }

  void use(const std::vector<int>& segments, int head, bool warm) {
    std::vector<std::pair<int, bool>> builds;  // segment, admitted
    for (const int i : segments) {
      if (std::any_of(builds.begin(), builds.end(), [&](const auto& b) { return b.first == i; }))
        continue;
      const bool hit = used_.count(kv(i)) && used_.count({i, head});
      if (hit) used_[kv(i)] = ++clock_, used_[{i, head}] = ++clock_;
      const bool seen = !second_touch_ || !seen_.insert(i).second;
      if (!hit) builds.emplace_back(i, seen || warm);
    }
    for (const auto& [i, admitted] : builds)
      if (admitted) insert(i, head);
  }
  void evict() {
    if (!used_.empty()) used_.erase(oldest({}));
  }
  void flush() { used_.clear(), seen_.clear(); }

  void expect_equal() const {
    RC_ASSERT(f_.usage().device.total() == bytes());
    RC_ASSERT(f_.usage().entries == static_cast<int64_t>(used_.size()));
    for (int i = 0; i < 6; ++i)
      for (const int head : {4, 8})
        RC_ASSERT(f_.has(i, head) == (used_.count(kv(i)) && used_.count({i, head})));
  }

 private:
  int64_t bytes(Half half) const {
    const int64_t op = f_.engine.pools().operator_bytes();
    return half.second >= 0 ? op : f_.residue_bytes(half.first) - op;
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [half, used] : used_) sum += bytes(half);
    return sum;
  }
  Half oldest(const std::set<Half>& spared) const {
    Half found{-1, -1};
    int64_t first = INT64_MAX;
    for (const auto& [half, used] : used_)
      if (!spared.count(half) && used < first) first = used, found = half;
    return found;
  }
  void insert(int i, int head) {
    std::vector<Half> fresh;
    std::set<Half> spared;
    int64_t cost = 0;
    for (const Half& half : {kv(i), Half{i, head}}) {
      if (used_.count(half)) {
        used_[half] = ++clock_;
        spared.insert(half);
      } else {
        fresh.push_back(half);
        cost += bytes(half);
      }
    }
    if (cost > budget_) return;
    while (bytes() + cost > budget_) {
      const Half victim = oldest(spared);
      if (victim.first < 0) return;
      used_.erase(victim);
    }
    for (const Half& half : fresh) used_[half] = ++clock_;
  }

  const Fixture& f_;
  int64_t budget_;
  bool second_touch_;
  int64_t clock_ = 0;
  std::map<Half, int64_t> used_;
  std::set<int> seen_;
};

TEST(SegmentCache, KeepsWhatTheOracleKeepsAndNeverExceedsItsBudget) {
  EXPECT_TRUE(rc::check("same entries as a plain LRU, whatever happens", [] {
    const int64_t budget = *rc::gen::inRange<int64_t>(1, 40000);
    const bool second = *rc::gen::arbitrary<bool>();
    Fixture f(with({.budget_bytes = budget,
                    .admission = second ? Admission::second_touch : Admission::always}));
    Oracle oracle(f, budget, second);
    const int steps = *rc::gen::inRange(1, 25);
    for (int step = 0; step < steps; ++step) {
      const int action = *rc::gen::inRange(0, 12);
      const auto segments = *rc::gen::container<std::vector<int>>(3, rc::gen::inRange(0, 6));
      const int head = *rc::gen::element(4, 8);
      const Mode mode = mode_named("transition_rope:head=" + std::to_string(head));
      if (action == 0) {
        f.engine.flush();
        oracle.flush();
      } else if (action <= 2) {
        f.engine.evict_one();
        oracle.evict();
      } else if (action == 3) {
        f.engine.warm({segment(segments[0]), segment(segments[1])}, mode);
        oracle.use({segments[0], segments[1]}, head, true);
      } else {
        f.engine.run({{prompt(segments), action % 2 + 1}}, mode);
        oracle.use(segments, head, false);
      }
      RC_ASSERT(f.usage().device.total() <= budget);
      f.engine.check_integrity();
      oracle.expect_equal();
    }
  }));
}

// With everything at once: small pools, tiers, prefixes, batches, damage. Answers never change.
TEST(SegmentCache, AnswersNeverDependOnWhatIsCached) {
  std::map<std::pair<std::string, std::vector<int>>, std::vector<double>> answers;
  const auto answer = [&](const std::string& mode, const std::vector<int>& segments) {
    auto& logits = answers[{mode, segments}];
    if (logits.empty()) logits = fresh(segments, mode).logits;
    return logits;
  };
  EXPECT_TRUE(rc::check("bit-equal answers, limits hold", [&] {
    Folder folder;
    CacheOptions options;
    options.budget_bytes = *rc::gen::inRange<int64_t>(1000, 40000);
    options.host_bytes = *rc::gen::element<int64_t>(0, 6000, 30000);
    if (*rc::gen::arbitrary<bool>()) {
      options.disk_folder = folder.path();
      options.disk_bytes = *rc::gen::element<int64_t>(5000, 50000);
    }
    options.queue_bytes = *rc::gen::element<int64_t>(0, 5000, 100000);
    options.admission = *rc::gen::element(Admission::always, Admission::second_touch);
    const PoolSizes pools{.state_slots = *rc::gen::inRange<int64_t>(6, 9),
                          .operator_slots = *rc::gen::inRange<int64_t>(4, 8),
                          .pages = *rc::gen::inRange<int64_t>(28, 40),
                          .page_size = 16};
    Fixture f(with(options, pools));
    const int steps = *rc::gen::inRange(1, 20);
    for (int step = 0; step < steps; ++step) {
      const int action = *rc::gen::inRange(0, 12);
      const auto a = *rc::gen::container<std::vector<int>>(2, rc::gen::inRange(0, 5));
      const auto b = *rc::gen::container<std::vector<int>>(2, rc::gen::inRange(0, 5));
      const std::string mode =
          *rc::gen::element<std::string>(kMode, "prefix", "addition_rope_seam");
      if (action == 0) {
        f.engine.flush();
      } else if (action == 1) {
        f.engine.evict_one();
      } else if (action == 2) {
        f.engine.warm({segment(a[0])}, mode_named(mode));
      } else if (action == 3 && !options.disk_folder.empty()) {
        f.engine.persist();
        const auto files = folder.files();
        if (!files.empty()) std::ofstream(files[0], std::ios::app) << "x";
      } else if (action <= 5) {
        const RunResult result = f.engine.run({{prompt(a), 1}, {prompt(b), 2}}, mode_named(mode));
        RC_ASSERT(result.responses[0].logits == answer(mode, a));
        RC_ASSERT(result.responses[1].logits == answer(mode, b));
      } else {
        RC_ASSERT(f.run(a, mode).responses[0].logits == answer(mode, a));
      }
      f.engine.check_integrity();
    }
  }));
}

}  // namespace
}  // namespace hypic
