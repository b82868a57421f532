#include "kernels/common/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <vector>

namespace hypic::cuda {
namespace {

class ArenaTest : public ::testing::Test {
 protected:
  std::vector<size_t> slabs_;
  std::set<void*> held_;
  Arena arena_{[this](size_t bytes) {
                 slabs_.push_back(bytes);
                 void* const memory = std::aligned_alloc(Arena::kAlignment, bytes);
                 held_.insert(memory);
                 return memory;
               },
               [this](void* memory) {
                 EXPECT_EQ(held_.erase(memory), 1u);
                 std::free(memory);
               }};
};

TEST_F(ArenaTest, PlacesAreAlignedAndApart) {
  char* const a = static_cast<char*>(arena_.take(1));
  char* const b = static_cast<char*>(arena_.take(0));
  char* const c = static_cast<char*>(arena_.take(Arena::kAlignment + 1));
  EXPECT_EQ(b - a, static_cast<ptrdiff_t>(Arena::kAlignment));
  EXPECT_EQ(c - b, static_cast<ptrdiff_t>(Arena::kAlignment));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % Arena::kAlignment, 0u);
  EXPECT_EQ(slabs_, std::vector<size_t>{Arena::kMinSlab});
}

TEST_F(ArenaTest, TheSameSequenceHasTheSamePlaces) {
  std::vector<void*> first;
  for (int run = 0; run < 3; ++run) {
    std::vector<void*> places;
    for (const size_t bytes : {1000u, 20u, 70000u, 3u}) places.push_back(arena_.take(bytes));
    if (run == 0) first = places;
    EXPECT_EQ(places, first);
    for (const int i : {1, 3, 0, 2}) EXPECT_TRUE(arena_.give_back(places[i]));
  }
  EXPECT_EQ(slabs_.size(), 1u);
}

TEST_F(ArenaTest, WhatAdjoinsIsJoined) {
  void* const whole = arena_.take(Arena::kMinSlab);
  EXPECT_TRUE(arena_.give_back(whole));
  std::vector<void*> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(arena_.take(Arena::kMinSlab / 4));
  for (const int i : {0, 2, 1, 3}) EXPECT_TRUE(arena_.give_back(parts[i]));
  EXPECT_EQ(arena_.take(Arena::kMinSlab), whole);
  EXPECT_EQ(slabs_.size(), 1u);
}

TEST_F(ArenaTest, ANewSlabIsAtLeastAsLargeAsAllBefore) {
  arena_.take(Arena::kMinSlab);
  arena_.take(1);
  arena_.take(3 * Arena::kMinSlab);
  EXPECT_EQ(slabs_, (std::vector<size_t>{Arena::kMinSlab, Arena::kMinSlab, 3 * Arena::kMinSlab}));
  EXPECT_EQ(arena_.bytes(), 5 * Arena::kMinSlab);
}

TEST_F(ArenaTest, RefusesWhatIsNotItsOwn) {
  int other = 0;
  EXPECT_FALSE(arena_.give_back(&other));
  void* const memory = arena_.take(1);
  EXPECT_TRUE(arena_.give_back(memory));
  EXPECT_FALSE(arena_.give_back(memory));
}

TEST_F(ArenaTest, WhatCannotBeObtainedLeavesItAsItWas) {
  Arena arena([](size_t) -> void* { throw 1; }, [](void*) {});
  EXPECT_THROW(arena.take(1), int);
  EXPECT_EQ(arena.bytes(), 0u);
}

}  // namespace
}  // namespace hypic::cuda
