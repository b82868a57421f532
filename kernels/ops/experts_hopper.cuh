// What the wgmma kernel of `experts` has beyond common/wgmma.cuh: clusters of two blocks, copies to both, products of
// any width.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/common/wgmma.cuh"

namespace hypic::cuda {

// All threads of the cluster.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A box of a tensor of five axes to the same address of each block in `blocks` (a bit each), told to the barrier
// at the same address there.
__device__ inline void bulk_load_5d(uint32_t to, const CUtensorMap* map, uint32_t barrier, uint16_t blocks, int c0,
                                    int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(blocks), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
// A box of a tensor of two axes to this block's address, told to its barrier.
__device__ inline void bulk_load_2d(uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1)
      : "memory");
}
__device__ inline uint4 load_shared_16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

// The registers of a product of n = 8 · blocks, as text and as operands.
#define HYPIC_TEXT_1 "%0, %1, %2, %3"
#define HYPIC_TEXT_2 HYPIC_TEXT_1 ", " "%4, %5, %6, %7"
#define HYPIC_TEXT_3 HYPIC_TEXT_2 ", " "%8, %9, %10, %11"
#define HYPIC_TEXT_4 HYPIC_TEXT_3 ", " "%12, %13, %14, %15"
#define HYPIC_TEXT_5 HYPIC_TEXT_4 ", " "%16, %17, %18, %19"
#define HYPIC_TEXT_6 HYPIC_TEXT_5 ", " "%20, %21, %22, %23"
#define HYPIC_TEXT_7 HYPIC_TEXT_6 ", " "%24, %25, %26, %27"
#define HYPIC_TEXT_8 HYPIC_TEXT_7 ", " "%28, %29, %30, %31"
#define HYPIC_TEXT_9 HYPIC_TEXT_8 ", " "%32, %33, %34, %35"
#define HYPIC_TEXT_10 HYPIC_TEXT_9 ", " "%36, %37, %38, %39"
#define HYPIC_TEXT_11 HYPIC_TEXT_10 ", " "%40, %41, %42, %43"
#define HYPIC_TEXT_12 HYPIC_TEXT_11 ", " "%44, %45, %46, %47"
#define HYPIC_TEXT_13 HYPIC_TEXT_12 ", " "%48, %49, %50, %51"
#define HYPIC_TEXT_14 HYPIC_TEXT_13 ", " "%52, %53, %54, %55"
#define HYPIC_TEXT_15 HYPIC_TEXT_14 ", " "%56, %57, %58, %59"
#define HYPIC_TEXT_16 HYPIC_TEXT_15 ", " "%60, %61, %62, %63"
#define HYPIC_TEXT_17 HYPIC_TEXT_16 ", " "%64, %65, %66, %67"
#define HYPIC_TEXT_18 HYPIC_TEXT_17 ", " "%68, %69, %70, %71"
#define HYPIC_SUMS_1 "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define HYPIC_SUMS_2 HYPIC_SUMS_1, "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
#define HYPIC_SUMS_3 HYPIC_SUMS_2, "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11])
#define HYPIC_SUMS_4 HYPIC_SUMS_3, "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
#define HYPIC_SUMS_5 HYPIC_SUMS_4, "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19])
#define HYPIC_SUMS_6 HYPIC_SUMS_5, "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23])
#define HYPIC_SUMS_7 HYPIC_SUMS_6, "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27])
#define HYPIC_SUMS_8 HYPIC_SUMS_7, "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
#define HYPIC_SUMS_9 HYPIC_SUMS_8, "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35])
#define HYPIC_SUMS_10 HYPIC_SUMS_9, "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39])
#define HYPIC_SUMS_11 HYPIC_SUMS_10, "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43])
#define HYPIC_SUMS_12 HYPIC_SUMS_11, "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47])
#define HYPIC_SUMS_13 HYPIC_SUMS_12, "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51])
#define HYPIC_SUMS_14 HYPIC_SUMS_13, "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55])
#define HYPIC_SUMS_15 HYPIC_SUMS_14, "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59])
#define HYPIC_SUMS_16 HYPIC_SUMS_15, "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
#define HYPIC_SUMS_17 HYPIC_SUMS_16, "+f"(c[64]), "+f"(c[65]), "+f"(c[66]), "+f"(c[67])
#define HYPIC_SUMS_18 HYPIC_SUMS_17, "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71])
#define HYPIC_WGMMA(blocks, n, a_at, b_at)                                                                           \
  if constexpr (kN == n)                                                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" HYPIC_TEXT_##blocks "}, %" #a_at          \
               ", %" #b_at ", 1, 1, 1, 0, 0;"                                                                       \
               : HYPIC_SUMS_##blocks                                                                                \
               : "l"(a), "l"(b))

// c += a · bᵀ, [64, 16] · [kN, 16]ᵀ, begun: a warp's 16 rows of c lie in c[4j..] as those of mma_bf16 of the
// columns 8j...
template <int kN>
__device__ inline void wgmma_bf16(float (&c)[kN / 2], uint64_t a, uint64_t b) {
  HYPIC_WGMMA(2, 16, 8, 9);
  HYPIC_WGMMA(4, 32, 16, 17);
  HYPIC_WGMMA(6, 48, 24, 25);
  HYPIC_WGMMA(8, 64, 32, 33);
  HYPIC_WGMMA(10, 80, 40, 41);
  HYPIC_WGMMA(12, 96, 48, 49);
  HYPIC_WGMMA(13, 104, 52, 53);
  HYPIC_WGMMA(14, 112, 56, 57);
  HYPIC_WGMMA(15, 120, 60, 61);
  HYPIC_WGMMA(16, 128, 64, 65);
  HYPIC_WGMMA(17, 136, 68, 69);
  HYPIC_WGMMA(18, 144, 72, 73);
}

#undef HYPIC_WGMMA
#undef HYPIC_TEXT_1
#undef HYPIC_SUMS_1
#undef HYPIC_TEXT_2
#undef HYPIC_SUMS_2
#undef HYPIC_TEXT_3
#undef HYPIC_SUMS_3
#undef HYPIC_TEXT_4
#undef HYPIC_SUMS_4
#undef HYPIC_TEXT_5
#undef HYPIC_SUMS_5
#undef HYPIC_TEXT_6
#undef HYPIC_SUMS_6
#undef HYPIC_TEXT_7
#undef HYPIC_SUMS_7
#undef HYPIC_TEXT_8
#undef HYPIC_SUMS_8
#undef HYPIC_TEXT_9
#undef HYPIC_SUMS_9
#undef HYPIC_TEXT_10
#undef HYPIC_SUMS_10
#undef HYPIC_TEXT_11
#undef HYPIC_SUMS_11
#undef HYPIC_TEXT_12
#undef HYPIC_SUMS_12
#undef HYPIC_TEXT_13
#undef HYPIC_SUMS_13
#undef HYPIC_TEXT_14
#undef HYPIC_SUMS_14
#undef HYPIC_TEXT_15
#undef HYPIC_SUMS_15
#undef HYPIC_TEXT_16
#undef HYPIC_SUMS_16
#undef HYPIC_TEXT_17
#undef HYPIC_SUMS_17
#undef HYPIC_TEXT_18
#undef HYPIC_SUMS_18

}  // namespace hypic::cuda
