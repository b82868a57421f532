// What a whole block finds together.
#pragma once

#include <cstdint>

namespace hypic::cuda {

// The largest of the numbers that a thread has seen, by rising index: the first of equals; NaN counts as nothing.
struct Largest {
  float top = -INFINITY;
  int32_t index = INT32_MAX;  // there is none yet

  __device__ void see(float x, int32_t i) {
    if (!isnan(x) && (index == INT32_MAX || x > top)) {
      top = x;
      index = i;
    }
  }
};

// The index of the largest of what all threads have seen, the lowest at a tie, 0 where that is nothing. Every thread of
// a block of kThreads, a power of two, calls it and gets the answer; best and at are shared memory of kThreads
// elements.
template <int kThreads>
__device__ int32_t block_argmax(const Largest& mine, float* best, int32_t* at) {
  best[threadIdx.x] = mine.top;
  at[threadIdx.x] = mine.index;
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

// The same of value(0) … value(n − 1).
template <int kThreads, class Value>
__device__ int32_t block_argmax(int n, Value value, float* best, int32_t* at) {
  Largest mine;
  for (int i = threadIdx.x; i < n; i += kThreads) mine.see(value(i), i);
  return block_argmax<kThreads>(mine, best, at);
}

}  // namespace hypic::cuda
