// What a whole block finds together.
#pragma once

#include <cstdint>

namespace hypic::cuda {

// The index of the largest of value(0) … value(n − 1), the lowest at a tie; NaN counts as nothing,
// and 0 is the answer where all are NaN. Every thread of a block of kThreads, a power of two, calls
// it and gets the answer; best and at are shared memory of kThreads elements.
template <int kThreads, class Value>
__device__ int32_t block_argmax(int n, Value value, float* best, int32_t* at) {
  float top = -INFINITY;
  int32_t index = INT32_MAX;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const float x = value(i);
    if (!isnan(x) && (index == INT32_MAX || x > top)) {
      top = x;
      index = i;
    }
  }
  best[threadIdx.x] = top;
  at[threadIdx.x] = index;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    const int other = threadIdx.x + half;
    if (threadIdx.x < half && at[other] != INT32_MAX &&
        (at[threadIdx.x] == INT32_MAX || best[other] > best[threadIdx.x] ||
         (best[other] == best[threadIdx.x] && at[other] < at[threadIdx.x]))) {
      best[threadIdx.x] = best[other];
      at[threadIdx.x] = at[other];
    }
  }
  __syncthreads();
  const int32_t winner = at[0] == INT32_MAX ? 0 : at[0];
  __syncthreads();
  return winner;
}

}  // namespace hypic::cuda
