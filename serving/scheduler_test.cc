#include "serving/scheduler.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "reference/cpu_backend.h"
#include "serving/small_model.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;

const ModelSpec kSpec = small_spec({.layers = {"linear_attention", "full_attention"}, .max_positions = 8192});

// Two documents, the second of them `which`, and a question.
Request request(int which, int max_tokens) {
  return {.segments = {random_tokens(19, 1), random_tokens(33, which), random_tokens(5, 99)},
          .max_tokens = max_tokens,
          .logits = false};
}

struct Fixture {
  explicit Fixture(EngineOptions engine_options = {}, int64_t max_waiting = 256)
      : backend(reference::make_cpu_backend()),
        model(Model::random(*backend, kSpec, 3)),
        engine(model, engine_options),
        scheduler(std::in_place, engine, metrics,
                  SchedulerOptions{.mode = mode_named("transition_rope_seam"), .max_waiting = max_waiting}) {
    scheduler->wait_until_warm();
  }
  ~Fixture() {
    scheduler.reset();
    while (!engine.idle()) engine.step();
    EXPECT_NO_THROW(engine.check_integrity());
  }
  // Notes under `name` when its first token comes and when it ends. While `held`, the scheduler waits at a first token.
  uint64_t submit(const std::string& name, Request wanted) {
    auto first = std::make_shared<bool>(true);
    return scheduler->submit(std::move(wanted), [this, name, first](const Notice& notice) {
      std::unique_lock lock(mutex);
      const bool is_first = std::exchange(*first, false);
      if (is_first) order.push_back(name);
      if (notice.kind == Notice::Kind::failed) errors.push_back(notice.error);
      ended += notice.last;
      changed.notify_all();
      if (is_first) changed.wait(lock, [this] { return !held; });
    });
  }
  template <class Condition>
  void wait(const Condition& condition) {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, 60s, condition));
  }

  void hold(bool now) {
    const std::scoped_lock lock(mutex);
    held = now;
    changed.notify_all();
  }

  std::unique_ptr<Backend> backend;
  Model model;
  Engine engine;
  Metrics metrics;
  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;
  std::vector<std::string> order, errors;
  int ended = 0;
  std::optional<Scheduler> scheduler;
};

const EngineOptions kRoomForOneLong{.pools = {.state_slots = 8, .operator_slots = 8, .pages = 560, .page_size = 4}};

TEST(Scheduler, WhatIsCachedGoesFirstAndNobodyIsPassedForEver) {
  Fixture f(kRoomForOneLong);
  f.hold(true);
  f.submit("long", request(2, 2100));  // leaves too few pages for another
  f.wait([&] { return !f.order.empty(); });
  f.submit("cold", request(3, 1));
  f.submit("cached", request(2, 1));
  f.hold(false);
  f.wait([&] { return f.ended == 3; });
  EXPECT_EQ(f.order, (std::vector<std::string>{"long", "cached", "cold"}));
}

TEST(Scheduler, WhatCannotRunAloneIsToldSoAndHoldsUpNobody) {
  Fixture f(kRoomForOneLong);
  f.submit("too large", request(2, 5000));
  f.submit("small", request(2, 2));
  Request wrong = request(2, 2);
  wrong.segments[1][0] = 1000;
  f.submit("wrong", wrong);
  f.submit("small", request(3, 2));
  f.wait([&] { return f.ended == 4; });
  ASSERT_EQ(f.errors.size(), 2u);
  EXPECT_NE(f.errors[0].find("K, V pages are needed"), std::string::npos) << f.errors[0];
  EXPECT_NE(f.errors[1].find("outside the vocabulary"), std::string::npos) << f.errors[1];
}

TEST(Scheduler, TheQueueIsBounded) {
  Fixture f(kRoomForOneLong, 2);
  f.hold(true);
  f.submit("long", request(2, 2100));
  f.wait([&] { return !f.order.empty(); });
  const uint64_t waits = f.submit("waits", request(3, 1));
  EXPECT_NE(waits, 0u);
  EXPECT_NE(f.submit("waits", request(4, 1)), 0u);
  EXPECT_EQ(f.submit("refused", request(5, 1)), 0u);
  f.scheduler->cancel(waits);  // makes room in the queue, never runs
  f.hold(false);
  f.wait([&] { return f.ended == 2; });
  EXPECT_EQ(f.order, (std::vector<std::string>{"long", "waits"}));
  f.scheduler->drain();
  EXPECT_EQ(f.submit("late", request(3, 1)), 0u);
}

TEST(Scheduler, AnEndWithRequestsUnderWayIsClean) {
  Fixture f;
  for (int i = 0; i < 8; ++i) f.submit("x", request(i, 2000));
  f.wait([&] { return !f.order.empty(); });
}

}  // namespace
}  // namespace hypic
