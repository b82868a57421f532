// The laws of exact reuse, on both CPU backends, and the faults of the published code that break
// them.
#include "serving/engine.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <memory>
#include <random>

#include "reference/cpu_backend.h"

namespace hypic {
namespace {

// A model with the named kinds of layers, small enough for many runs.
ModelSpec spec_of(std::vector<LayerKind> layers) {
  ModelSpec spec = spec_named("qwen3.5-tiny");
  spec.name = "test";
  spec.layers = std::move(layers);
  spec.hidden = 48;
  spec.ffn = 64;
  spec.vocabulary = 256;
  spec.attention = {4, 2, 16, 8, 1e4, true};
  spec.linear = {Family::gated_delta_net, 2, 4, 16, 8, 4, Activation::silu};
  return spec;
}

const std::vector<LayerKind> kHybrid = {LayerKind::linear, LayerKind::linear, LayerKind::attention,
                                        LayerKind::linear, LayerKind::attention};

struct Fixture {
  explicit Fixture(EngineOptions options = {}, std::vector<LayerKind> layers = kHybrid,
                   bool wide = true)
      : backend(wide ? reference::make_cpu64_backend() : reference::make_cpu_backend()),
        model(Model::random(*backend, spec_of(std::move(layers)), 3)),
        engine(model, options) {}
  ~Fixture() { engine.check_integrity(); }

  Response run(const std::vector<Tokens>& segments, const std::string& mode, int max_tokens = 1) {
    return engine.run({{segments, max_tokens}}, mode_named(mode), {.keep_state = true})
        .responses[0];
  }

  std::unique_ptr<Backend> backend;
  Model model;
  Engine engine;
};

Tokens random_tokens(int n, int seed) {
  std::mt19937 rng(seed);
  Tokens tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % 256);
  return tokens;
}

// Three segments and a question.
std::vector<Tokens> prompt() {
  return {random_tokens(19, 1), random_tokens(33, 2), random_tokens(24, 3), random_tokens(7, 4)};
}

double relative(const std::vector<double>& x, const std::vector<double>& y) {
  EXPECT_EQ(x.size(), y.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

TEST(Engine, WholeChunkedAndTokenByTokenAgreeBitForBit) {
  const Tokens all = random_tokens(70, 5);
  std::vector<double> whole;
  for (const int max_rows : {1000, 64, 13, 1}) {
    Fixture f({.max_rows = max_rows});
    const RunResult result = f.engine.run({{{all}, 1}}, mode_named("full"));
    if (whole.empty()) whole = result.responses[0].logits;
    EXPECT_EQ(result.responses[0].logits, whole) << "max_rows " << max_rows;
    EXPECT_EQ(static_cast<int>(result.tables.size()), (70 + max_rows - 1) / max_rows);
  }
}

TEST(Engine, ReuseIsChunkedBitForBit) {
  for (const char* mode : {"transition_rope_seam", "two_sided_seam", "addition_rope_seam"}) {
    std::vector<double> whole;
    for (const int max_rows : {1000, 29, 8}) {
      Fixture f({.max_rows = max_rows});
      const Response response = f.run(prompt(), mode);
      if (whole.empty()) whole = response.logits;
      EXPECT_EQ(response.logits, whole) << mode << ", max_rows " << max_rows;
    }
  }
}

TEST(Engine, DecodeIsPrefillOfTheLongerPrompt) {
  for (const char* mode : {"full", "prefix", "transition_rope_seam"}) {
    Fixture f;
    std::vector<Tokens> segments = prompt();
    const Tokens tokens = f.run(segments, mode, 5).tokens;
    ASSERT_EQ(tokens.size(), 5u);
    for (const int32_t token : tokens) {
      EXPECT_EQ(f.run(segments, mode).tokens[0], token) << mode;
      segments.back().push_back(token);
    }
  }
}

TEST(Engine, BatchedRequestsAreThoseAloneAndShareTheirMisses) {
  const auto a = prompt();
  const std::vector<Tokens> b = {a[1], a[0], random_tokens(9, 8)}, c = {random_tokens(1, 9)};
  for (const Mode& mode : modes()) {
    Fixture together;
    const RunResult batch = together.engine.run({{a, 3}, {b, 2}, {c, 4}}, mode);
    int i = 0;
    for (const auto& [segments, n] : {std::pair{a, 3}, {b, 2}, {c, 4}}) {
      Fixture alone;
      const Response response = alone.run(segments, mode.name, n);
      EXPECT_EQ(batch.responses[i].logits, response.logits) << mode.name << " request " << i;
      EXPECT_EQ(batch.responses[i].tokens, response.tokens) << mode.name << " request " << i;
      ++i;
    }
    if (mode.reuse == Reuse::segments) {
      EXPECT_EQ(batch.counters.isolated, 19 + 33 + 24) << mode.name;
    }
  }
}

// Any hits and misses: what is cached never changes the result.
TEST(Engine, PartlyColdIsAllPrefilledFirstBitForBit) {
  for (const Mode& mode : modes()) {
    if (mode.reuse != Reuse::segments) continue;
    Fixture cold;
    const std::vector<double> logits = cold.run(prompt(), mode.name).logits;
    for (int hits = 1; hits < 8; ++hits) {
      Fixture f;
      for (int i = 0; i < 3; ++i)
        if (hits >> i & 1) f.engine.warm({prompt()[i]}, mode);
      const RunResult result = f.engine.run({{prompt(), 1}}, mode);
      EXPECT_EQ(result.responses[0].logits, logits) << mode.name << ", hits " << hits;
      EXPECT_EQ(result.counters.jumps, 3);
      EXPECT_EQ(result.counters.isolated == 0, hits == 7);
    }
  }
}

TEST(Engine, PrefixIsFullBitForBit) {
  Fixture f;
  const std::vector<double> full = f.run(prompt(), "full").logits;
  EXPECT_EQ(f.run(prompt(), "prefix").logits, full);
  const RunResult warm = f.engine.run({{prompt(), 1}}, mode_named("prefix"));
  EXPECT_EQ(warm.responses[0].logits, full);
  EXPECT_EQ(warm.counters.prefix, 19 + 33 + 24);
  EXPECT_EQ(warm.counters.computed(), 7);
  // Only the first two segments match.
  std::vector<Tokens> other = prompt();
  other[2] = random_tokens(24, 77);
  const RunResult partly = f.engine.run({{other, 1}}, mode_named("prefix"), {.keep_state = true});
  EXPECT_EQ(partly.counters.prefix, 19 + 33);
  const Response again = f.run(other, "full");
  EXPECT_EQ(partly.responses[0].logits, again.logits);
  EXPECT_EQ(partly.responses[0].state_before_question, again.state_before_question);
}

// The recurrence of layer 0 sees the same inputs as in full context once the seam covers the
// convolution.
TEST(Engine, LayerZeroStateIsExactIfAndOnlyIfTheSeamCoversTheWindow) {
  for (int h = 0; h <= 8; ++h) {
    Fixture f;
    const auto full = f.run(prompt(), "full").state_before_question[0];
    const auto reused = f.run(prompt(), str("transition_rope:head=", h)).state_before_question[0];
    const double error = relative(reused, full);
    if (h >= 3) {
      EXPECT_LE(error, 1e-12) << "h = " << h;
    } else {
      EXPECT_GT(error, 1e-4) << "h = " << h;
    }
  }
}

TEST(Engine, SeamsThatCoverEverySegmentAreFull) {
  for (const Mode& mode : modes()) {
    if (mode.reuse != Reuse::segments) continue;
    Fixture f;
    const std::vector<double> full = f.run(prompt(), "full").logits;
    EXPECT_EQ(f.run(prompt(), mode.name + ":head=33:tail=0").logits, full) << mode.name;
    EXPECT_EQ(f.run(prompt(), mode.name + ":head=20:tail=13").logits, full) << mode.name;
  }
}

TEST(Engine, OneCachedSegmentAndAQuestionIsFull) {
  for (const bool wide : {true, false}) {
    Fixture f({}, kHybrid, wide);
    const std::vector<Tokens> segments = {random_tokens(40, 1), random_tokens(6, 2)};
    const std::vector<double> full = f.run(segments, "full").logits;
    for (const char* mode : {"transition", "transition_rope_seam", "two_sided_seam"}) {
      f.engine.warm({segments[0]}, mode_named(mode));
      EXPECT_LE(relative(f.run(segments, mode).logits, full), wide ? 1e-12 : 1e-5) << mode;
    }
  }
}

// With one layer a segment's inputs do not depend on its context, so reuse is exact to the last
// logit.
TEST(Engine, OneLayerModelsReuseExactly) {
  Fixture attention({}, {LayerKind::attention});
  for (const char* mode : {"transition_rope", "transition_rope_seam", "two_sided_seam"})
    EXPECT_LE(
        relative(attention.run(prompt(), mode).logits, attention.run(prompt(), "full").logits),
        1e-12);
  EXPECT_GT(relative(attention.run(prompt(), "transition").logits,
                     attention.run(prompt(), "full").logits),
            1e-4);

  Fixture linear({}, {LayerKind::linear});
  const std::vector<double> full = linear.run(prompt(), "full").logits;
  for (const char* mode : {"transition_rope:head=3", "transition_rope_seam", "two_sided_seam"})
    EXPECT_LE(relative(linear.run(prompt(), mode).logits, full), 1e-12) << mode;
  for (const char* mode : {"addition_rope_seam", "last_block", "zero_state"})
    EXPECT_GT(relative(linear.run(prompt(), mode).logits, full), 1e-4) << mode;
}

TEST(Engine, BuiltAtReproducesFirstUsePositions) {
  Fixture f({}, {LayerKind::attention});
  const auto segments = prompt();
  // First used where it is used again: positions agree, so K need no rotation.
  f.run(segments, "transition_rope:rotate=built_at");
  const std::vector<double> full = f.run(segments, "full").logits;
  EXPECT_LE(relative(f.run(segments, "transition_rope:rotate=built_at").logits, full), 1e-12);
  const std::vector<Tokens> moved = {segments[1], segments[0], segments[2], segments[3]};
  EXPECT_GT(
      relative(f.run(moved, "transition_rope:rotate=built_at").logits, f.run(moved, "full").logits),
      1e-4);
}

TEST(Engine, AnySegmentsAndSeams) {
  rc::check("finite, integrity, partly cold = warm", [] {
    const int count = *rc::gen::inRange(0, 5);
    std::vector<Tokens> segments;
    for (int i = 0; i < count; ++i)  // few seeds: repeated segments are common
      segments.push_back(random_tokens(*rc::gen::inRange(0, 20), *rc::gen::inRange(0, 3)));
    segments.push_back(random_tokens(*rc::gen::inRange(1, 4), 50));
    Mode mode = *rc::gen::elementOf(modes());
    mode.head = *rc::gen::inRange(0, 12);
    mode.tail = *rc::gen::inRange(0, 12);
    const int32_t max_rows = *rc::gen::inRange(12, 90);
    Fixture cold({.max_rows = max_rows}), warm;
    const RunResult first = cold.engine.run({{segments, 2}}, mode);
    for (const double x : first.responses[0].logits) RC_ASSERT(std::isfinite(x));
    if (mode.reuse == Reuse::segments) warm.engine.warm(segments, mode);
    const RunResult second = warm.engine.run({{segments, 2}}, mode);
    RC_ASSERT(first.responses[0].logits == second.responses[0].logits);
    RC_ASSERT(first.responses[0].tokens == second.responses[0].tokens);
    if (mode.reuse == Reuse::segments) RC_ASSERT(second.counters.isolated == 0);
    cold.engine.check_integrity();
    cold.engine.flush();
    cold.engine.check_integrity();
  });
}

TEST(Engine, RefusesBadRequestsAndKeepsNothingOfThem) {
  Fixture f({.pools = {.state_slots = 4, .operator_slots = 2, .pages = 6, .page_size = 16}});
  const auto refused = [&](const std::vector<Tokens>& segments, const char* what,
                           int max_tokens = 1) {
    try {
      f.run(segments, "transition_rope_seam", max_tokens);
      ADD_FAILURE() << "accepted; expected: " << what;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
    f.engine.check_integrity();
  };
  refused({}, "question");
  refused({random_tokens(20, 1), {}}, "question");
  refused({{0, 256}}, "vocabulary");
  refused({{-1}}, "vocabulary");
  refused({{1}}, "max_tokens", 0);
  refused({{1}}, "positions", 1 << 30);
  refused(prompt(), "free");  // three residues, two operator slots
  refused({random_tokens(40, 1), random_tokens(60, 2)}, "K, V page");
}

// Each fault of the published code breaks a law above.

TEST(Faults, SeamCountedTwiceBreaksTheLayerZeroLaw) {
  const auto error = [](bool fault) {
    Fixture f({.faults = {.seam_counted_twice = fault}});
    return relative(f.run(prompt(), "transition_rope_seam").state_before_question[0],
                    f.run(prompt(), "full").state_before_question[0]);
  };
  EXPECT_LE(error(false), 1e-12);
  EXPECT_GT(error(true), 1e-3);
}

TEST(Faults, WarmUpWithoutStateDiffersFromACold) {
  const auto differs = [](bool fault) {
    Fixture warm({.faults = {.warm_without_state = fault}}), cold;
    warm.engine.warm({prompt()[0]}, mode_named("transition_rope_seam"));
    return warm.run(prompt(), "transition_rope_seam").logits !=
           cold.run(prompt(), "transition_rope_seam").logits;
  };
  EXPECT_FALSE(differs(false));
  EXPECT_TRUE(differs(true));
}

TEST(Faults, ResiduesBuiltInContextRememberWhoAskedFirst) {
  const auto differs = [](bool fault) {
    const std::vector<Tokens> first = prompt();
    const std::vector<Tokens> second = {random_tokens(21, 60), first[1], first[3]};
    Fixture used({.faults = {.built_in_context = fault}}),
        fresh({.faults = {.built_in_context = fault}});
    used.run(first, "transition_rope");
    return used.run(second, "transition_rope").logits !=
           fresh.run(second, "transition_rope").logits;
  };
  EXPECT_FALSE(differs(false));
  EXPECT_TRUE(differs(true));
}

TEST(Faults, KeysNotRotatedBreakTheOneLayerLaw) {
  const auto error = [](bool fault) {
    Fixture f({.faults = {.keys_not_rotated = fault}}, {LayerKind::attention});
    return relative(f.run(prompt(), "transition_rope").logits, f.run(prompt(), "full").logits);
  };
  EXPECT_LE(error(false), 1e-12);
  EXPECT_GT(error(true), 1e-4);
}

TEST(Faults, AdditionDroppingMissesDiffersFromWarm) {
  const auto differs = [](bool fault) {
    Fixture cold({.faults = {.addition_first_miss = fault}}),
        warm({.faults = {.addition_first_miss = fault}});
    const auto segments = prompt();
    warm.engine.warm({segments[0], segments[1], segments[2]}, mode_named("addition"));
    return warm.run(segments, "addition").logits != cold.run(segments, "addition").logits;
  };
  EXPECT_FALSE(differs(false));
  EXPECT_TRUE(differs(true));
}

TEST(Faults, WindowLostAfterAJumpBreaksTheOneLayerLaw) {
  const auto error = [](bool fault) {
    Fixture f({.faults = {.window_lost = fault}}, {LayerKind::linear});
    return relative(f.run(prompt(), "transition_rope_seam").logits, f.run(prompt(), "full").logits);
  };
  EXPECT_LE(error(false), 1e-12);
  EXPECT_GT(error(true), 1e-4);
}

}  // namespace
}  // namespace hypic
