#include "serving/hit_directory.h"

#include <gtest/gtest.h>

namespace hypic {
namespace {

using namespace std::chrono_literals;

SegmentKey key(int32_t token) { return segment_key({token}); }

TEST(HitDirectory, FollowsEvictionLossAndNewLives) {
  HitDirectory directory;
  directory.update(0, 7, true, std::vector<ResidueChange>{{key(1), true}, {key(2), true}});
  directory.update(1, 8, true, std::vector<ResidueChange>{{key(1), true}});
  EXPECT_TRUE(directory.has(0, key(1)) && directory.has(1, key(1)) && directory.has(0, key(2)));
  EXPECT_FALSE(directory.has(1, key(2)));
  directory.update(0, 7, false, std::vector<ResidueChange>{{key(1), false}});  // evicted
  EXPECT_FALSE(directory.has(0, key(1)));
  EXPECT_TRUE(directory.has(0, key(2)));
  directory.update(0, 9, false, std::vector<ResidueChange>{{key(3), true}});  // another life
  EXPECT_FALSE(directory.has(0, key(2)));
  EXPECT_TRUE(directory.has(0, key(3)));
  directory.forget(1);
  EXPECT_FALSE(directory.has(1, key(1)));
  EXPECT_EQ(directory.size(), 1);
}

TEST(ResidueIndex, AResidueIsHereWithBothParts) {
  const Mode mode = mode_named("transition_rope_seam");
  ResidueIndex index(mode, 3);
  index.note(Part::kv, {1}, 0, 0, true);
  EXPECT_TRUE(index.since(0, 0ms).changes.empty());
  index.note(Part::op, {1}, 4, 0, true);  // of another seam
  EXPECT_TRUE(index.since(0, 0ms).changes.empty());
  index.note(Part::op, {1}, 8, 0, true);
  ResidueIndex::Update update = index.since(0, 0ms);
  ASSERT_EQ(update.changes.size(), 1u);
  EXPECT_TRUE(update.snapshot && update.changes[0].here && update.changes[0].key == key(1));
  EXPECT_TRUE(index.since(update.next, 0ms).changes.empty());
  index.note(Part::kv, {1}, 0, 0, false);
  update = index.since(update.next, 0ms);
  EXPECT_FALSE(update.snapshot);
  ASSERT_EQ(update.changes.size(), 1u);
  EXPECT_FALSE(update.changes[0].here);
  // Who did not listen for too long hears everything.
  for (int i = 0; i < 2; ++i)
    for (const bool here : {true, false}) index.note(Part::kv, {1}, 0, 0, here);
  EXPECT_TRUE(index.since(update.next, 0ms).snapshot);
}

TEST(CostModel, LearnsALine) {
  CostModel cost;
  EXPECT_EQ(cost(100), 100);
  for (int i = 0; i < 50; ++i)
    for (const double n : {64.0, 512.0, 2048.0}) cost.add(n, 0.01 + 1e-4 * n);
  EXPECT_NEAR(cost(1000), 0.11, 1e-6);
  CostModel one;
  one.add(100, 0.2);
  EXPECT_NEAR(one(200), 0.4, 1e-12);
  one.add(0, 1);
  one.add(100, -1);
  EXPECT_NEAR(one(200), 0.4, 1e-12);
  CostModel falling;  // noise must not make long segments cheap
  falling.add(100, 0.2);
  falling.add(200, 0.1);
  EXPECT_GT(falling(400), falling(200));
}

}  // namespace
}  // namespace hypic
