// Engines of a tensor-parallel group against one engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <tuple>

#include "reference/cpu_backend.h"
#include "serving/engine.h"
#include "serving/kept_residues.h"
#include "serving/rank_backends.h"
#include "serving/small_model.h"

namespace hypic {
namespace {

const EngineOptions kOptions{.pools = {.state_slots = 8, .operator_slots = 8, .pages = 64, .page_size = 8},
                             .max_rows = 96};

struct Group {
  Group(const ModelSpec& spec, int ranks, const EngineOptions& options = kOptions)
      : backends(reference::make_cpu64_ranks(ranks)),
        model(Model::random(backends.all, spec, 3)),
        engine(model, options) {}
  ~Group() { EXPECT_NO_THROW(engine.check_integrity()); }

  RankBackends backends;
  Model model;
  Engine engine;
};

std::vector<ModelSpec> models() {
  std::vector<ModelSpec> specs;
  for (const char* name :
       {"qwen3.5-tiny", "qwen3.5-35b-a3b-tiny", "qwen3-next-80b-a3b-tiny", "ring-mini-linear-2.0-tiny",
        "kimi-linear-48b-a3b-tiny", "minimax-text-01-tiny", "nemotron-3-nano-30b-a3b-tiny", "granite-4.0-h-350m-tiny",
        "falcon-h1-1.5b-tiny", "olmo-hybrid-7b-tiny"})
    specs.push_back(spec_named(name));
  return specs;
}

std::vector<Tokens> prompt() {
  return {random_tokens(19, 1), random_tokens(33, 2), random_tokens(24, 3), random_tokens(7, 4)};
}

double difference(const std::vector<double>& x, const std::vector<double>& y) {
  if (x.size() != y.size()) return INFINITY;
  double worst = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, std::isnan(x[i]) ? INFINITY : std::abs(x[i] - y[i]));
    size = std::max(size, std::abs(y[i]));
  }
  return size == 0 ? worst : worst / size;
}

void expect_same(const Response& found, const Response& want, const ModelSpec& spec, int ranks,
                 const std::string& what) {
  EXPECT_EQ(found.tokens, want.tokens) << what;
  EXPECT_LE(difference(found.logits, want.logits), 1e-9) << what;
  EXPECT_EQ(found.reused.segments, want.reused.segments) << what;
  EXPECT_EQ(found.reused.prefix, want.reused.prefix) << what;
  // The first rank's heads.
  for (int l = 0; l < spec.layer_count(); ++l) {
    std::vector<double> heads = want.state_before_question[l];
    heads.resize(heads.size() / ranks);
    EXPECT_LE(difference(found.state_before_question[l], heads), 1e-9) << what << ", layer " << l;
  }
}

// Cold, cached, with one segment cached, in another order, each with decode.
TEST(EngineRanks, EveryArchitectureAndEveryModeIsThatOfOneRank) {
  for (const ModelSpec& spec : models()) {
    Group one(spec, 1), two(spec, 2);
    for (const Mode& mode : modes()) {
      // Modes differ in what is planned; of one model all are run.
      if (spec.name != "qwen3.5-35b-a3b-tiny" && mode.name != "prefix" && mode.name != "transition_rope_seam") continue;
      std::vector<Tokens> segments = prompt();
      const auto both = [&](const char* what) {
        const std::vector<Request> request = {{segments, 3}};
        const RunResult want = one.engine.run(request, mode, {.keep_state = true});
        const RunResult found = two.engine.run(request, mode, {.keep_state = true});
        expect_same(found.responses[0], want.responses[0], spec, 2, str(spec.name, " ", mode.name, " ", what));
        EXPECT_EQ(found.counters.computed(), want.counters.computed());
      };
      both("cold");
      both("cached");
      for (Group* group : {&one, &two}) {
        group->engine.flush();
        group->engine.warm({segments[1]}, mode);
      }
      both("partly cached");
      std::swap(segments[0], segments[2]);
      both("in another order");
      for (Group* group : {&one, &two}) group->engine.flush();
    }
  }
}

TEST(EngineRanks, FourRanksShareFewerKeyAndKvHeads) {
  for (const char* name : {"qwen3.5-35b-a3b-tiny", "nemotron-3-nano-30b-a3b-tiny", "olmo-hybrid-7b-tiny"}) {
    const ModelSpec spec = spec_named(name);
    Group one(spec, 1), four(spec, 4);
    for (const char* what : {"cold", "cached"}) {
      const std::vector<Request> request = {{prompt(), 4}};
      const Mode& mode = mode_named("transition_rope_seam");
      const RunResult want = one.engine.run(request, mode, {.keep_state = true});
      expect_same(four.engine.run(request, mode, {.keep_state = true}).responses[0], want.responses[0], spec, 4,
                  str(name, " ", what));
    }
  }
}

// What a server does: prompts join answers, are drawn, are cancelled.
TEST(EngineRanks, StepsAreThoseOfOneRank) {
  const ModelSpec spec = spec_named("qwen3.5-35b-a3b-tiny");
  Group one(spec, 1), two(spec, 2);
  const Mode& mode = mode_named("transition_rope_seam");
  const auto serve = [&](Engine& engine) {
    std::vector<Tokens> tokens(4);
    const auto note = [&](const std::vector<Progress>& progress) {
      for (const Progress& one : progress) tokens.at(one.ticket % 4).push_back(one.token);
    };
    engine.submit({{prompt(), 9}, {.segments = prompt(), .max_tokens = 9, .sampling = {.temperature = 1, .seed = 5}}},
                  mode);
    for (int i = 0; i < 4; ++i) note(engine.step());
    const std::vector<Tokens> other = {random_tokens(40, 8), random_tokens(19, 1), random_tokens(5, 9)};
    const uint64_t cancelled = engine.submit({{other, 20}}, mode)[0].ticket;
    for (int i = 0; i < 3; ++i) note(engine.step());
    engine.cancel(cancelled);
    while (!engine.idle()) note(engine.step());
    return tokens;
  };
  for (int time = 0; time < 2; ++time) EXPECT_EQ(serve(two.engine), serve(one.engine));
}

// Its routes are those of the first rank, also where a hook changes them there.
struct OtherRoutes : RouteHook {
  explicit OtherRoutes(Backend& backend) : backend(backend) {}
  void begin(const ChainTable&) override {}
  void routed(int, const Tensor& experts, const Tensor&) override {
    std::vector<int32_t> other(experts.size());
    for (size_t i = 0; i < other.size(); ++i) other[i] = static_cast<int32_t>(i % experts[1]);
    backend.upload(experts, other.data());
  }
  Backend& backend;
};

TEST(EngineRanks, FollowTheRoutesOfTheFirst) {
  const ModelSpec spec = spec_named("qwen3.5-35b-a3b-tiny");
  Group one(spec, 1), two(spec, 2);
  OtherRoutes of_one(*one.backends.all[0]), of_two(*two.backends.all[0]);
  const Mode& mode = mode_named("full");
  const auto want = one.engine.run({{prompt(), 1}}, mode, {.routes = &of_one}).responses[0].logits;
  EXPECT_LE(difference(two.engine.run({{prompt(), 1}}, mode, {.routes = &of_two}).responses[0].logits, want), 1e-9);
  EXPECT_GT(difference(two.engine.run({{prompt(), 1}}, mode).responses[0].logits, want), 1e-3);
}

struct Before : LayerHooks {
  Before(int layer, std::function<void()> act) : layer(layer), act(std::move(act)) {}
  void before(int l) override {
    if (l == layer) act();
  }
  void after(int) override {}
  int layer;
  std::function<void()> act;
};

TEST(EngineRanks, ARankThatFailsEndsTheRunOnAllAndTheyGoOn) {
  const ModelSpec spec = small_spec();
  const Mode& mode = mode_named("transition_rope_seam");
  Group two(spec, 2);
  const auto want = two.engine.run({{prompt(), 3}}, mode).responses[0];
  Before first_fails(1, [] { throw std::runtime_error("as the test wants"); });
  try {
    two.engine.run({{{random_tokens(30, 11), random_tokens(5, 12)}, 3}}, mode, {.hooks = &first_fails});
    ADD_FAILURE() << "it has not failed";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "as the test wants");
  }
  EXPECT_EQ(two.engine.usage().entries, 0);  // what each had cached by then need not be the same
  EXPECT_EQ(two.engine.run({{prompt(), 3}}, mode).responses[0].logits, want.logits);

  Before second_lost(2, [&] { two.backends.all[1]->leave_group(); });
  EXPECT_THROW(two.engine.run({{prompt(), 3}}, mode, {.hooks = &second_lost}), RankLost);
  const Response again = two.engine.run({{prompt(), 3}}, mode).responses[0];
  EXPECT_EQ(again.logits, want.logits);
  EXPECT_EQ(again.tokens, want.tokens);
}

TEST(EngineRanks, WhatAllRefuseAlikeLeavesTheirCaches) {
  Group two(small_spec(), 2);
  const Mode& mode = mode_named("transition_rope_seam");
  two.engine.run({{prompt(), 1}}, mode);
  const int64_t entries = two.engine.usage().entries;
  EXPECT_GT(entries, 0);
  EXPECT_THROW(two.engine.run({{{{999}}, 1}}, mode), Error);
  EXPECT_THROW(two.engine.submit({{prompt(), 100000}}, mode), OutOfMemory);
  EXPECT_EQ(two.engine.usage().entries, entries);
  EXPECT_EQ(two.engine.run({{prompt(), 1}}, mode).counters.isolated, 0);
}

TEST(EngineRanks, RefuseTiersBelowTheDevice) {
  EngineOptions options = kOptions;
  options.cache.host_bytes = 1 << 20;
  EXPECT_THROW(Group(small_spec(), 2, options), Error);
}

// Says something else whenever it is asked, as time does to what comes from other workers.
class Fickle final : public ResidueSource {
 public:
  Fickle(const Model& model, const std::vector<Tokens>& segments, const Kept& kept)
      : model_(model), segments_(segments), kept_(kept) {}
  std::shared_ptr<Arrival> accept(const Tokens& tokens, int32_t, int32_t) override {
    const auto found = std::find(segments_.begin(), segments_.end(), tokens);
    if (found == segments_.end() || one_in(4)) return nullptr;
    return std::make_shared<Coming>(*this, found - segments_.begin());
  }
  int breaks = -1;  // a rank that places nothing, but throws

 private:
  class Coming final : public Arrival {
   public:
    Coming(Fickle& all, size_t segment)
        : all_(all), segment_(segment), layout_(all.model_, static_cast<int64_t>(all.segments_[segment].size())) {}
    bool comes(int) override { return !fails(); }
    bool fails() override {
      if (all_.one_in(12)) failed_ = true;
      return failed_;
    }
    void place(int layer, const RankPools& at, const Placement& to) override {
      if (at.rank == all_.breaks) throw std::runtime_error("as the test wants");
      const auto bytes = std::span(all_.kept_.bytes[segment_][layer])
                             .subspan(at.rank * layout_.part_size(layer), layout_.part_size(layer));
      unpack(at.backend, at.pools, layout_.sections(layer), bytes, to);
    }

   private:
    Fickle& all_;
    const size_t segment_;
    const StreamLayout layout_;
    std::atomic<bool> failed_ = false;
  };

  bool one_in(uint32_t n) {
    const std::scoped_lock lock(mutex_);
    return bits_() % n == 0;
  }
  const Model& model_;
  const std::vector<Tokens> segments_;
  const Kept& kept_;
  std::mutex mutex_;
  std::mt19937 bits_{5};
};

TEST(EngineRanks, TakeAlikeWhatComesFromElsewhere) {
  const Mode& mode = mode_named("transition_rope_seam");
  std::vector<Tokens> segments = prompt();
  segments.pop_back();
  for (const auto& [spec, ranks, times] :
       {std::tuple(small_spec(), 2, 40), std::tuple(spec_named("qwen3.5-35b-a3b-tiny"), 4, 3)}) {
    Group group(spec, ranks);
    Kept kept(group.model, segments);
    group.engine.warm(segments, mode, {.sink = &kept});
    const Response want = group.engine.run({{prompt(), 2}}, mode).responses[0];
    Fickle source(group.model, segments, kept);
    group.engine.receive_from(&source);
    int64_t computed = 0;
    for (int time = 0; time < times; ++time) {
      group.engine.flush();
      const RunResult got = group.engine.run({{prompt(), 2}}, mode);
      EXPECT_EQ(got.responses[0].logits, want.logits);
      EXPECT_EQ(got.responses[0].tokens, want.tokens);
      computed += got.counters.isolated;
    }
    EXPECT_GT(group.engine.restarts(), 0);
    EXPECT_GT(computed, 0);
    EXPECT_LT(computed, times * (19 + 33 + 24));
    for (source.breaks = ranks - 1; source.breaks >= 0; --source.breaks) {
      group.engine.flush();
      EXPECT_THROW(group.engine.run({{prompt(), 2}}, mode), std::runtime_error);
      EXPECT_TRUE(group.engine.idle());
    }
    EXPECT_EQ(group.engine.run({{prompt(), 2}}, mode).responses[0].logits, want.logits);
    group.engine.receive_from(nullptr);
  }
}

TEST(RankThreads, TellTheCauseAndNotWhoWasLostForIt) {
  const auto backends = reference::make_cpu_ranks(3);
  RankThreads threads({backends[0].get(), backends[1].get(), backends[2].get()});
  for (int failing = 0; failing < 3; ++failing) {
    const auto errors = threads.run([&](int rank) {
      if (rank == failing) throw std::runtime_error("the cause");
      const Buffer x(*backends[rank], DType::f32, {4});
      backends[rank]->fill_zero(x);
      backends[rank]->all_reduce(x);
    });
    EXPECT_FALSE(all_alike(errors));
    try {
      std::rethrow_exception(cause(errors));
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the cause");
    }
  }
  EXPECT_TRUE(all_alike(threads.run([](int) { fail("all alike"); })));
  const auto errors = threads.run([](int) {});
  EXPECT_EQ(cause(errors), nullptr);
}

}  // namespace
}  // namespace hypic
