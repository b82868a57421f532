#include "harness/measure/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "core/check.h"
#include "core/temporary_folder.h"
#include "harness/model_choice.h"
#include "models/model.h"
#include "reference/cpu_backend.h"
#include "serving/engine.h"

namespace hypic {
namespace {

const ModelSpec& tiny() {
  static const ModelSpec spec = spec_of("random:qwen3.5-tiny");
  return spec;
}

// An instruction of 20 tokens, documents of 40, 30 and 9, a question of 5.
CellPrompt prompt() {
  CellPrompt p{"p", {}, true};
  uint64_t seed = 0;
  for (const int64_t n : {20, 40, 30, 9, 5}) p.segments.push_back(random_tokens(n, 1000, ++seed));
  return p;
}

Counters counters(const CellPrompt& p, const char* mode) {
  const CellMode cell = cell_mode(mode);
  return expected_counters(p.segments, cell.mode, priming(p, cell.cache));
}

TEST(Workload, ExpectedCounters) {
  const CellPrompt p = prompt();
  EXPECT_EQ(difference(counters(p, "full"), {.context = 104}), "");
  EXPECT_EQ(difference(counters(p, "prefix@cold"), {.context = 104}), "");
  EXPECT_EQ(difference(counters(p, "prefix@warm_prefix"), {.context = 5, .prefix = 99}), "");
  EXPECT_EQ(difference(counters(p, "prefix"), {.context = 84, .prefix = 20}),
            "");  // the instruction alone
  // Three seams of 8, and the document of 9 has one token left to jump over.
  const Counters warm{.seam = 32, .context = 5, .jumped = 67, .jumps = 4, .rotated = 55};
  EXPECT_EQ(difference(counters(p, "transition_rope_seam"), warm), "");
  EXPECT_EQ(difference(counters(p, "transition_rope_seam@warm_prefix_other_order"), warm), "");
  Counters cold = warm;
  cold.isolated = 99;
  EXPECT_EQ(difference(counters(p, "transition_rope_seam@cold"), cold), "");
  Counters one = warm;
  one.isolated = 30;  // the middle one
  EXPECT_EQ(difference(counters(p, "transition_rope_seam@missed=1"), one), "");
  EXPECT_EQ(
      difference(counters(p, "transition@warm_segment"), {.context = 5, .jumped = 99, .jumps = 4}),
      "");
  // A segment no longer than its seams is computed in full context.
  EXPECT_EQ(difference(counters(p, "transition_rope_seam:head=9@warm_segment"),
                       {.seam = 27, .context = 14, .jumped = 63, .jumps = 3, .rotated = 52}),
            "");
  EXPECT_EQ(difference({.seam = 1}, {.seam = 2}), "seam is 1, the cell's plan says 2");
}

TEST(Workload, WhatComesTwiceIsComputedOnce) {
  CellPrompt p = prompt();
  p.segments[3] = p.segments[1];
  EXPECT_EQ(counters(p, "transition_rope_seam@cold").isolated, 90);
  EXPECT_EQ(counters(p, "transition_rope_seam@cold").jumps, 4);
}

// The closed form against what the engine counts.
TEST(Workload, TheEngineCountsTheSame) {
  const auto backend = reference::make_cpu_backend();
  const Model model = Model::open(*backend, "random:qwen3.5-tiny");
  const CellPrompt p = prompt();
  for (const char* state : {"cold", "warm_prefix", "warm_prefix_other_order", "warm_segment",
                            "missed=0", "missed=2", "missed=3"})
    for (const char* mode : {"full", "prefix", "addition", "last_block", "zero_state",
                             "transition_rope_seam:head=3", "two_sided_seam"}) {
      const std::string text = std::string(mode) + "@" + state;
      CellMode cell;
      try {
        cell = cell_mode(text);
      } catch (const Error&) {
        continue;  // of no use to the mode
      }
      Engine engine(model, {});
      const Priming primed = priming(p, cell.cache);
      if (!primed.segments.empty()) engine.warm(primed.segments, cell.mode);
      if (!primed.prompt.empty()) engine.run({{primed.prompt, 1}}, cell.mode);
      EXPECT_EQ(difference(engine.run({{p.segments, 1}}, cell.mode).counters,
                           expected_counters(p.segments, cell.mode, primed)),
                "")
          << text;
    }
}

TEST(Workload, ModesHaveTheStateTheyAreUsedIn) {
  EXPECT_EQ(cell_mode("full").name(), "full@cold");
  EXPECT_EQ(cell_mode("prefix").name(), "prefix@warm_prefix_other_order");
  EXPECT_EQ(cell_mode("transition_rope_seam:head=16").name(),
            "transition_rope_seam:head=16@warm_segment");
  EXPECT_EQ(cell_mode("addition@missed=3").cache.missed, 3);
}

std::string refusal(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Workload, Refuses) {
  EXPECT_NE(refusal([] { cell_mode("full@warm_prefix"); }).find("full recompute caches nothing"),
            std::string::npos);
  EXPECT_NE(refusal([] { cell_mode("prefix@missed=1"); }).find("holds no single segments"),
            std::string::npos);
  EXPECT_NE(refusal([] { cell_mode("transition@hot"); }).find("unknown cache state \"hot\""),
            std::string::npos);
  EXPECT_NE(refusal([] { cell_mode("transition@missed=x"); }).find("unknown cache state"),
            std::string::npos);
  EXPECT_NE(refusal([] { cell_mode("transition@missed="); }).find("unknown cache state"),
            std::string::npos);
  EXPECT_NE(refusal([] { cell_mode("transition:rotate=built_at"); }).find("built_at"),
            std::string::npos);
  EXPECT_NE(refusal([] {
              counters(prompt(), "transition@missed=4");
            }).find("4 of 3 documents cannot miss"),
            std::string::npos);
  const std::string model = "random:qwen3.5-tiny";
  EXPECT_NE(refusal([&] {
              cell_prompts({.dataset = "squad"}, model, tiny(), "");
            }).find("known: hotpotqa"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              cell_prompts({.segments = 4000, .tokens = 1000}, model, tiny(), "");
            }).find("positions"),
            std::string::npos);
}

TEST(Workload, PromptsAreOfTheSizeThatWasAsked) {
  const CellPrompts all =
      cell_prompts({.segments = 3, .tokens = 17, .question = 4, .system = 6, .rows = 2},
                   "random:qwen3.5-tiny", tiny(), "");
  ASSERT_EQ(all.prompts.size(), 2u);
  ASSERT_EQ(all.prompts[0].segments.size(), 5u);
  EXPECT_EQ(all.prompts[0].segments[0].size(), 6u);
  EXPECT_EQ(all.prompts[0].segments[3].size(), 17u);
  EXPECT_EQ(all.prompts[0].segments[4].size(), 4u);
  EXPECT_NE(all.prompts[0].segments[1], all.prompts[1].segments[1]);
  EXPECT_EQ((Workload{.segments = 3, .tokens = 17, .question = 4, .system = 6}).label(),
            "6+3x17+4");
}

TEST(Workload, LengthsOfADataset) {
  for (const std::string& name : dataset_shapes()) {
    const CellPrompts all =
        cell_prompts({.dataset = name, .rows = 8, .divide = 16}, "random:qwen3.5-tiny", tiny(), "");
    ASSERT_EQ(all.prompts.size(), 8u) << name;
    size_t least = 1000, most = 0;
    for (const CellPrompt& p : all.prompts) {
      EXPECT_GE(p.segments.size(), 3u) << name;
      least = std::min(least, p.segments.size());
      most = std::max(most, p.segments.size());
    }
    EXPECT_LT(least, most) << name;
    const auto again =
        cell_prompts({.dataset = name, .rows = 8, .divide = 16}, "random:qwen3.5-tiny", tiny(), "");
    EXPECT_EQ(all.prompts[7].segments, again.prompts[7].segments) << name;
  }
}

TEST(Workload, RowsOfAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("rows.jsonl");
  std::ofstream(path)
      << R"({"_id": "r0", "dataset": "hotpotqa", "input": "Who?", "answers": ["he"], )"
      << R"("context": "Passage 1:\nOne.\nPassage 2:\nTwo two.\n"})"
      << "\n";
  const std::string model = "random:qwen3.5-tiny";
  const CellPrompts all = cell_prompts({.dataset = "hotpotqa", .rows = 8}, model, tiny(), path);
  ASSERT_EQ(all.prompts.size(), 1u);
  EXPECT_EQ(all.source, path);
  EXPECT_EQ(all.prompts[0].id, "r0");
  EXPECT_EQ(all.prompts[0].segments.size(), 4u);  // instruction, two passages, question
  EXPECT_NE(
      cell_prompts({.dataset = "triviaqa", .rows = 2, .divide = 64}, model, tiny(), path).source,
      path);
}

}  // namespace
}  // namespace hypic
