#include "harness/load/tally.h"

#include <gtest/gtest.h>

namespace hypic::load {
namespace {

Record ended(double scheduled, double at, const std::string& error = "") {
  Record record;
  record.scheduled = scheduled;
  record.ended = at;
  record.error = error;
  return record;
}

TEST(Tally, TellsAnswersFromFailures) {
  Tally tally(200, 100, 10);
  EXPECT_EQ(tally.text(), "0 answered of 200");
  tally.add(ended(0, 1));
  EXPECT_EQ(tally.text(), "1 answered of 200");
  tally.add(ended(1, 11, "timed out"));
  tally.add(ended(2, 3, "HTTP 503"));
  EXPECT_EQ(tally.text(), "1 answered, 2 failed of 200");
  EXPECT_EQ(tally.ended(), 3);
}

// Whatever comes, time that passes leaves less, but where a request takes longer than any before it.
TEST(Tally, ShrinksAsTimePasses) {
  Tally hanging(20, 100, 10);
  EXPECT_EQ(hanging.left(0), 110);
  EXPECT_EQ(hanging.left(30), 80);
  for (int i = 0; i < 20; ++i) {
    const double before = hanging.left(10 + 5 * i);
    hanging.add(ended(5 * i, 10 + 5 * i, "timed out"));
    EXPECT_LE(hanging.left(10 + 5 * i), before) << i;
  }
  EXPECT_EQ(hanging.left(110), 0);
  Tally fast(3, 100, 10);
  fast.add(ended(0, 1));
  EXPECT_EQ(fast.left(50), 51);
  fast.add(ended(50, 52));
  EXPECT_EQ(fast.left(52), 50);
  EXPECT_EQ(fast.left(103), 7);  // slower than those before: until it is given up
  EXPECT_EQ(fast.left(200), 0);
  fast.add(ended(100, 105));
  EXPECT_EQ(fast.left(105), 0);
}

}  // namespace
}  // namespace hypic::load
