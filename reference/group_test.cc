#include "reference/group.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/backend.h"

namespace hypic::reference {
namespace {

constexpr int kRanks = 3;

TEST(Group, EveryRankGetsTheSumInTheOrderOfRanks) {
  Group group(kRanks);
  constexpr int kSums = 200, kSize = 5;
  std::vector<std::vector<float>> x(kRanks);
  std::vector<int> wrong(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        for (int s = 0; s < kSums; ++s) {
          x[rank].assign(kSize, 0.1f * static_cast<float>(s) + 1e-5f * static_cast<float>(rank));
          group.all_reduce(rank, Tensor(x[rank].data(), {kSize}));
          float want = 0.1f * static_cast<float>(s);
          for (int r = 1; r < kRanks; ++r) want += 0.1f * static_cast<float>(s) + 1e-5f * static_cast<float>(r);
          for (const float e : x[rank]) wrong[rank] += e != want;
        }
      });
  }
  EXPECT_EQ(wrong, std::vector<int>(kRanks));
}

TEST(Group, WhoWaitsForARankThatHasLeftIsToldAndAllCanRejoin) {
  Group group(kRanks);
  std::vector<double> x(kRanks, 1);
  const auto sum = [&](int rank) { group.all_reduce(rank, Tensor(&x[rank], {1})); };
  for (int round = 0; round < 20; ++round) {
    std::vector<int> lost(kRanks);
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < kRanks; ++rank)
        threads.emplace_back([&, rank] {
          if (rank == round % kRanks) return group.meeting.leave(rank);
          try {
            sum(rank);
          } catch (const RankLost&) {
            ++lost[rank];
            group.meeting.leave(rank);
          }
        });
    }
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(lost[rank], rank != round % kRanks);
    EXPECT_THROW(sum(0), RankLost);
    for (int rank = 0; rank < kRanks; ++rank) group.meeting.rejoin(rank);
    std::fill(x.begin(), x.end(), 1);
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(sum, rank);
    }
    EXPECT_EQ(x, std::vector<double>(kRanks, kRanks));
  }
}

TEST(Group, OtherSizesAreAnErrorAndNobodyHangs) {
  Group group(2);
  std::vector<double> x(3);
  std::vector<int> threw(2);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        try {
          group.all_reduce(rank, Tensor(&x[rank], {1 + rank}));
        } catch (const std::exception&) {
          ++threw[rank];
          group.meeting.leave(rank);
        }
      });
  }
  EXPECT_EQ(threw, std::vector<int>(2, 1));
}

}  // namespace
}  // namespace hypic::reference
