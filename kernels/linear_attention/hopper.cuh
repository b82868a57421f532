// What chunked linear attention takes from Hopper beside kernels/common/wgmma.cuh: clusters, bulk copies to all blocks
// of one, rings, named barriers, and products of registers with a tile. Thin names for the PTX.
#pragma once

#include "kernels/common/mma.cuh"
#include "kernels/common/wgmma.cuh"

namespace hypic::cuda {

// ---- Clusters

__device__ inline uint32_t cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
// All threads of all blocks of the cluster.
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}

// ---- Bulk copies; addresses and bytes are multiples of 16

// From global memory to the same place in the first `blocks` blocks of the cluster, and to the
// mbarrier of each.
__device__ inline void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint32_t blocks) {
  if (blocks == 1)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
  else
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], "
        "%4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>((1u << blocks) - 1))
        : "memory");
}

// ---- Rings

// A place in a ring of kSize, and the parity of its round.
template <int kSize>
struct RingPlace {
  uint32_t at = 0, parity = 0;
  __device__ void next() {
    if (++at == kSize) {
      at = 0;
      parity ^= 1;
    }
  }
};

// ---- Named barriers of some of a block's threads

template <int kBarrier, int kThreads>
__device__ inline void named_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}
template <int kBarrier, int kThreads>
__device__ inline void named_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// ---- Products

// c += a · b, the k of 8: a[0] (g, 2t..), a[1] (g + 8, 2t..); b (k 2t.., n g).
__device__ inline void mma_bf16_k8(float (&c)[4], const uint32_t (&a)[2], uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, "
      "%1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Describes a tile [n][64 k] of bf16 at a multiple of 1024 bytes, rows of 128 bytes under
// swizzle_128; k advances by 32 bytes a 16.
__device__ inline uint64_t wgmma_tile(uint32_t address) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
// c = a · b, or c += where `sum`, of a warpgroup, 64 × kN by 16 k: warp w has rows 16 w + (0 … 15)
// of a and c as fragments of 16 × 16 and 16 × 8; b is kN n of a tile.
#define HYPIC_C4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define HYPIC_C8 HYPIC_C4(0), HYPIC_C4(1)
#define HYPIC_C16(i) HYPIC_C4(i), HYPIC_C4(i + 1), HYPIC_C4(i + 2), HYPIC_C4(i + 3)
#define HYPIC_C32 HYPIC_C16(0), HYPIC_C16(4)
#define HYPIC_C64 HYPIC_C32, HYPIC_C16(8), HYPIC_C16(12)
#define HYPIC_R8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define HYPIC_R16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HYPIC_R32 HYPIC_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HYPIC_R64                                                                           \
  HYPIC_R32                                                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, "                                                                         \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define HYPIC_WGMMA(n, c, registers, a0, a1, a2, a3, b, sum, down)                                                     \
  asm volatile("{.reg .pred sum;\n\tsetp.ne.b32 sum, " sum                                                             \
               ", 0;\n\t"                                                                                              \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" registers "}, {" a0 ", " a1 ", " a2 ", " a3 \
               "}, " b ", sum, 1, 1, " down ";}"                                                                       \
               : c                                                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "r"(static_cast<int>(add)))
template <int kN>
__device__ inline void wgmma(float (&c)[kN / 8][4], const uint32_t (&a)[4], uint64_t tile, bool add) {
  static_assert(kN == 16 || kN == 32 || kN == 64 || kN == 128);
  if constexpr (kN == 16)
    HYPIC_WGMMA("16", HYPIC_C8, HYPIC_R8, "%8", "%9", "%10", "%11", "%12", "%13", "0");
  else if constexpr (kN == 32)
    HYPIC_WGMMA("32", HYPIC_C16(0), HYPIC_R16, "%16", "%17", "%18", "%19", "%20", "%21", "0");
  else if constexpr (kN == 64)
    HYPIC_WGMMA("64", HYPIC_C32, HYPIC_R32, "%32", "%33", "%34", "%35", "%36", "%37", "0");
  else
    HYPIC_WGMMA("128", HYPIC_C64, HYPIC_R64, "%64", "%65", "%66", "%67", "%68", "%69", "0");
}
// c += a · b, where b is kN columns of rows of k, N-major (matrix_in_shared).
template <int kN>
__device__ inline void wgmma_down(float (&c)[kN / 8][4], const uint32_t (&a)[4], uint64_t tile) {
  static_assert(kN == 64 || kN == 128);
  constexpr bool add = true;
  if constexpr (kN == 64)
    HYPIC_WGMMA("64", HYPIC_C32, HYPIC_R32, "%32", "%33", "%34", "%35", "%36", "%37", "1");
  else
    HYPIC_WGMMA("128", HYPIC_C64, HYPIC_R64, "%64", "%65", "%66", "%67", "%68", "%69", "1");
}
#undef HYPIC_WGMMA
#undef HYPIC_R64
#undef HYPIC_R32
#undef HYPIC_R16
#undef HYPIC_R8
#undef HYPIC_C64
#undef HYPIC_C32
#undef HYPIC_C16
#undef HYPIC_C8
#undef HYPIC_C4

}  // namespace hypic::cuda
