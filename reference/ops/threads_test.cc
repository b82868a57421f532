#include "reference/ops/threads.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace hypic::reference {
namespace {

constexpr int64_t kFew = 1, kMany = int64_t{1} << 40;

TEST(ParallelFor, VisitsEveryIndexOnce) {
  for (const int64_t multiplications : {kFew, kMany})
    for (const int64_t count : {0, 1, 7, 5000}) {
      std::vector<int> visits(count);
      parallel_for(count, multiplications, [&](int64_t i) { ++visits[i]; });
      EXPECT_EQ(visits, std::vector<int>(count, 1)) << count;
    }
}

TEST(ParallelFor, AnExceptionReachesTheCaller) {
  for (const int64_t multiplications : {kFew, kMany})
    EXPECT_THROW(parallel_for(100, multiplications,
                              [](int64_t i) {
                                if (i == 50) throw std::runtime_error("50");
                              }),
                 std::runtime_error);
}

}  // namespace
}  // namespace hypic::reference
