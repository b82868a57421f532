// Many rows an expert. As experts_mma, but the products turned about: an expert's weights are the rows of wgmma and
// its pairs the columns, of which a product takes any number of eights, so that little is computed for nothing. A
// cluster of two blocks halves what is read of the weights: it works on 256 of their rows, which TMA brings to both
// blocks at once, and each block on half of the pairs, whose rows, anywhere in x, cp.async gathers.
//
// Every sum over the inner axis is one chain of k16 steps from its begin to its end, whatever the tile.
#include "kernels/ops/experts_wgmma.cuh"

#include <algorithm>

#include "kernels/common/mma.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"
#include "kernels/ops/experts_hopper.cuh"
#include "kernels/ops/experts_mma.cuh"
#include "kernels/ops/experts_plan.h"
#include "kernels/ops/experts_sort.cuh"

namespace hypic::cuda {
namespace {

using Wide = ExpertsWideTile;

enum class Product { gated, ungated, down };

struct ProductArgs {
  const __nv_bfloat16* x;  // up: rows of x; down: inner, in order of places
  int64_t x_stride;
  int K, columns;  // columns: of the result
  int column_tiles;
  int k;
  const int4* tiles;
  const int32_t* tile_count;
  const int32_t* pairs;
  __nv_bfloat16* out;  // [P, columns]
  int activation;
};

constexpr int kRowBytes = Wide::kStep * 2, kChunks = kRowBytes / 16;
constexpr int kPairsAt = Wide::kColumns * kRowBytes;  // in a stage, behind the weights
constexpr int kFetchers = 128, kFetchRows = kFetchers / kChunks;
constexpr int kRowsOfThread = (Wide::kBlockRows + kFetchRows - 1) / kFetchRows;
constexpr int kFetchRegisters = 56, kMultiplyRegisters = 224;  // 128 · 56 + 256 · 224 = 384 · 168
constexpr int kFullArrivals = 1 + kFetchers;  // who asks for the weights, and those who gather
constexpr int kEmptyArrivals = 2 * 8;                          // the warps that multiply, in both blocks
static_assert(kFetchRows % 8 == 0 && kPairsAt % 1024 == 0 && Wide::kStageBytes % 1024 == 0);
static_assert(Wide::kThreads == kFetchers + 256);

template <Product kProduct>
struct Shape {
  static constexpr int kParts = kProduct == Product::gated ? 2 : 1;
  static constexpr int kColumns = Wide::kColumns / kParts;  // of the result, in a tile
  static constexpr int kGroupColumns = kColumns / 2;        // in one group that multiplies
  static constexpr int kOutRowBytes = Wide::out_row_bytes(kGroupColumns);
  static constexpr int kStages = Wide::stages(kGroupColumns);
};

// The pairs of a tile that one block of the cluster has.
struct Rows {
  int first, count;
  int width;  // of the products of both blocks, a multiple of 8
};
__device__ inline Rows rows_of(int4 tile, int rank) {
  const int width = (tile.z + 15) / 16 * 8;
  return {tile.y + rank * width, rank == 0 ? min(width, tile.z) : max(tile.z - width, 0), width};
}

// A place in the ring of stages.
template <int kStages>
struct Slot {
  int at = 0, parity = 0;
  __device__ void advance() {
    if (++at == kStages) at = 0, parity ^= 1;
  }
};

struct Ring {
  uint32_t stages, full, empty;  // addresses in shared memory
  __device__ uint32_t stage(int slot) const { return stages + slot * Wide::kStageBytes; }
};

// ---- The group that fetches

template <Product kProduct>
__device__ void fetch(const CUtensorMap* weights, const ProductArgs& p, Ring ring, int rank, int work, int steps) {
  constexpr uint32_t kNone = 0xffffffffu;
  const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
  const uint32_t to = kPairsAt + first * kRowBytes + swizzle<kRowBytes>(first, chunk) * 16;
  const auto row_stride = static_cast<uint32_t>(p.x_stride / 8);
  const int clusters = gridDim.x / 2;

  Slot<Shape<kProduct>::kStages> slot;
  int4 ahead = p.tiles[blockIdx.x / 2 / p.column_tiles];
  for (int at = blockIdx.x / 2; at < work; at += clusters) {
    const int4 tile = ahead;
    if (at + clusters < work) ahead = p.tiles[(at + clusters) / p.column_tiles];
    const Rows rows = rows_of(tile, rank);
    const int block = (at % p.column_tiles * Shape<kProduct>::kColumns + rank * Shape<kProduct>::kGroupColumns) / 8;
    uint32_t x_rows[kRowsOfThread];  // in chunks
    for (int step = 0; step < steps; ++step) {
      const uint32_t empty = ring.empty + slot.at * 8;
      barrier_wait(empty, slot.parity ^ 1);
      const uint32_t stage = ring.stage(slot.at);
      if (threadIdx.x == 0) {
        barrier_arrive_expect(ring.full + slot.at * 8, kPairsAt);
        bulk_load_5d(stage + rank * (kPairsAt / 2), weights, ring.full + slot.at * 8, 3, step * Wide::kStep, 0, 0,
                     block, tile.x);
      }
      __syncwarp();
      if (step == 0) {  // waits for memory, so after the weights are asked for
#pragma unroll
        for (int j = 0; j < kRowsOfThread; ++j) {
          const int row = first + j * kFetchRows;
          x_rows[j] = kNone;
          if (row < rows.count) {
            const int place = rows.first + row;
            x_rows[j] = static_cast<uint32_t>(kProduct == Product::down ? place : p.pairs[place] / p.k) * row_stride;
          }
        }
      }
      // Rows beyond the tile's are left as they are, for no other sees them; what lies beyond K is zero in both
      // operands, for every sum sees it.
      const int column = step * Wide::kStep + chunk * 8;
#pragma unroll
      for (int j = 0; j < kRowsOfThread; ++j)
        if (x_rows[j] != kNone)
          cp_async_16(stage + to + j * kFetchRows * kRowBytes, p.x + static_cast<int64_t>(x_rows[j]) * 8 + column,
                      column < p.K);
      cp_async_arrive(ring.full + slot.at * 8);
      slot.advance();
    }
  }
}

// ---- The groups that multiply

// One tile of one group: [128 of the weights, K] · [kN pairs, K]ᵀ.
template <Product kProduct, int kN>
__device__ void multiply(const ProductArgs& p, Ring ring, Slot<Shape<kProduct>::kStages>& slot, uint32_t out_stage,
                         Rows rows, int column, int steps) {
  using S = Shape<kProduct>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128 - 1;
  const int thread = threadIdx.x % 128;
  int64_t places[2];  // where the rows that this thread sends go
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = thread + i * 128;
    places[i] = rows.first + row;
    if (kProduct == Product::down && row < rows.count) places[i] = p.pairs[rows.first + row];
  }

  float sum[2][kN / 2] = {};  // of 64 of the weights each
  const auto release = [&](int at) {
    if (lane < 2) barrier_arrive_at(ring.empty + at * 8, lane);
  };
  int before = 0;
  for (int step = 0; step < steps; ++step) {
    barrier_wait(ring.full + slot.at * 8, slot.parity);
    fence_async_proxy();  // what cp.async wrote, for wgmma
    const uint64_t weights = wgmma_operand<kRowBytes>(ring.stage(slot.at) + group * (kPairsAt / 2));
    const uint64_t pairs = wgmma_operand<kRowBytes>(ring.stage(slot.at) + kPairsAt);
    wgmma_hold(sum[0]), wgmma_hold(sum[1]);
    wgmma_begin();
#pragma unroll
    for (int k16 = 0; k16 < Wide::kStep / 16; ++k16) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        wgmma_bf16<kN>(sum[i], weights + i * (kPairsAt / 4 / 16) + k16 * 2, pairs + k16 * 2);
    }
    wgmma_commit();
    wgmma_hold(sum[0]), wgmma_hold(sum[1]);
    if (step > 0) {
      wgmma_wait<1>();
      release(before);
    }
    before = slot.at;
    slot.advance();
  }
  wgmma_wait<0>();
  wgmma_hold(sum[0]), wgmma_hold(sum[1]);
  release(before);

  // Out through shared memory: matrices of 8 columns by 8 pairs are turned on the way, and rows leave whole.
  bulk_wait_read();
  named_barrier(1 + group, 128);
  const uint32_t to = out_stage + (lane % 8) * S::kOutRowBytes;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const uint32_t row = to + j * 8 * S::kOutRowBytes;
    if constexpr (kProduct == Product::gated) {  // gate and up of a column lie in one thread
      const auto value = [&](int i, int c) {
        return activate_fast(sum[i][4 * j + c], p.activation) * sum[i][4 * j + 2 + c];
      };
      stmatrix_x2_trans(row + (lane / 8 % 2 * 4 + warp) * 16, pack_bf16(value(0, 0), value(0, 1)),
                        pack_bf16(value(1, 0), value(1, 1)));
    } else {
      const auto value = [&](int i, int c) {
        const float x = sum[i][4 * j + c];
        return kProduct == Product::down ? x : activate_fast(x, p.activation);
      };
      stmatrix_x4_trans(row + (lane / 16 * 8 + warp * 2 + lane / 8 % 2) * 16,
                        {pack_bf16(value(0, 0), value(0, 1)), pack_bf16(value(0, 2), value(0, 3)),
                         pack_bf16(value(1, 0), value(1, 1)), pack_bf16(value(1, 2), value(1, 3))});
    }
  }
  fence_async_proxy();
  named_barrier(1 + group, 128);
  const int bytes = min(S::kGroupColumns, p.columns - column) * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = thread + i * 128;
    if (row < rows.count && bytes > 0)
      bulk_store(p.out + places[i] * p.columns + column, out_stage + row * S::kOutRowBytes, bytes);
  }
  bulk_commit();
}

// Calls multiply of the least of the widths kN... that is not below that of the rows.
template <Product kProduct, int kN, int... kMore>
__device__ void multiply_any(std::integer_sequence<int, kN, kMore...>, const ProductArgs& p, Ring ring,
                             Slot<Shape<kProduct>::kStages>& slot, uint32_t out_stage, Rows rows, int column,
                             int steps) {
  if constexpr (sizeof...(kMore) > 0)
    if (rows.width > kN)
      return multiply_any<kProduct>(std::integer_sequence<int, kMore...>(), p, ring, slot, out_stage, rows, column,
                                    steps);
  multiply<kProduct, kN>(p, ring, slot, out_stage, rows, column, steps);
}
using Widths = std::integer_sequence<int, 16, 32, 48, 64, 80, 96, 104, 112, 120, 128, 136, 144>;

// Clusters walk (tile, column tile) with the stride of the grid; copies run ahead of the products across the ends of
// tiles too.
template <Product kProduct>
__global__ void __cluster_dims__(2) __launch_bounds__(Wide::kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ ProductArgs p) {
  using S = Shape<kProduct>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), barriers = base + S::kStages * Wide::kStageBytes;
  const Ring ring{base, barriers, barriers + S::kStages * 8};
  const uint32_t out_stages = barriers + S::kStages * 16;
  const int rank = cluster_rank();

  if (threadIdx.x == 0) {
    prefetch_map(&weights);
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(ring.full + i * 8, kFullArrivals);
      barrier_init(ring.empty + i * 8, kEmptyArrivals);
    }
    barrier_init_done();
  }
  cluster_sync();
  follow();
  const int work = *p.tile_count * p.column_tiles, steps = (p.K + Wide::kStep - 1) / Wide::kStep;

  if (threadIdx.x < kFetchers) {
    give_registers<kFetchRegisters>();
    fetch<kProduct>(&weights, p, ring, rank, work, steps);
  } else {
    take_registers<kMultiplyRegisters>();
    const int group = threadIdx.x / 128 - 1, clusters = gridDim.x / 2;
    const uint32_t out_stage = out_stages + group * (Wide::kBlockRows * S::kOutRowBytes);
    Slot<S::kStages> slot;
    int4 ahead = p.tiles[blockIdx.x / 2 / p.column_tiles];
    for (int at = blockIdx.x / 2; at < work; at += clusters) {
      const Rows rows = rows_of(ahead, rank);
      if (at + clusters < work) ahead = p.tiles[(at + clusters) / p.column_tiles];
      const int column = at % p.column_tiles * S::kColumns + group * S::kGroupColumns;
      multiply_any<kProduct>(Widths(), p, ring, slot, out_stage, rows, column, steps);
    }
    bulk_wait();
  }
  cluster_sync();  // the other block may still send here
}

// ---- Launch

// Of weights [E, parts · columns, K] in boxes of half a tile: in shared memory eights of a gate's rows and of the
// same up's take turns. What lies beyond the tensor is zero.
CUtensorMap weights_map(const void* weights, int E, int parts, int columns, int K) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    HYPIC_CHECK(found == cudaDriverEntryPointSuccess, "this driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const uint64_t row = static_cast<uint64_t>(K) * 2;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(K), 8, static_cast<cuuint64_t>(parts),
                              static_cast<cuuint64_t>(columns / 8), static_cast<cuuint64_t>(E)};
  const cuuint64_t strides[] = {row, row * columns, row * 8, row * columns * parts};
  const cuuint32_t box[] = {Wide::kStep, 8, static_cast<cuuint32_t>(parts),
                            static_cast<cuuint32_t>(Wide::kColumns / 2 / 8 / parts), 1};
  const cuuint32_t element_strides[] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, const_cast<void*>(weights), sizes, strides, box,
             element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
             kRowBytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HYPIC_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error ", static_cast<int>(result));
  return map;
}

template <Product kProduct>
void launch_product(const CUtensorMap& weights, const ProductArgs& args, int blocks, cudaStream_t stream) {
  constexpr int kBytes = Wide::shared_bytes(Shape<kProduct>::kGroupColumns);
  const auto kernel = product_kernel<kProduct>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "experts, shared memory");
  launch_next(kernel, dim3(static_cast<unsigned>(blocks)), Wide::kThreads, kBytes, stream, weights, args);
}

}  // namespace

bool experts_wgmma_takes(const ExpertsArgs& a, int sms) {
  if (!experts_mma_takes(a) || a.x[0] == 0) return false;
  const ExpertsSizes s = experts_sizes(a);
  return plan_experts(sms, s.R, s.k, s.E, s.N, s.I, a.gated).wide;
}

void experts_wgmma(const ExpertsArgs& a, int sms, cudaStream_t stream) {
  const ExpertsSizes s = experts_sizes(a);
  const ExpertsPlan plan = plan_experts(sms, s.R, s.k, s.E, s.N, s.I, a.gated);
  HYPIC_CHECK(plan.wide && experts_mma_takes(a));
  const Scratch memory(plan.bytes, stream);
  const ExpertsScratch scratch = experts_scratch(plan, memory.as<void>());
  const CUtensorMap up_map = weights_map(a.up.data, s.E, a.gated ? 2 : 1, s.I, s.N);
  const CUtensorMap down_map = weights_map(a.down.data, s.E, 1, s.N, s.I);
  for (int64_t begin = 0; begin < s.R; begin += plan.pass_rows) {
    const int64_t end = std::min(s.R, begin + plan.pass_rows);
    const Tensor x = a.x.rows(begin, end);
    experts_sort(a.experts.rows(begin, end), s.E, plan, scratch, stream);
    const ProductArgs up{.x = view<__nv_bfloat16>(x).data,
                         .x_stride = x.stride[0],
                         .K = s.N,
                         .columns = s.I,
                         .column_tiles = plan.up_column_tiles,
                         .k = s.k,
                         .tiles = scratch.tiles,
                         .tile_count = scratch.tile_count,
                         .pairs = scratch.pairs,
                         .out = scratch.inner,
                         .activation = static_cast<int>(a.activation)};
    ProductArgs down = up;
    down.x = scratch.inner, down.x_stride = s.I;
    down.K = s.I, down.columns = s.N, down.column_tiles = plan.down_column_tiles;
    down.out = scratch.outputs;
    if (a.gated)
      launch_product<Product::gated>(up_map, up, plan.up_blocks, stream);
    else
      launch_product<Product::ungated>(up_map, up, plan.up_blocks, stream);
    launch_product<Product::down>(down_map, down, plan.down_blocks, stream);
    experts_combine(scratch.outputs, a.weights.rows(begin, end), a.out.rows(begin, end), stream);
  }
}

}  // namespace hypic::cuda
