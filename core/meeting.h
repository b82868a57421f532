// Where the ranks of a tensor-parallel group that are threads of one process meet.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace hypic {

class Meeting {
 public:
  explicit Meeting(int ranks) : left_(ranks) {}

  // Waits until every rank has come. The last one runs `act` while the others wait, which then go on with what it did;
  // where it throws, that rank should leave. RankLost where a rank has left.
  void meet(int rank, const std::function<void()>& act);
  // Of Backend::leave_group and rejoin_group.
  void leave(int rank) noexcept;
  void rejoin(int rank);

 private:
  void require_all(int rank) const;

  std::mutex mutex_;
  std::condition_variable met_;
  std::vector<bool> left_;
  size_t waiting_ = 0;
  uint64_t meetings_ = 0;  // so far
};

}  // namespace hypic
