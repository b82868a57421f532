// Routing of a row by a warp, for the kernels that do it.
#pragma once

#include <bit>

#include "core/backend.h"
#include "kernels/common/piece.cuh"
#include "kernels/common/view.cuh"

namespace hypic::cuda {

inline constexpr int kMaxRouteEach = 16;  // experts of a lane

struct RouteRows {
  View<float> logits;
  const float* bias;
  int R, E, k;
  bool sigmoid;
  int group_lanes;  // lanes of a group; 0: all groups stay
  int kept_groups;
  bool renormalise;
  float scale;
  View<int32_t> experts;
  View<float> weights;
};

// Orders as the floats do, NaN below all others: 0.
__device__ inline uint32_t order_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // −0 as 0
  return isnan(x) ? 0 : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// For a whole warp. Expert e is number e % kEach of lane e / kEach. What has been chosen, and what is NaN or no expert,
// is 0 in `choice`; where all are, expert 0 is the answer.
template <int kEach>
__device__ void route_row(const RouteRows& a, int r) {
  constexpr unsigned kAllLanes = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) % 32, first = lane * kEach;
  const auto exists = [&](int i) { return first + i < a.E; };
  float score[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) score[i] = exists(i) ? a.logits.row(r)[first + i] : nanf("");
  if (a.sigmoid) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) score[i] = activate(score[i], static_cast<int>(Activation::sigmoid));
  } else {
    float top = nanf("");  // fmaxf takes the other where one is NaN
#pragma unroll
    for (int i = 0; i < kEach; ++i) top = fmaxf(top, score[i]);
    for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, offset));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      score[i] = expf(score[i] - top);
      if (exists(i)) sum += score[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kEach; ++i) score[i] /= sum;
  }
  uint32_t choice[kEach];
  float best = -INFINITY, second = -INFINITY;  // of the lane's experts
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float x = score[i] + (a.bias && exists(i) ? a.bias[first + i] : 0.0f);
    choice[i] = order_of(x);
    if (x > best) {
      second = best;
      best = x;
    } else if (x > second) {
      second = x;
    }
  }
  if (a.group_lanes > 0) {
    for (int offset = 1; offset < a.group_lanes; offset *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, offset), next = __shfl_xor_sync(kAllLanes, second, offset);
      second = fmaxf(fminf(best, other), fmaxf(second, next));
      best = fmaxf(best, other);
    }
    const float total = a.group_lanes * kEach > 1 ? best + second : best;
    int better = 0;  // groups
    for (int other = 0; other * a.group_lanes * kEach < a.E; ++other) {
      const float rival = __shfl_sync(kAllLanes, total, other * a.group_lanes);
      better += rival > total || (rival == total && other < lane / a.group_lanes);
    }
    if (better >= a.kept_groups) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (exists(i)) choice[i] = order_of(-INFINITY);
    }
  }
  float sum = 0, weight = 0;  // lane j keeps the j-th choice
  int expert = 0;
  for (int j = 0; j < a.k; ++j) {
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine = max(mine, choice[i]);
    const uint32_t top = __reduce_max_sync(kAllLanes, mine);
    const int owner = top == 0 ? 0 : __ffs(static_cast<int>(__ballot_sync(kAllLanes, mine == top))) - 1;
    int at = 0;
    float value = score[0];
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i)
      if (choice[i] == top && top != 0) {
        at = i;
        value = score[i];
      }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane == owner && i == at) choice[i] = 0;
    value = __shfl_sync(kAllLanes, value, owner);
    at = __shfl_sync(kAllLanes, at, owner);
    sum += value;
    if (lane == j) {
      expert = owner * kEach + at;
      weight = value;
    }
  }
  const float factor = a.renormalise ? a.scale / (sum + static_cast<float>(kRouteEps)) : a.scale;
  if (lane < a.k) {
    a.experts.row(r)[lane] = expert;
    a.weights.row(r)[lane] = weight * factor;
  }
}

// Experts of a lane, a power of two.
inline int route_each_of(int64_t E) {
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>((E + 31) / 32)));
}

// Of tensors that route_rows takes.
RouteRows route_rows_of(const RouteArgs& args);

}  // namespace hypic::cuda
