// Requests that come and go while others run get what Engine::run gives each alone.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

#include "core/check.h"
#include "reference/cpu_backend.h"
#include "serving/engine.h"
#include "serving/small_model.h"

namespace hypic {
namespace {

struct Fixture {
  explicit Fixture(EngineOptions options = {})
      : backend(reference::make_cpu_backend()),
        model(Model::random(*backend, small_spec(), 3)),
        engine(model, options) {}
  std::unique_ptr<Backend> backend;
  Model model;
  Engine engine;
};

Request request(int i) {
  Request r{.segments = {random_tokens(19, i % 3), random_tokens(26, 10 + i % 2), random_tokens(3 + i % 5, 20 + i)},
            .max_tokens = 1 + i % 6,
            .logits = false};
  if (i % 3 == 2) r.sampling = {.temperature = 0.9, .top_k = 40, .top_p = 0.95, .seed = static_cast<uint64_t>(i)};
  if (i % 4 == 1) r.stop = {-1};  // none that comes, but the engine waits for each token
  return r;
}

class Steps : public testing::TestWithParam<std::string> {};

TEST_P(Steps, TokensAreThoseOfRun) {
  const Mode mode = mode_named(GetParam());
  Fixture alone;
  std::vector<Tokens> expected;
  for (int i = 0; i < 14; ++i) expected.push_back(alone.engine.run({request(i)}, mode).responses[0].tokens);

  Fixture f({.pools = {.state_slots = 16, .operator_slots = 12, .pages = 120, .page_size = 4}, .max_rows = 30});
  std::map<uint64_t, int> of;  // ticket → request
  std::vector<Tokens> got(expected.size());
  std::vector<bool> ended(expected.size());
  int next = 0, most = 0;
  while (next < 14 || !f.engine.idle()) {
    // In twos and threes, while others are at their prompts or their answers.
    const int count = std::min(2 + next % 2, 14 - next);
    std::vector<Request> requests;
    for (int i = next; i < next + count; ++i) requests.push_back(request(i));
    if (count > 0 && f.engine.fits(requests, mode)) {
      for (const Submitted& one : f.engine.submit(requests, mode)) of[one.ticket] = next++;
    }
    for (const Progress& one : f.engine.step()) {
      const int i = of.at(one.ticket);
      EXPECT_FALSE(ended[i]);
      got[i].push_back(one.token);
      ended[i] = one.last;
    }
    most = std::max(most, static_cast<int>(std::count(ended.begin(), ended.begin() + next, false)));
  }
  EXPECT_EQ(got, expected);
  EXPECT_GT(most, 3);  // several submissions at once
  f.engine.check_integrity();
}

INSTANTIATE_TEST_SUITE_P(Modes, Steps, testing::Values("full", "prefix", "transition_rope_seam", "addition"),
                         [](const auto& info) { return info.param; });

TEST(EngineSteps, WhatAPromptLeavesIsThereBeforeItsAnswerEnds) {
  Fixture f;
  const Mode mode = mode_named("transition_rope_seam");
  Request first = request(0), second = request(0);
  first.max_tokens = 50;
  EXPECT_FALSE(f.engine.expected(second, mode).is_cached);
  EXPECT_EQ(f.engine.submit({first}, mode)[0].reused.segments, 0);
  EXPECT_TRUE(f.engine.prefilling());
  f.engine.step();
  EXPECT_FALSE(f.engine.prefilling());
  EXPECT_TRUE(f.engine.expected(second, mode).is_cached);
  const Reused reused = f.engine.submit({second}, mode)[0].reused;
  EXPECT_EQ(reused.segments, 45 - 2 * mode.head);
  EXPECT_EQ(reused.recomputed, 2 * mode.head);
  EXPECT_EQ(f.engine.expected(second, mode).rows, 48 - reused.segments);
  // Even if it leaves the cache while both decode.
  f.engine.step();
  f.engine.flush();
  Tokens tokens;
  while (!f.engine.idle()) f.engine.step();
  f.engine.check_integrity();
}

TEST(EngineSteps, WhatIsCachedTakesNoStateToBeBuiltIn) {
  Fixture f({.pools = {.state_slots = 5, .operator_slots = 12, .pages = 120, .page_size = 4}});
  const Mode mode = mode_named("transition_rope_seam");
  const std::vector<Request> three = {request(0), request(1), request(2)};
  EXPECT_FALSE(f.engine.fits(three, mode));  // of their own and for what they miss
  const int64_t cold = f.engine.expected(three[0], mode).rows;
  for (const Request& one : three) f.engine.run({one}, mode);
  EXPECT_TRUE(f.engine.fits(three, mode));
  EXPECT_LT(f.engine.expected(three[0], mode).rows, cold);
  EXPECT_EQ(f.engine.expected(three[0], mode_named("full")).rows, cold);
  const auto submitted = f.engine.submit(three, mode);
  for (const Submitted& one : submitted) EXPECT_GT(one.reused.segments, 0);
  while (!f.engine.idle()) f.engine.step();
  f.engine.check_integrity();
}

TEST(EngineSteps, AnswersGoOnInTheForwardOfAPrompt) {
  const Mode mode = mode_named("transition_rope_seam");
  Request first = request(0), second = request(4);
  first.max_tokens = second.max_tokens = 9;
  first.stop = {-1};                     // so that no step of it is under way when the prompt comes
  constexpr int kFull = 19 + 2 * 8 + 7;  // what the second prompt computes: a segment, seams, its question
  for (const int max_rows : {kFull, kFull - 9, 8192}) {
    Fixture f({.max_rows = max_rows}), alone;
    const uint64_t ticket = f.engine.submit({first}, mode)[0].ticket;
    while (f.engine.prefilling()) f.engine.step();
    f.engine.submit({second}, mode);
    Tokens got[2];
    bool joined = false;
    while (!f.engine.idle()) {
      const bool prompt = f.engine.prefilling();
      const std::vector<Progress> progress = f.engine.step();
      for (const Progress& one : progress) got[one.ticket != ticket].push_back(one.token);
      joined = joined || (prompt && progress.size() == 2);  // else the second has two tokens of its first step
    }
    EXPECT_EQ(joined, max_rows != kFull);
    const Tokens expected = alone.engine.run({first}, mode).responses[0].tokens;
    EXPECT_TRUE(std::equal(got[0].rbegin(), got[0].rend(), expected.rbegin()));
    EXPECT_EQ(got[1], alone.engine.run({second}, mode).responses[0].tokens);
    f.engine.check_integrity();
  }
}

TEST(EngineSteps, EqualMissesOfASubmissionAreComputedOnce) {
  Fixture f;
  const Mode mode = mode_named("transition_rope_seam");
  const auto submitted = f.engine.submit({request(0), request(6)}, mode);
  EXPECT_EQ(submitted[0].reused.segments + submitted[1].reused.segments, 0);  // none was cached
  while (!f.engine.idle()) f.engine.step();
  EXPECT_EQ(f.engine.usage().admitted, 2);
}

TEST(EngineSteps, CancelledRequestsGiveBackWhatTheyHeld) {
  Fixture f({.max_rows = 16});
  const Mode mode = mode_named("transition_rope_seam");
  Request endless = request(1);
  endless.max_tokens = 500;
  const uint64_t early = f.engine.submit({endless}, mode)[0].ticket;
  f.engine.cancel(early);  // before anything ran
  EXPECT_TRUE(f.engine.idle());
  f.engine.check_integrity();
  const auto both = f.engine.submit({endless, request(5)}, mode);
  f.engine.step();
  f.engine.cancel(both[0].ticket);  // in the middle of the prompt
  Tokens others;
  while (!f.engine.idle())
    for (const Progress& one : f.engine.step())
      if (one.ticket == both[1].ticket) others.push_back(one.token);
  EXPECT_EQ(others, Fixture().engine.run({request(5)}, mode).responses[0].tokens);
  f.engine.cancel(both[1].ticket);  // has ended
  f.engine.check_integrity();
}

// A step of decode may be under way, or planned, when requests come and go.
TEST(EngineSteps, ComingAndGoingAtAnyMomentChangesNoTokens) {
  const Mode mode = mode_named("transition_rope_seam");
  const auto longer = [](int i) {
    Request r = request(i);
    r.max_tokens = 3 + 5 * i % 17;
    if (i % 5 == 0) r.gaps = true;
    return r;
  };
  Fixture alone;
  std::vector<Tokens> expected;
  for (int i = 0; i < 12; ++i) expected.push_back(alone.engine.run({longer(i)}, mode).responses[0].tokens);
  Tokens stop_at = {expected[7][1]};  // ends an answer before its last token
  for (int round = 0; round < 12; ++round) {
    std::mt19937 random(round);
    Fixture f({.max_rows = 40});
    std::map<uint64_t, int> of;
    std::vector<Tokens> got(expected.size());
    std::vector<bool> cancelled(expected.size());
    int next = 0;
    while (next < 12 || !f.engine.idle()) {
      if (next < 12 && random() % 3 == 0) {
        Request r = longer(next);
        if (next == 7) r.stop = stop_at;
        of[f.engine.submit({r}, mode)[0].ticket] = next++;
      }
      if (!of.empty() && random() % 8 == 0) {
        const auto victim = std::next(of.begin(), static_cast<long>(random() % of.size()));
        f.engine.cancel(victim->first);
        cancelled[victim->second] = true;
      }
      for (const Progress& one : f.engine.step()) got[of.at(one.ticket)].push_back(one.token);
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      Tokens want = expected[i];
      if (i == 7) want.erase(std::next(std::find(want.begin(), want.end(), stop_at[0])), want.end());
      if (cancelled[i]) want.resize(std::min(want.size(), got[i].size()));
      EXPECT_EQ(got[i], want) << "request " << i << ", round " << round;
    }
    f.engine.check_integrity();
  }
}

TEST(EngineSteps, WhatIsRefusedChangesNothing) {
  Fixture f({.pools = {.state_slots = 4, .operator_slots = 4, .pages = 30, .page_size = 4}});
  const Mode mode = mode_named("transition_rope_seam");
  Request wrong = request(1);
  wrong.segments[0][0] = 256;
  EXPECT_THROW(f.engine.submit({request(0), wrong}, mode), Error);
  EXPECT_TRUE(f.engine.idle());
  Request large = request(1);
  large.max_tokens = 200;
  EXPECT_FALSE(f.engine.fits({large}, mode));
  EXPECT_THROW(f.engine.submit({large}, mode), OutOfMemory);
  EXPECT_TRUE(f.engine.fits({request(1)}, mode));
  f.engine.submit({request(1)}, mode);
  EXPECT_FALSE(f.engine.fits({request(2)}, mode));
  EXPECT_THROW(f.engine.submit({request(2)}, mode), OutOfMemory);
  while (!f.engine.idle()) f.engine.step();
  EXPECT_TRUE(f.engine.fits({request(2)}, mode));  // what is cached makes room
  f.engine.check_integrity();
}

}  // namespace
}  // namespace hypic
