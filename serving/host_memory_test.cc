#include "serving/host_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "reference/cpu_backend.h"

namespace hypic {
namespace {

class HostMemory : public testing::Test {
 protected:
  const std::unique_ptr<Backend> backend_ = reference::make_cpu_backend();
};

TEST_F(HostMemory, RangesAreApartAndComeBack) {
  HostArena arena(*backend_, 10000);
  std::vector<HostArena::Range> ranges;
  std::mt19937 rng(1);
  for (int step = 0; step < 5000; ++step) {
    if (rng() % 2 && !ranges.empty()) {
      std::swap(ranges[rng() % ranges.size()], ranges.back());
      for (int64_t i = 1; i < ranges.back().size(); ++i) ASSERT_EQ(ranges.back().data()[i], ranges.back().data()[0]);
      ranges.pop_back();
    } else if (auto range = arena.take(1 + rng() % 900, rng() % 2 ? HostArena::End::lower : HostArena::End::upper)) {
      std::memset(range.data(), step, range.size());
      ranges.push_back(std::move(range));
    }
    arena.check();
  }
  ranges.clear();
  arena.check();
  EXPECT_EQ(arena.in_use(), 0);
  EXPECT_TRUE(arena.take(10000, HostArena::End::lower));
  EXPECT_FALSE(arena.take(10100, HostArena::End::lower));
}

// Equal sizes from below, others from above: whatever goes, a place for one of the equal ones is one as before.
TEST_F(HostMemory, TwoEndsLeaveEachOtherNoGaps) {
  HostArena arena(*backend_, 1024);
  std::vector<HostArena::Range> equal;
  for (int i = 0; i < 3; ++i) equal.push_back(arena.take(256, HostArena::End::lower));
  HostArena::Range other = arena.take(100, HostArena::End::upper);
  equal[1] = {};
  other = {};
  other = arena.take(200, HostArena::End::upper);
  EXPECT_GT(other.data(), equal[2].data());
  EXPECT_TRUE(arena.take(256, HostArena::End::lower));
}

TEST_F(HostMemory, AnyThreadMayGiveBack) {
  HostArena arena(*backend_, 1 << 16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        const HostArena::Range range = arena.take(1 + (i * 37 + t) % 5000, HostArena::End::upper);
        if (range) std::memset(range.data(), t, range.size());
      }
    });
  for (std::thread& thread : threads) thread.join();
  arena.check();
  EXPECT_EQ(arena.in_use(), 0);
}

TEST_F(HostMemory, MayBeEmpty) {
  HostArena arena(*backend_, 0);
  EXPECT_FALSE(arena.take(1, HostArena::End::lower));
  arena.check();
}

}  // namespace
}  // namespace hypic
