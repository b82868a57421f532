#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "harness/backends.h"
#include "harness/measure/distance.h"
#include "harness/measure/prompts.h"
#include "harness/measure/replay.h"
#include "harness/measure/routes.h"
#include "serving/engine.h"

namespace hypic {
namespace {

TEST(Distance, OfLogits) {
  EXPECT_EQ(kl_divergence({1, 2, 3}, {1, 2, 3}), 0);
  EXPECT_NEAR(kl_divergence({1, 2, 3}, {11, 12, 13}), 0, 1e-14);  // a shift changes nothing
  // Two outcomes, p = (1/2, 1/2), q = (3/4, 1/4): ½ log(2/3) + ½ log 2.
  EXPECT_NEAR(kl_divergence({0, 0}, {std::log(3.0), 0}),
              0.5 * std::log(2.0 / 3) + 0.5 * std::log(2.0), 1e-14);
  EXPECT_EQ(argmax({1, 3, 3}), 1);
  EXPECT_EQ(worse(1, 2), 2);
  EXPECT_TRUE(std::isnan(worse(1, NAN)) && std::isnan(worse(NAN, 1)));
  EXPECT_EQ(relative_error({3, 4}, {0, 0}), 5);
  EXPECT_NEAR(relative_error({1, 1}, {1, 2}), 1 / std::sqrt(5), 1e-15);
}

// A run that follows another sends its rows where they went there, whatever it would choose itself; found again are
// rows of segments built alone and of the request, cold and cached.
TEST(SameRoutes, ArePutIntoTheRunThatFollows) {
  const auto backend = make_backend("cpu");
  const Model model = Model::open(*backend, "random:ring-mini-linear-2.0-tiny:1");
  Engine engine(model, {});
  const auto prompt = [](int seed) {
    std::vector<Tokens> segments;
    for (const int n : {30, 17, 25, 5}) {
      Tokens& tokens = segments.emplace_back();
      for (int i = 0; i < n; ++i) tokens.push_back((seed + n * 37 + i * 101) % 2048);
    }
    return segments;
  };
  const Mode mode = mode_named("transition_rope_seam");
  SameRoutes routes(*backend);
  const auto cold = engine.run({{prompt(0), 1}}, mode, {.routes = &routes}).responses[0].logits;
  routes.follow();
  engine.flush();
  engine.warm({prompt(0)[0], prompt(0)[2]}, mode, {.routes = &routes});
  EXPECT_EQ(engine.run({{prompt(0), 1}}, mode, {.routes = &routes}).responses[0].logits, cold);
  EXPECT_EQ(routes.moved_share(), 0);

  const Mode full = mode_named("full");
  Routes went(*backend), would(*backend), followed(*backend);
  SameRoutes recorded(*backend);
  engine.run({{prompt(0), 1}}, full, {.tap = &went, .routes = &recorded});
  recorded.follow();
  engine.run({{prompt(1), 1}}, full, {.tap = &would});
  engine.run({{prompt(1), 1}}, full, {.tap = &followed, .routes = &recorded});
  EXPECT_NE(would.seen, went.seen);
  EXPECT_EQ(followed.seen, went.seen);
  EXPECT_GT(recorded.moved_share(), 0.5);
}

// Of one cold run: the replay is what was composed, in every mode that composes rightly, and full
// recompute where drift is absent.
TEST(Replay, SeparatesOperatorErrorFromDrift) {
  const auto backend = make_backend("cpu64");
  const Model model = Model::open(*backend, "random:qwen3.5-tiny:1");
  Engine engine(model, {});
  std::vector<Tokens> segments;
  for (const int n : {30, 17, 25, 5}) {
    Tokens& tokens = segments.emplace_back();
    for (int i = 0; i < n; ++i) tokens.push_back((n * 37 + i * 101) % 2048);
  }
  const auto full =
      engine.run({{segments, 1}}, mode_named("full"), {.keep_state = true}).responses[0];
  for (const Mode& mode : modes()) {
    if (mode.reuse != Reuse::segments) continue;
    InputRecorder inputs(*backend);
    const RunResult run = engine.run({{segments, 1}}, mode, {.keep_state = true, .tap = &inputs});
    for (int l = 0; l < model.spec().layer_count(); ++l) {
      if (!model.spec().layers[l].linear) continue;
      const auto& state = run.responses[0].state_before_question[l];
      const auto replayed = replayed_state(model.spec(), run.tables[0], inputs, l);
      const double error = relative_error(state, replayed),
                   drift = relative_error(replayed, full.state_before_question[l]);
      if (mode.compose == Compose::transfer) {
        EXPECT_LE(error, 1e-12) << mode.name << " layer " << l;
      } else {
        EXPECT_GT(error, 1e-3) << mode.name << " layer " << l;
      }
      if (l > 0) {
        EXPECT_GT(drift, 1e-6) << mode.name << " layer " << l;
      }
      if (l == 0 && mode.compose == Compose::transfer && mode.head >= 3) {
        EXPECT_LE(drift, 1e-12) << mode.name;
      }
    }
    engine.flush();
  }
}

TEST(Prompts, AreCutAndEndInTheQuestion) {
  const Tokenizer tokenizer = tokenizer_for("random:qwen3.5-tiny");
  const auto prompts = load_prompts("", tokenizer, {.rows = 2, .passages = 3, .tokens = 16});
  ASSERT_EQ(prompts.size(), 2u);
  for (const TokenPrompt& prompt : prompts) {
    ASSERT_EQ(prompt.segments.size(), 5u);  // instruction, three passages, question
    for (int i = 1; i <= 3; ++i) EXPECT_EQ(prompt.segments[i].size(), 16u);
    const std::string question = tokenizer.decode(prompt.segments.back());
    EXPECT_TRUE(question.ends_with("Answer:")) << question;
  }
}

}  // namespace
}  // namespace hypic
