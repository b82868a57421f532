// A tensor-parallel group whose tensors are in host memory.
#pragma once

#include <vector>

#include "core/meeting.h"
#include "core/tensor.h"

namespace hypic::reference {

struct Group {
  explicit Group(int ranks) : meeting(ranks), parts(ranks) {}

  // Waits for the other ranks; the sum, in the order of ranks, is then every rank's. RankLost. InternalError, for the
  // last one to come, where tensors differ in size or dtype.
  void all_reduce(int rank, const Tensor& tensor);

  Meeting meeting;
  std::vector<Tensor> parts;  // of those that have come
};

}  // namespace hypic::reference
