// The laws of exact reuse, on both CPU backends, and the faults of the published code that break
// them.
#include "serving/engine.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "reference/cpu_backend.h"
#include "serving/small_model.h"

namespace hypic {
namespace {

const std::string kLinear = "linear_attention", kAttention = "full_attention";

// A Qwen3.5 model with the named kinds of layers, small enough for many runs.
ModelSpec spec_of(const std::vector<std::string>& layers) {
  const nlohmann::json config = {
      {"model_type", "qwen3_5_text"},
      {"vocab_size", 256},
      {"hidden_size", 48},
      {"intermediate_size", 64},
      {"num_hidden_layers", layers.size()},
      {"layer_types", layers},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 16},
      {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}},
      {"linear_num_key_heads", 2},
      {"linear_num_value_heads", 4},
      {"linear_key_head_dim", 16},
      {"linear_value_head_dim", 8},
      {"linear_conv_kernel_dim", 4}};
  ModelSpec spec = spec_from_config(config.dump(), "test");
  spec.name = "test";
  return spec;
}

const std::vector<std::string> kHybrid = {kLinear, kLinear, kAttention, kLinear, kAttention};

struct Fixture {
  explicit Fixture(EngineOptions options = {}, const std::vector<std::string>& layers = kHybrid,
                   bool wide = true)
      : Fixture(spec_of(layers), options, wide) {}
  Fixture(ModelSpec spec, EngineOptions options, bool wide = true)
      : backend(wide ? reference::make_cpu64_backend() : reference::make_cpu_backend()),
        model(Model::random(*backend, std::move(spec), 3)),
        engine(model, options) {}
  ~Fixture() { EXPECT_NO_THROW(engine.check_integrity()); }

  Response run(const std::vector<Tokens>& segments, const std::string& mode, int max_tokens = 1) {
    return engine.run({{segments, max_tokens}}, mode_named(mode), {.keep_state = true})
        .responses[0];
  }

  std::unique_ptr<Backend> backend;
  Model model;
  Engine engine;
};

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

TEST(Engine, LogitsAndHostTimesComeOnlyWhenAsked) {
  Fixture f;
  const Mode& mode = mode_named("transition_rope_seam");
  const RunResult quiet = f.engine.run({{.segments = prompt(), .logits = false}}, mode);
  EXPECT_TRUE(quiet.responses[0].logits.empty());
  EXPECT_EQ(quiet.host.match + quiet.host.load + quiet.host.store, 0);
  f.engine.flush();
  const RunResult asked = f.engine.run({{prompt(), 1}}, mode, {.host_times = true});
  EXPECT_EQ(asked.responses[0].logits.size(), 256u);
  EXPECT_EQ(asked.responses[0].tokens, quiet.responses[0].tokens);
  EXPECT_GT(asked.host.match, 0);
  EXPECT_GT(asked.host.load, 0);
  EXPECT_GT(asked.host.store, 0);
}

TEST(Engine, WhatComesBackFromTheHostIsLoad) {
  Fixture f({.cache = {.host_bytes = 1 << 30}});
  const Mode& mode = mode_named("transition_rope_seam");
  const RunResult cold = f.engine.run({{prompt(), 1}}, mode);
  while (f.engine.evict_one()) {
  }
  const RunResult back = f.engine.run({{prompt(), 1}}, mode, {.host_times = true});
  EXPECT_EQ(back.counters.isolated, 0);
  EXPECT_EQ(back.responses[0].logits, cold.responses[0].logits);
  EXPECT_GT(back.host.match, 0);  // the rest of it; what was loaded is taken out
  EXPECT_GT(back.host.load, 0);
}

TEST(BuildStates, AreSharedByBuildsThatNoForwardHoldsTogether) {
  BuildStates states(10);
  EXPECT_EQ(states.next(4), 0);
  EXPECT_EQ(states.next(4), 1);
  EXPECT_EQ(states.next(7), 2);   // rows 8 … 14; row 4, where the first ends, may share its forward
  EXPECT_EQ(states.next(30), 0);  // from row 15
  EXPECT_EQ(states.next(1), 1);   // row 45
  EXPECT_EQ(states.next(1), 2);
  EXPECT_EQ(states.next(1), 3);
  EXPECT_EQ(states.count(), 4);
}

// Many segments, none cached, with few states: the same answers as with many.
TEST(Engine, LongColdPromptsTakeFewStates) {
  std::vector<Tokens> segments;
  for (int i = 0; i < 24; ++i) segments.push_back(random_tokens(9 + i % 5, 10 + i));
  segments.push_back(random_tokens(7, 9));
  std::vector<double> whole;
  for (const auto& [max_rows, states] : {std::pair{8192, 25}, {40, 11}, {12, 6}, {5, 4}}) {
    EngineOptions options;
    options.max_rows = max_rows;
    options.pools.state_slots = states;
    Fixture f(options);
    for (const char* mode : {"transition_rope_seam", "transition_rope_seam:head=3:tail=3", "addition"}) {
      f.engine.flush();
      const RunResult cold = f.engine.run({{segments, 1}}, mode_named(mode));
      EXPECT_EQ(cold.counters.jumps, 24) << mode;
      const RunResult cached = f.engine.run({{segments, 1}}, mode_named(mode));
      EXPECT_EQ(cached.responses[0].logits, cold.responses[0].logits) << mode << ", rows " << max_rows;
      if (mode != std::string("transition_rope_seam")) continue;
      if (whole.empty()) whole = cold.responses[0].logits;
      EXPECT_EQ(cold.responses[0].logits, whole) << "rows " << max_rows;
    }
  }
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
  Fixture attention({}, {kAttention});
  for (const char* mode : {"transition_rope", "transition_rope_seam", "two_sided_seam"})
    EXPECT_LE(
        relative(attention.run(prompt(), mode).logits, attention.run(prompt(), "full").logits),
        1e-12);
  EXPECT_GT(relative(attention.run(prompt(), "transition").logits,
                     attention.run(prompt(), "full").logits),
            1e-4);

  Fixture linear({}, {kLinear});
  const std::vector<double> full = linear.run(prompt(), "full").logits;
  for (const char* mode : {"transition_rope:head=3", "transition_rope_seam", "two_sided_seam"})
    EXPECT_LE(relative(linear.run(prompt(), mode).logits, full), 1e-12) << mode;
  for (const char* mode : {"addition_rope_seam", "last_block", "zero_state"})
    EXPECT_GT(relative(linear.run(prompt(), mode).logits, full), 1e-4) << mode;
}

TEST(Engine, BuiltAtReproducesFirstUsePositions) {
  Fixture f({}, {kAttention});
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
  EXPECT_TRUE(rc::check("finite, integrity, partly cold = warm", [] {
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
  }));
}

TEST(Engine, SampledTokensDependOnTheirSeedAndNotOnTheBatch) {
  const auto a = prompt();
  const std::vector<Tokens> b = {a[1], a[0], random_tokens(9, 8)};
  const Request requests[] = {{a, 6, {.temperature = 1, .seed = 7}},
                              {b, 4, {.temperature = 2, .top_k = 40, .seed = 7}},
                              {a, 6, {.temperature = 1, .top_p = 0.9, .seed = 8}},
                              {b, 5, {}}};
  for (const bool wide : {true, false}) {
    std::vector<Tokens> alone;
    for (const Request& request : requests) {
      Fixture f({.max_rows = 29}, kHybrid, wide);
      for (int run = 0; run < 2; ++run)
        alone.push_back(
            f.engine.run({request}, mode_named("transition_rope_seam")).responses[0].tokens);
      EXPECT_EQ(alone.back(), alone[alone.size() - 2]);
    }
    Fixture f({}, kHybrid, wide);
    const RunResult batch = f.engine.run({requests[0], requests[1], requests[2], requests[3]},
                                         mode_named("transition_rope_seam"));
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(batch.responses[i].tokens, alone[2 * i]) << "request " << i;
  }
}

TEST(Engine, AnotherSeedGivesOtherTokens) {
  Fixture f;
  std::set<Tokens> answers;
  std::set<int32_t> first;
  for (const uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const Request request{prompt(), 4, {.temperature = 1, .seed = seed}};
    const Tokens tokens = f.engine.run({request}, mode_named("prefix")).responses[0].tokens;
    answers.insert(tokens);
    first.insert(tokens[0]);
  }
  EXPECT_EQ(answers.size(), 8u);
  EXPECT_GE(first.size(), 4u);  // the first token is drawn as well
}

TEST(Engine, WithoutTemperatureOrWithoutChoiceTokensAreGreedy) {
  Fixture f;
  const Tokens greedy = f.run(prompt(), "full", 4).tokens;
  for (const Sampling& sampling : {Sampling{.top_k = 5, .top_p = 0.5, .seed = 3},
                                   Sampling{.temperature = 2, .top_k = 1, .seed = 3},
                                   Sampling{.temperature = 2, .top_p = 1e-9, .seed = 3}})
    EXPECT_EQ(f.engine.run({{prompt(), 4, sampling}}, mode_named("full")).responses[0].tokens,
              greedy);
}

// A token's random number is that of its position, so what was drawn may be prefilled.
TEST(Engine, SampledDecodeIsPrefillOfTheLongerPrompt) {
  Fixture f;
  Request request{prompt(), 5, {.temperature = 1, .top_p = 0.95, .seed = 1}};
  const Tokens tokens = f.engine.run({request}, mode_named("full")).responses[0].tokens;
  request.max_tokens = 1;
  for (const int32_t token : tokens) {
    EXPECT_EQ(f.engine.run({request}, mode_named("full")).responses[0].tokens[0], token);
    request.segments.back().push_back(token);
  }
}

TEST(Engine, RefusesBadRequestsAndKeepsNothingOfThem) {
  Fixture f({.pools = {.state_slots = 4, .operator_slots = 2, .pages = 6, .page_size = 16}});
  const auto refused = [&](const std::vector<Tokens>& segments, const char* what,
                           int max_tokens = 1, const Sampling& sampling = {}) {
    try {
      f.engine.run({{segments, max_tokens, sampling}}, mode_named("transition_rope_seam"));
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
  for (const double temperature : {-1e-9, double{INFINITY}, double{NAN}})
    refused({{1}}, "temperature must be", 1, {.temperature = temperature});
  refused({{1}}, "top_k must be", 1, {.top_k = -1});
  for (const double top_p : {0.0, 1.001, double{NAN}})
    refused({{1}}, "top_p must be", 1, {.top_p = top_p});
  refused(prompt(), "3 operator slots are needed, there are 2");  // three residues, two operator slots
  refused({random_tokens(40, 1), random_tokens(60, 2)}, "K, V page");
}

TEST(Engine, RefusesPoolsBeyondAllMeasure) {
  for (const int64_t many : {int64_t{1} << 31, int64_t{1} << 52, int64_t{1} << 60, INT64_MAX})
    for (const PoolSizes& pools : {PoolSizes{.state_slots = 2, .operator_slots = 2, .pages = many, .page_size = 16},
                                   PoolSizes{.state_slots = many, .operator_slots = 2, .pages = 2, .page_size = 16},
                                   PoolSizes{.state_slots = 2, .operator_slots = many, .pages = 2, .page_size = 16}})
      EXPECT_THROW(Fixture({.pools = pools}), Error) << many;
}

// The same laws for every architecture, on a small model of it.

struct Small {
  const char* name;
  const char* config;  // what differs from NAME-tiny's
};
void PrintTo(const Small& small, std::ostream* out) { *out << small.name; }

// With the parts that the tiny one leaves out: other widths, groups, several norms, no equal dims.
constexpr Small kSmall[] = {
    {"qwen3.5-tiny", R"({"num_hidden_layers": 4, "full_attention_interval": 2, "head_dim": 8,
      "linear_key_head_dim": 8, "linear_value_head_dim": 6, "intermediate_size": 24})"},
    {"qwen3.5-35b-a3b-tiny",
     R"({"num_hidden_layers": 4, "full_attention_interval": 2, "head_dim": 8,
      "linear_key_head_dim": 8, "linear_value_head_dim": 6, "num_experts": 6, "num_experts_per_tok": 2,
      "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12,
      "mlp_only_layers": [1], "intermediate_size": 24})"},
    {"qwen3-next-80b-a3b-tiny",
     R"({"num_hidden_layers": 3, "full_attention_interval": 2, "head_dim": 8,
      "linear_key_head_dim": 8, "linear_value_head_dim": 6, "num_experts": 6, "num_experts_per_tok": 2,
      "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12})"},
    {"ring-mini-linear-2.0-tiny", R"({"num_hidden_layers": 4, "layer_group_size": 2, "head_dim": 8,
      "num_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3,
      "moe_intermediate_size": 8, "intermediate_size": 24})"},
    {"kimi-linear-48b-a3b-tiny",
     R"({"kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
      "v_head_dim": 6, "linear_attn_config": {"kda_layers": [1, 2, 4], "num_heads": 2, "head_dim": 8,
      "short_conv_kernel_size": 4}, "num_experts": 6, "num_experts_per_token": 2,
      "moe_intermediate_size": 8, "intermediate_size": 24})"},
    {"minimax-text-01-tiny", R"({"num_hidden_layers": 4, "layer_types": ["linear_attention",
      "full_attention", "linear_attention", "full_attention"], "head_dim": 8, "rotary_dim": 4,
      "num_local_experts": 4, "intermediate_size": 8})"},
    {"nemotron-3-nano-30b-a3b-tiny",
     R"({"num_hidden_layers": 5, "hybrid_override_pattern": "ME*M-", "head_dim": 8,
      "mamba_num_heads": 4, "mamba_head_dim": 6, "ssm_state_size": 8, "n_routed_experts": 6,
      "num_experts_per_tok": 2, "moe_intermediate_size": 8, "intermediate_size": 24,
      "moe_shared_expert_intermediate_size": 12})"},
    {"granite-4.0-h-350m-tiny",
     R"({"num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"],
      "mamba_n_heads": 4, "mamba_d_head": 6, "mamba_d_state": 8, "num_local_experts": 6,
      "num_experts_per_tok": 2, "intermediate_size": 8, "shared_intermediate_size": 24})"},
    {"falcon-h1-1.5b-tiny", R"({"num_hidden_layers": 3, "head_dim": 8, "mamba_n_heads": 4,
      "mamba_d_head": 6, "mamba_d_ssm": 24, "mamba_d_state": 8, "mamba_n_groups": 2,
      "mamba_rms_norm": true, "intermediate_size": 24})"},
    {"olmo-hybrid-7b-tiny", R"({"num_hidden_layers": 4, "layer_types": ["linear_attention",
      "full_attention", "linear_attention", "linear_attention"], "linear_key_head_dim": 6,
      "linear_value_head_dim": 10, "intermediate_size": 24})"}};

ModelSpec spec_of(const Small& small) {
  nlohmann::json config = nlohmann::json::parse(spec_named(small.name).config);
  config.update({{"vocab_size", 256}, {"hidden_size", 32}});
  config.update(nlohmann::json::parse(small.config));
  ModelSpec spec = spec_from_config(config.dump(), small.name);
  spec.name = small.name;
  return spec;
}

class EveryArchitecture : public testing::TestWithParam<Small> {
 protected:
  const ModelSpec spec = spec_of(GetParam());
  // Tokens of a segment's start that its predecessor reaches through the convolution.
  const int reach = spec.linear.conv_width - 1;
};

INSTANTIATE_TEST_SUITE_P(Small, EveryArchitecture, testing::ValuesIn(kSmall), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST_P(EveryArchitecture, WholeChunkedAndTokenByTokenAgreeBitForBit) {
  const Tokens all = random_tokens(70, 5);
  std::vector<double> whole;
  std::vector<std::vector<double>> states;
  for (const int max_rows : {1000, 29, 1}) {
    Fixture f(spec, {.max_rows = max_rows});
    const Response response =
        f.run({Tokens(all.begin(), all.end() - 6), Tokens(all.end() - 6, all.end())}, "full");
    if (whole.empty()) whole = response.logits, states = response.state_before_question;
    EXPECT_EQ(response.logits, whole) << "max_rows " << max_rows;
    EXPECT_EQ(response.state_before_question, states) << "max_rows " << max_rows;
    for (const double x : response.logits) ASSERT_TRUE(std::isfinite(x));
  }
  // Reuse too.
  std::vector<double> reused;
  for (const int max_rows : {1000, 29, 8}) {
    Fixture f(spec, {.max_rows = max_rows});
    const std::vector<double> logits = f.run(prompt(), "two_sided_seam").logits;
    if (reused.empty()) reused = logits;
    EXPECT_EQ(logits, reused) << "max_rows " << max_rows;
  }
}

TEST_P(EveryArchitecture, DecodeIsPrefillOfTheLongerPrompt) {
  Fixture f(spec, {});
  std::vector<Tokens> segments = prompt();
  const Tokens tokens = f.run(segments, "transition_rope_seam", 4).tokens;
  for (const int32_t token : tokens) {
    EXPECT_EQ(f.run(segments, "transition_rope_seam").tokens[0], token);
    segments.back().push_back(token);
  }
}

TEST_P(EveryArchitecture, PartlyColdIsAllPrefilledFirstBitForBit) {
  for (const char* name : {"transition_rope_seam", "addition_rope_seam"}) {
    const Mode mode = mode_named(name);
    Fixture cold(spec, {});
    const Response expected = cold.run(prompt(), name);
    for (int hits = 1; hits < 8; ++hits) {
      Fixture f(spec, {});
      for (int i = 0; i < 3; ++i)
        if (hits >> i & 1) f.engine.warm({prompt()[i]}, mode);
      const Response found = f.run(prompt(), name);
      EXPECT_EQ(found.logits, expected.logits) << name << ", hits " << hits;
      EXPECT_EQ(found.state_before_question, expected.state_before_question)
          << name << ", hits " << hits;
    }
  }
}

TEST_P(EveryArchitecture, PrefixIsFullBitForBit) {
  Fixture f(spec, {});
  const Response full = f.run(prompt(), "full");
  for (int run = 0; run < 2; ++run) {
    const Response prefix = f.run(prompt(), "prefix");
    EXPECT_EQ(prefix.logits, full.logits);
    EXPECT_EQ(prefix.state_before_question, full.state_before_question);
  }
}

TEST_P(EveryArchitecture, SeamsThatCoverEverySegmentAreFull) {
  Fixture f(spec, {});
  const std::vector<double> full = f.run(prompt(), "full").logits;
  EXPECT_EQ(f.run(prompt(), "transition_rope:head=20:tail=13").logits, full);
}

// Nothing comes before the first segment: its residue is what full recompute does. Rotated keys are
// moved by 0.
TEST_P(EveryArchitecture, OneCachedSegmentAndAQuestionIsFull) {
  Fixture f(spec, {});
  const std::vector<Tokens> segments = {random_tokens(40, 1), random_tokens(6, 2)};
  const std::vector<double> full = f.run(segments, "full").logits;
  for (const char* mode : {"transition", "transition_rope_seam", "two_sided_seam"}) {
    f.engine.warm({segments[0]}, mode_named(mode));
    EXPECT_LE(relative(f.run(segments, mode).logits, full), 1e-12) << mode;
  }
}

// The layer that sees embeddings alone. Where keys are rotated, states are moved.
TEST_P(EveryArchitecture, LayerZeroStateIsExactIfAndOnlyIfTheSeamCoversTheWindow) {
  ASSERT_TRUE(spec.layers[0].linear);
  for (const int h : {0, 1, 2, 3, 8}) {
    Fixture f(spec, {});
    const auto full = f.run(prompt(), "full").state_before_question[0];
    const auto reused = f.run(prompt(), str("transition_rope:head=", h)).state_before_question[0];
    const double error = relative(reused, full);
    if (h >= reach) {
      EXPECT_LE(error, 1e-12) << "h = " << h;
    } else {
      EXPECT_GT(error, 1e-4) << "h = " << h;
    }
    // In another order, from what is cached.
    std::vector<Tokens> other = prompt();
    std::swap(other[0], other[2]);
    const double again =
        relative(f.run(other, str("transition_rope:head=", h)).state_before_question[0],
                 f.run(other, "full").state_before_question[0]);
    EXPECT_EQ(again <= 1e-12, h >= reach) << "h = " << h << ": " << again;
  }
}

TEST_P(EveryArchitecture, StatesWithRotatedKeysMustBeMoved) {
  Fixture f(spec, {});
  const std::string mode = str("transition_rope:head=", reach, ":rotate=off");
  const double error = relative(f.run(prompt(), mode).state_before_question[0],
                                f.run(prompt(), "full").state_before_question[0]);
  if (spec.linear.rotary_dim > 0) {
    EXPECT_GT(error, 1e-3);
  } else {
    EXPECT_LE(error, 1e-12);
  }
}

// With one layer, of each kind that the architecture has alone, reuse is exact to the last logit.
TEST_P(EveryArchitecture, OneLayerModelsReuseExactly) {
  nlohmann::json config = nlohmann::json::parse(spec.config);
  for (const char* kind : {"linear", "attention"}) {
    config["num_hidden_layers"] = 1;
    if (config["model_type"] == "nemotron_h") {
      config["hybrid_override_pattern"] = kind == std::string("linear") ? "M" : "*";
    } else if (config["model_type"] == "bailing_moe_linear" || config["model_type"] == "minimax") {
      return;  // slopes need two layers
    } else {
      config["mlp_only_layers"] = nullptr;
      if (config["model_type"] == "kimi_linear") {
        if (kind == std::string("attention")) return;  // asks for a linear layer
        config["linear_attn_config"]["kda_layers"] = {1};
      } else if (config["model_type"] != "falcon_h1") {
        config["layer_types"] = {kind == std::string("linear") ? kLinear : kAttention};
      }
    }
    Fixture f(spec_from_config(config.dump(), "test"), {});
    const std::vector<double> full = f.run(prompt(), "full").logits;
    EXPECT_LE(relative(f.run(prompt(), "transition_rope_seam").logits, full), 1e-12) << kind;
    if (f.model.spec().layers[0].linear) {
      EXPECT_GT(relative(f.run(prompt(), "zero_state").logits, full), 1e-6) << kind;
    }
  }
}

// Requests that share segments, in one batch, on both backends.
TEST_P(EveryArchitecture, BatchedRequestsAreThoseAlone) {
  const auto a = prompt();
  const std::vector<Tokens> b = {a[1], a[0], random_tokens(9, 8)};
  for (const bool wide : {true, false}) {
    Fixture together(spec, {}, wide);
    const RunResult batch =
        together.engine.run({{a, 3}, {b, 2}}, mode_named("transition_rope_seam"));
    int i = 0;
    for (const auto& [segments, n] : {std::pair{a, 3}, {b, 2}}) {
      Fixture alone(spec, {}, wide);
      const Response response = alone.run(segments, "transition_rope_seam", n);
      EXPECT_EQ(batch.responses[i].logits, response.logits) << "request " << i;
      EXPECT_EQ(batch.responses[i].tokens, response.tokens) << "request " << i;
      ++i;
    }
    together.engine.check_integrity();
    together.engine.flush();
  }
}

// Of two in one batch, the first ends at a stop token of its own; what it says until then is the same.
TEST(Answers, EndAtAStopToken) {
  Fixture f;
  const Tokens whole = f.run(prompt(), "full", 8).tokens;
  ASSERT_EQ(whole.size(), 8u);
  const Mode full = mode_named("full");
  const auto both = f.engine.run({{.segments = prompt(), .max_tokens = 8, .stop = {-1, whole[3]}},
                                  {.segments = prompt(), .max_tokens = 8}}, full).responses;
  const auto end = std::find(whole.begin(), whole.end(), whole[3]) + 1;
  EXPECT_EQ(both[0].tokens, Tokens(whole.begin(), end));
  EXPECT_EQ(both[1].tokens, whole);
  const auto first = f.engine.run({{.segments = prompt(), .max_tokens = 8, .stop = {whole[0]}}}, full).responses[0];
  EXPECT_EQ(first.tokens, Tokens({whole[0]}));
}

TEST(Answers, SayByHowMuchEachTokenLeads) {
  Fixture f;
  const auto answers = f.engine.run({{.segments = prompt(), .max_tokens = 4, .gaps = true},
                                     {.segments = prompt(), .max_tokens = 4}}, mode_named("full")).responses;
  ASSERT_EQ(answers[0].gaps.size(), 4u);
  EXPECT_TRUE(answers[1].gaps.empty());
  std::vector<double> sorted = answers[0].logits;
  std::sort(sorted.rbegin(), sorted.rend());
  EXPECT_EQ(answers[0].gaps[0], sorted[0] - sorted[1]);
  for (const double gap : answers[0].gaps) EXPECT_GT(gap, 0);
}

// Each fault of the published code breaks a law above.

// A step may begin before the tokens of the one before are known, or not: with stop tokens, gaps or draws.
TEST(Engine, HowTheHostLearnsTokensDoesNotChangeThem) {
  const Mode& full = mode_named("full");
  Fixture f;
  const auto answers = [&](const Tokens& stop, bool gaps, int drawn) {
    std::vector<Request> requests;
    for (const int tokens : {1, 2, 9, 5})
      requests.push_back({.segments = prompt(), .max_tokens = tokens, .stop = stop, .gaps = gaps});
    for (int i = 0; i < drawn; ++i)
      requests.push_back({.segments = prompt(), .max_tokens = 3, .sampling = {.temperature = 1}});
    std::vector<Tokens> tokens;
    for (const Response& response : f.engine.run(requests, full).responses) tokens.push_back(response.tokens);
    tokens.resize(4);
    return tokens;
  };
  const auto expected = answers({}, false, 0);
  for (const size_t i : {0, 1, 2, 3}) EXPECT_EQ(expected[i].size(), std::vector<size_t>({1, 2, 9, 5})[i]);
  EXPECT_EQ(answers({-1}, false, 0), expected);
  EXPECT_EQ(answers({}, true, 0), expected);
  EXPECT_EQ(answers({}, false, 1), expected);
}

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
    Fixture f({.faults = {.keys_not_rotated = fault}}, {kAttention});
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
    Fixture f({.faults = {.window_lost = fault}}, {kLinear});
    return relative(f.run(prompt(), "transition_rope_seam").logits, f.run(prompt(), "full").logits);
  };
  EXPECT_LE(error(false), 1e-12);
  EXPECT_GT(error(true), 1e-4);
}

}  // namespace
}  // namespace hypic
