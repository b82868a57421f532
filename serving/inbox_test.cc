#include "serving/inbox.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "reference/cpu_backend.h"
#include "serving/engine.h"
#include "serving/kept_residues.h"
#include "serving/rank_backends.h"
#include "serving/small_model.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;

const Tokens kFirst = random_tokens(19, 1), kSecond = random_tokens(33, 2), kThird = random_tokens(24, 3),
             kQuestion = random_tokens(5, 4);
const Mode kMode = mode_named("transition_rope_seam");
constexpr int kLayers = 3;
// Tensor-parallel ones; of two both have the one KV head.
constexpr int kRanks[] = {1, 2};

struct Fixture {
  explicit Fixture(InboxOptions options = {}, EngineOptions engine_options = {}, int ranks = 1)
      : backends(reference::make_cpu_ranks(ranks)),
        model(Model::random(backends.all, small_spec(), 3)),
        engine(model, engine_options),
        inbox(model, kMode, options) {
    Engine other(model, {});
    Kept kept(model, {kFirst, kSecond, kThird});
    other.warm({kFirst, kSecond, kThird}, kMode, {.sink = &kept});
    residues = kept.bytes;
    Kept again(model, {kFirst, kSecond, kThird});
    other.warm({kFirst, kSecond, kThird}, kMode, {.sink = &again});
    EXPECT_EQ(again.bytes, residues);
    for (const Kept::Rank& rank : again.ranks) EXPECT_EQ(rank.cached, std::vector<bool>(3, true));
    expected = other.run({request()}, mode_named("full")).responses[0];
    reused = Engine(model, {}).run({request()}, kMode).responses[0];
    engine.receive_from(&inbox);
  }
  ~Fixture() {
    engine.flush();
    EXPECT_NO_THROW(engine.check_integrity());
    EXPECT_EQ(inbox.bytes_in_use() == 0, inbox.counters().opened == closed);
  }
  static Request request() { return {.segments = {kFirst, kSecond, kThird, kQuestion}, .max_tokens = 4}; }

  void give(uint64_t transfer, uint64_t generation, size_t segment, int layer) {
    const std::vector<uint8_t>& bytes = residues[segment][layer];
    for (size_t at = 0; at < bytes.size(); at += 1000)
      inbox.take({.transfer = transfer,
                  .generation = generation,
                  .layer = layer,
                  .offset = at,
                  .bytes = std::span(bytes).subspan(at, std::min<size_t>(1000, bytes.size() - at))});
  }
  // A layer into a window, as another device would.
  void land(const Window& window, uint64_t transfer, uint64_t generation, size_t segment, int layer,
            std::shared_ptr<Event> ready = nullptr, uint64_t flaw = 0) {
    int64_t begin = 0;
    for (int before = 0; before < layer; ++before) begin += static_cast<int64_t>(residues[segment][before].size());
    const std::vector<uint8_t>& bytes = residues[segment][layer];
    std::copy(bytes.begin(), bytes.end(), window.data + begin);
    const uint64_t sum = checksum(bytes.data(), static_cast<int64_t>(bytes.size())) ^ flaw;
    Packet packet{
        .kind = Packet::Kind::landed, .transfer = transfer, .generation = generation, .layer = layer, .ready = ready};
    if (!ready) packet.bytes = {reinterpret_cast<const uint8_t*>(&sum), sizeof(sum)};
    inbox.take(packet);
  }
  int64_t bytes_of(size_t segment) const {
    int64_t bytes = 0;
    for (const auto& layer : residues[segment]) bytes += static_cast<int64_t>(layer.size());
    return bytes;
  }
  void close(uint64_t transfer) {
    inbox.close(transfer);
    ++closed;
  }

  RankBackends backends;
  Model model;
  Engine engine;
  Inbox inbox;
  std::vector<std::vector<std::vector<uint8_t>>> residues;
  Response expected, reused;
  int64_t closed = 0;
};

// Calls something before a layer of the forward.
class At final : public LayerHooks {
 public:
  explicit At(std::function<void(int)> what) : what_(std::move(what)) {}
  void before(int layer) override { what_(layer); }
  void after(int) override {}

 private:
  std::function<void(int)> what_;
};

TEST(Inbox, ResiduesOfAnotherEngineGiveTheSameAnswerAndComputeNothing) {
  for (const int ranks : kRanks) {
    Fixture f({}, {}, ranks);
    const uint64_t one = f.inbox.open(11, kFirst), two = f.inbox.open(12, kSecond), three = f.inbox.open(13, kThird);
    EXPECT_NE(one, 0u);
    EXPECT_EQ(f.inbox.open(11, kThird), 0u);  // a number that is open
    for (int layer = 0; layer < kLayers; ++layer) {
      f.give(11, one, 0, layer);
      f.give(12, two, 1, layer);
      f.give(13, three, 2, layer);
    }
    EXPECT_EQ(f.inbox.counters().complete, 3);
    const RunResult got = f.engine.run({Fixture::request()}, kMode);
    EXPECT_EQ(got.responses[0].tokens, f.reused.tokens);
    EXPECT_EQ(got.responses[0].logits, f.reused.logits);
    EXPECT_EQ(got.counters.isolated, 0);
    EXPECT_EQ(f.engine.restarts(), 0);
    // They are in the cache now, as if they had been computed here.
    for (const uint64_t transfer : {11, 12, 13}) f.close(transfer);
    const RunResult again = f.engine.run({Fixture::request()}, kMode);
    EXPECT_EQ(again.responses[0].tokens, f.reused.tokens);
    EXPECT_EQ(again.counters.isolated, 0);
  }
}

TEST(Inbox, TheForwardOverlapsWithWhatStillArrives) {
  for (const int ranks : kRanks) {
    Fixture f({}, {}, ranks);
    const uint64_t generation = f.inbox.open(1, kSecond);
    f.give(1, generation, 1, 0);
    EXPECT_TRUE(f.inbox.begun(std::vector<uint64_t>{1}));
    // Each layer comes only when the one before has begun.
    At hooks([&](int layer) {
      if (layer + 1 < kLayers) f.give(1, generation, 1, layer + 1);
    });
    const RunResult got = f.engine.run({Fixture::request()}, kMode, {.hooks = &hooks});
    EXPECT_EQ(got.responses[0].logits, f.reused.logits);
    EXPECT_EQ(got.counters.isolated, static_cast<int64_t>(kFirst.size() + kThird.size()));
    EXPECT_EQ(f.engine.restarts(), 0);
    f.close(1);
  }
}

TEST(Inbox, WhatDoesNotComeIsComputedWhereverItStops) {
  for (const int ranks : kRanks) {
    for (int stops = 0; stops < kLayers; ++stops) {
      for (const int32_t max_rows : {8192, 17}) {  // also where a prompt takes several forwards
        SCOPED_TRACE(stops);
        Fixture f({}, {.max_rows = max_rows}, ranks);
        const uint64_t second = f.inbox.open(1, kSecond), third = f.inbox.open(2, kThird);
        for (int layer = 0; layer < stops; ++layer) f.give(1, second, 1, layer);
        for (int layer = 0; layer < kLayers; ++layer) f.give(2, third, 2, layer);
        f.inbox.fail(1, "its worker is gone");
        const RunResult got = f.engine.run({Fixture::request()}, kMode);
        EXPECT_EQ(got.responses[0].logits, f.reused.logits);
        EXPECT_EQ(got.responses[0].tokens, f.reused.tokens);
        EXPECT_EQ(got.counters.isolated, static_cast<int64_t>(kFirst.size() + kSecond.size()));
        f.close(1);
        f.close(2);
      }
    }
  }
}

TEST(Inbox, AForwardThatIsUnderWayBeginsAnew) {
  for (const int ranks : kRanks) {
    for (int stops = 0; stops + 1 < kLayers; ++stops) {
      Fixture f({}, {}, ranks);
      const uint64_t generation = f.inbox.open(1, kSecond);
      for (int layer = 0; layer <= stops; ++layer) f.give(1, generation, 1, layer);
      At hooks([&](int layer) {
        if (layer == stops) f.inbox.lost(std::vector<uint64_t>{1}, "the connection broke");
      });
      const RunResult got = f.engine.run({Fixture::request()}, kMode, {.hooks = &hooks});
      EXPECT_EQ(got.responses[0].logits, f.reused.logits);
      EXPECT_EQ(f.engine.restarts(), 1);
      EXPECT_EQ(f.inbox.counters().failed, 1);
      f.close(1);
    }
  }
}

TEST(Inbox, FewStatesSufficeForWhatDoesNotCome) {
  for (const int ranks : kRanks) {
    Fixture f({}, {.pools = {.state_slots = 2, .operator_slots = 3, .pages = 64, .page_size = 16}}, ranks);
    const uint64_t first = f.inbox.open(1, kFirst), second = f.inbox.open(2, kSecond), third = f.inbox.open(3, kThird);
    f.give(1, first, 0, 0);
    f.give(2, second, 1, 0);
    f.give(3, third, 2, 0);
    At hooks([&](int layer) {
      if (layer == 0) f.inbox.lost(std::vector<uint64_t>{1, 2, 3}, "the connection broke");
    });
    const RunResult got = f.engine.run({Fixture::request()}, kMode, {.hooks = &hooks});
    EXPECT_EQ(got.responses[0].logits, f.reused.logits);
    EXPECT_EQ(f.engine.restarts(), 1);
    EXPECT_EQ(got.tables.size(), 3u);  // one build at a time, the last with the request
    for (const uint64_t transfer : {1, 2, 3}) f.close(transfer);
  }
}

// The published code waits 600 s for a worker that died and then aborts the request.
TEST(Inbox, PatienceEnds) {
  for (const int ranks : kRanks) {
    for (const bool begins : {false, true}) {
      Fixture f(begins ? InboxOptions{.patience = 20ms} : InboxOptions{.first_patience = 20ms, .patience = 1h}, {},
                ranks);
      const uint64_t generation = f.inbox.open(1, kSecond);
      if (begins) f.give(1, generation, 1, 0);
      const RunResult got = f.engine.run({Fixture::request()}, kMode);
      EXPECT_EQ(got.responses[0].logits, f.reused.logits);
      EXPECT_EQ(f.engine.restarts(), 1);
      EXPECT_EQ(f.inbox.counters().failed, 1);
      f.close(1);
    }
  }
}

// Its request was cancelled, in the middle of a forward that others may share.
TEST(Inbox, WhatIsClosedIsWaitedForNoLonger) {
  for (const int ranks : kRanks) {
    Fixture f({.first_patience = 1h, .patience = 1h}, {}, ranks);
    f.give(1, f.inbox.open(1, kSecond), 1, 0);
    At hooks([&](int layer) {
      if (layer == 0 && f.closed == 0) f.close(1);
    });
    const RunResult got = f.engine.run({Fixture::request()}, kMode, {.hooks = &hooks});
    EXPECT_EQ(got.responses[0].logits, f.reused.logits);
    EXPECT_EQ(f.engine.restarts(), 1);
    EXPECT_EQ(f.inbox.counters().failed, 0);
  }
}

TEST(Inbox, LatePacketsFindNoPlace) {
  Fixture f;
  const uint64_t before = f.inbox.open(1, kSecond);
  f.close(1);
  const uint64_t generation = f.inbox.open(1, kFirst);  // the same number, for something else
  EXPECT_NE(generation, before);
  for (int layer = 0; layer < kLayers; ++layer) f.give(1, before, 1, layer);
  EXPECT_GT(f.inbox.counters().stale, 0);
  EXPECT_EQ(f.inbox.counters().complete, 0);
  for (int layer = 0; layer < kLayers; ++layer) f.give(1, generation, 0, layer);
  const RunResult got = f.engine.run({Fixture::request()}, kMode);
  EXPECT_EQ(got.responses[0].logits, f.reused.logits);
  EXPECT_EQ(got.counters.isolated, static_cast<int64_t>(kSecond.size() + kThird.size()));
  f.close(1);
}

TEST(Inbox, DuplicatesAreDroppedGapsAndExcessFail) {
  Fixture f;
  const uint64_t generation = f.inbox.open(1, kSecond);
  for (int layer = 0; layer < kLayers; ++layer) {
    f.give(1, generation, 1, layer);
    f.give(1, generation, 1, layer);
  }
  EXPECT_GT(f.inbox.counters().duplicate, 0);
  EXPECT_EQ(f.inbox.counters().complete, 1);
  const std::vector<uint8_t> bytes(100);
  const uint64_t gap = f.inbox.open(2, kFirst);
  f.inbox.take({.transfer = 2, .generation = gap, .offset = 100, .bytes = bytes});
  EXPECT_EQ(f.inbox.counters().failed, 1);
  const uint64_t excess = f.inbox.open(3, kThird);
  f.inbox.take({.transfer = 3, .generation = excess, .offset = ~uint64_t{0}, .bytes = bytes});
  const uint64_t layers = f.inbox.open(4, kThird);
  f.inbox.take({.transfer = 4, .generation = layers, .layer = kLayers, .bytes = bytes});
  EXPECT_EQ(f.inbox.counters().failed, 3);
  const RunResult got = f.engine.run({Fixture::request()}, kMode);
  EXPECT_EQ(got.responses[0].logits, f.reused.logits);
  for (const uint64_t transfer : {1, 2, 3, 4}) f.close(transfer);
}

// Done from the beginning or, with `late`, once it has been waited for, which writes what was missing before.
class Written final : public Event {
 public:
  explicit Written(std::function<void()> late) : late_(std::move(late)) {}
  bool done() override { return !late_; }
  void wait() override {
    if (late_) std::exchange(late_, nullptr)();
  }

 private:
  std::function<void()> late_;
};

TEST(Inbox, LayersLandInWindows) {
  Fixture f({.device_bytes = 1 << 22});
  const uint64_t one = f.inbox.open(1, kFirst), two = f.inbox.open(2, kSecond), three = f.inbox.open(3, kThird);
  const auto first = f.inbox.window(1, one, f.bytes_of(0)), second = f.inbox.window(2, two, f.bytes_of(1));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(f.inbox.window(2, two, f.bytes_of(1)), second);
  EXPECT_FALSE(f.inbox.window(1, two, f.bytes_of(0)));        // another generation
  EXPECT_FALSE(f.inbox.window(3, three, f.bytes_of(2) + 1));  // another layout
  EXPECT_TRUE(second->data >= first->data + first->bytes || first->data >= second->data + second->bytes);
  // The first is said before it is there; the second has a layer each when the forward needs it; the third is none.
  for (int layer = 0; layer < kLayers; ++layer) {
    uint8_t* begin = first->data;
    for (int before = 0; before < layer; ++before) begin += f.residues[0][before].size();
    const std::vector<uint8_t>& bytes = f.residues[0][layer];
    const auto write = [begin, &bytes] { std::copy(bytes.begin(), bytes.end(), begin); };
    f.land(*first, 1, one, 0, layer, std::make_shared<Written>(write));
    std::fill(begin, begin + bytes.size(), uint8_t{0xff});
    f.give(3, three, 2, layer);
  }
  f.land(*second, 2, two, 1, 0);
  f.land(*second, 2, two, 1, 0);
  EXPECT_EQ(f.inbox.counters().duplicate, 1);
  At hooks([&](int layer) {
    if (layer + 1 < kLayers) f.land(*second, 2, two, 1, layer + 1);
  });
  const RunResult got = f.engine.run({Fixture::request()}, kMode, {.hooks = &hooks});
  EXPECT_EQ(got.responses[0].logits, f.reused.logits);
  EXPECT_EQ(got.counters.isolated, 0);
  EXPECT_EQ(f.inbox.counters().complete, 3);
  EXPECT_EQ(f.inbox.counters().landed, 2);
  for (const uint64_t transfer : {1, 2, 3}) f.close(transfer);
}

TEST(Inbox, WhatLandsWronglyIsComputed) {
  Fixture f({.device_bytes = 1 << 22});
  const uint64_t one = f.inbox.open(1, kFirst), two = f.inbox.open(2, kSecond), three = f.inbox.open(3, kThird);
  const auto first = f.inbox.window(1, one, f.bytes_of(0)), second = f.inbox.window(2, two, f.bytes_of(1));
  f.land(*first, 1, one, 0, 0, nullptr, 4);
  EXPECT_EQ(f.inbox.counters().failed, 1);
  f.land(*second, 2, two, 1, kLayers - 1);
  f.land(*second, 2, two + 99, 1, 0);
  EXPECT_EQ(f.inbox.counters().stale, 1);
  uint64_t sum = 0;
  const std::span bytes(reinterpret_cast<const uint8_t*>(&sum), sizeof(sum));
  f.inbox.take({.kind = Packet::Kind::landed, .transfer = 2, .generation = two, .layer = kLayers, .bytes = bytes});
  f.inbox.take({.kind = Packet::Kind::landed, .transfer = 3, .generation = three, .layer = 0, .bytes = bytes});
  EXPECT_EQ(f.inbox.counters().failed, 3);
  const RunResult got = f.engine.run({Fixture::request()}, kMode);
  EXPECT_EQ(got.responses[0].logits, f.reused.logits);
  EXPECT_EQ(got.counters.isolated, static_cast<int64_t>(kFirst.size() + kSecond.size() + kThird.size()));
  for (const uint64_t transfer : {1, 2, 3}) f.close(transfer);
}

// A sender that comes too late writes to memory that nobody else has meanwhile.
TEST(Inbox, WindowsAreNobodyElsesWhileTheirSenderHasThem) {
  Fixture f({.device_bytes = 1});
  const int64_t bytes = f.bytes_of(1);
  Inbox inbox(f.model, kMode, {.device_bytes = 2 * bytes + 200});
  auto late = inbox.window(1, inbox.open(1, kSecond), bytes);
  ASSERT_TRUE(late);
  inbox.close(1);
  auto other = inbox.window(1, inbox.open(1, kSecond), bytes);
  ASSERT_TRUE(other);
  EXPECT_NE(other->data, late->data);
  std::fill(late->data, late->data + bytes, uint8_t{1});
  EXPECT_FALSE(inbox.window(2, inbox.open(2, kSecond), bytes));  // by packets
  late.reset();
  const uint64_t again = inbox.open(3, kSecond);
  EXPECT_TRUE(inbox.window(3, again, bytes));
  for (const uint64_t transfer : {1, 2, 3}) inbox.close(transfer);
  other.reset();
  EXPECT_EQ(inbox.bytes_in_use(), 0);
}

TEST(Inbox, MemoryIsBounded) {
  Fixture f({.bytes = 100'000});
  int opened = 0;
  for (uint64_t transfer = 1; transfer < 100; ++transfer) opened += f.inbox.open(transfer, kSecond) != 0;
  EXPECT_GT(opened, 0);
  EXPECT_LT(opened, 99);
  EXPECT_EQ(f.inbox.counters().refused, 99 - opened);
  EXPECT_LE(f.inbox.bytes_in_use(), 100'000);
  EXPECT_EQ(f.inbox.open(200, {}), 0u);
  for (uint64_t transfer = 1; transfer < 100; ++transfer) f.inbox.close(transfer);
  f.closed = opened;
}

}  // namespace
}  // namespace hypic
