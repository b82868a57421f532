// Tensor cores and asynchronous copies of one warp: thin names for the PTX of ldmatrix, mma.sync m16n8k16 and
// cp.async.
//
// Fragments (lane = 4g + t): A 16×16 is a[0] (g, 2t..) a[1] (g + 8, 2t..) a[2] (g, 2t + 8..) a[3] (g + 8, 2t + 8..);
// B 16×8 is b[0] (k 2t.., n g) b[1] (k 2t + 8.., n g); C 16×8 is c[0..1] (g, 2t..), c[2..3] (g + 8, 2t..).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace hypic::cuda {

// Where chunk `chunk` (16 bytes) of row `row` lies in its row, where rows are multiples of 128 bytes long: eight
// rows at one chunk, and eight chunks of one row, touch every bank of shared memory once.
__host__ __device__ constexpr int swizzle_128(int row, int chunk) { return chunk ^ (row & 7); }

// A generic pointer into shared memory as the address that the instructions below take.
__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 8×8 matrices of 16-bit numbers: lanes 8i..8i+7 give the rows (16 bytes each) of matrix i; lane 4g + t receives
// (g, 2t..) of each, .trans: (2t.., g).
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void ldmatrix_x2(uint32_t (&r)[2], uint32_t address) {  // lanes 0..15 give the rows
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// c += a · b
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += (lead + rest)(b_lead + b_rest), each the sum of two bf16 that split_bf16 makes, but for rest · b_rest.
__device__ inline void mma_split_bf16(float (&c)[4], const uint32_t (&lead)[4], const uint32_t (&rest)[4],
                                      uint32_t b0_lead, uint32_t b1_lead, uint32_t b0_rest, uint32_t b1_rest) {
  mma_bf16(c, lead, b0_lead, b1_lead);
  mma_bf16(c, lead, b0_rest, b1_rest);
  mma_bf16(c, rest, b0_lead, b1_lead);
}

// Two floats as a pair of bf16, `low` in the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float2 unpack_bf16(uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

// Copies 16 bytes to shared memory, past L1; where not `valid` it writes zeros and reads nothing. Both addresses
// are multiples of 16.
__device__ inline void cp_async_16(uint32_t to, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `kPending` of this thread's groups are under way; other threads' copies need a barrier as well.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Copies 4 bytes to shared memory, by way of L1; both addresses are multiples of 4.
__device__ inline void cp_async_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// The way back of ldmatrix_x4_trans: lane 4g + t has (2t.., g) of each matrix.
__device__ inline void stmatrix_x4_trans(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// Two matrices: lanes 0 … 15 have the addresses of rows.
__device__ inline void stmatrix_x2_trans(uint32_t address, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1)
               : "memory");
}

// All threads of the block, from wherever they are.
__device__ inline void block_barrier() { asm volatile("bar.sync 0;" ::: "memory"); }

// Registers a thread that this group of four warps has from now on, where the launch gave all groups as many: some
// give back, others then take.
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace hypic::cuda
