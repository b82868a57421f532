// Many rows an expert. As experts_mma, but the products turned about: an expert's weights are the rows of wgmma and
// its pairs the columns, of which a product takes any number of eights, so that little is computed for nothing. A
// cluster of two blocks halves what is read of the weights: it works on 256 of their rows, which TMA brings to both
// blocks at once, and each block on half of the pairs. Their rows are anywhere in x, where cp.async gathers them, and
// one after another in `inner`, which TMA brings too.
//
// Every sum over the inner axis is one chain of k16 steps from its begin to its end, whatever the tile.
#include "kernels/ops/experts_wgmma.cuh"

#include <algorithm>
#include <iterator>

#include "kernels/common/mma.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/ops/experts_hopper.cuh"
#include "kernels/ops/experts_mma.cuh"
#include "kernels/ops/experts_plan.h"
#include "kernels/ops/experts_sort.cuh"

namespace hypic::cuda {
namespace {

using Wide = ExpertsWideTile;

enum class Product { gated, ungated, down };

struct ProductArgs {
  int K, columns;  // columns: of the result
  int column_tiles;
  const int4* tiles;
  const int32_t* tile_count;
  const int32_t* pairs;
  __nv_bfloat16* out;  // [P, columns]; up: in order of places, down: of pairs
  int activation;
  const __nv_bfloat16* x;  // of up; down has a map of inner
  int64_t x_stride;
  int k;
};

constexpr int kRowBytes = Wide::kStep * 2, kChunks = kRowBytes / 16;
constexpr int kEightBytes = 8 * kRowBytes;
constexpr int kPairsAt = Wide::kColumns * kRowBytes;  // in a stage, behind the weights
constexpr int kMultipliers = 256, kFetchers = 128;    // threads
constexpr int kThreads = kMultipliers + kFetchers;
constexpr int kFetchRows = kFetchers / kChunks;
constexpr int kRowsOfThread = (Wide::kBlockRows + kFetchRows - 1) / kFetchRows;
constexpr int kFetchRegisters = 56, kMultiplyRegisters = 224;  // 128 · 56 + 256 · 224 = 384 · 168
constexpr int kEmptyArrivals = 2 * 8;                          // the warps that multiply, in both blocks
static_assert(kFetchRows % 8 == 0 && kRowBytes == 128 && Wide::kBlockRows % Wide::kBoxRows == 0);

template <Product kProduct>
struct Shape {
  static constexpr int kParts = kProduct == Product::gated ? 2 : 1;
  static constexpr int kColumns = Wide::kColumns / kParts;  // of the result, in a tile
  static constexpr int kGroupColumns = kColumns / 2;        // in one group that multiplies
  static constexpr bool kGathers = kProduct != Product::down;
  // At a full stage: who asks for copies by TMA, and those who gather.
  static constexpr int kFullArrivals = kGathers ? 1 + kFetchers : 1;
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
struct Slot {
  int at = 0, parity = 0;
  __device__ void advance() {
    if (++at == Wide::kStages) at = 0, parity ^= 1;
  }
};

struct Ring {
  uint32_t stages, full, empty;  // addresses in shared memory
  __device__ uint32_t stage(int slot) const { return stages + slot * Wide::kStageBytes; }
};

// ---- The group that fetches

// All threads of it: weights by TMA, rows of x by cp.async.
template <Product kProduct>
__device__ void fetch_gathered(const CUtensorMap* weights, const ProductArgs& p, Ring ring, int rank, int work,
                               int steps) {
  constexpr uint32_t kNone = 0xffffffffu;
  const int thread = threadIdx.x - kMultipliers;
  const int chunk = thread % kChunks, first = thread / kChunks;
  const uint32_t to = kPairsAt + first * kRowBytes + swizzle_128(first, chunk) * 16;
  const auto row_stride = static_cast<uint32_t>(p.x_stride / 8);
  const int clusters = gridDim.x / 2;
  Slot slot;
  int4 ahead = p.tiles[blockIdx.x / 2 / p.column_tiles];
  for (int at = blockIdx.x / 2; at < work; at += clusters) {
    const int4 tile = ahead;
    if (at + clusters < work) ahead = p.tiles[(at + clusters) / p.column_tiles];
    const Rows rows = rows_of(tile, rank);
    const int block = (at % p.column_tiles * Shape<kProduct>::kColumns + rank * Shape<kProduct>::kGroupColumns) / 8;
    uint32_t x_rows[kRowsOfThread];  // in chunks
    for (int step = 0; step < steps; ++step) {
      barrier_wait(ring.empty + slot.at * 8, slot.parity ^ 1);
      const uint32_t stage = ring.stage(slot.at);
      if (thread == 0) {
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
          if (row < rows.count) x_rows[j] = static_cast<uint32_t>(p.pairs[rows.first + row] / p.k) * row_stride;
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
      barrier_arrive_copied(ring.full + slot.at * 8);
      slot.advance();
    }
  }
}

// One thread of it: both by TMA.
template <Product kProduct>
__device__ void fetch(const CUtensorMap* weights, const CUtensorMap* pairs, const ProductArgs& p, Ring ring, int rank,
                      int work, int steps) {
  const int clusters = gridDim.x / 2;
  Slot slot;
  int4 ahead = p.tiles[blockIdx.x / 2 / p.column_tiles];
  for (int at = blockIdx.x / 2; at < work; at += clusters) {
    const Rows rows = rows_of(ahead, rank);
    const int expert = ahead.x, boxes = (rows.count + Wide::kBoxRows - 1) / Wide::kBoxRows;
    if (at + clusters < work) ahead = p.tiles[(at + clusters) / p.column_tiles];
    const int eight = (at % p.column_tiles * Shape<kProduct>::kColumns + rank * Shape<kProduct>::kGroupColumns) / 8;
    for (int step = 0; step < steps; ++step) {
      barrier_wait(ring.empty + slot.at * 8, slot.parity ^ 1);
      const uint32_t stage = ring.stage(slot.at), full = ring.full + slot.at * 8;
      barrier_arrive_expect(full, kPairsAt + boxes * Wide::kBoxRows * kRowBytes);
      bulk_load_5d(stage + rank * (kPairsAt / 2), weights, full, 3, step * Wide::kStep, 0, 0, eight, expert);
      // Rows beyond the tile's are its neighbours', or left as they are: no other column sees them.
      for (int box = 0; box < boxes; ++box)
        bulk_load_2d(stage + kPairsAt + box * Wide::kBoxRows * kRowBytes, pairs, full, step * Wide::kStep,
                     rows.first + box * Wide::kBoxRows);
      slot.advance();
    }
  }
}

// ---- The groups that multiply

// The activation is chosen once for all of them, so that they overlap.
template <int kCount>
__device__ __forceinline__ void activate_all(float (&x)[kCount], int activation) {
  const auto all = [&](auto constant) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = activate_fast(x[i], decltype(constant)::value);
  };
  switch (static_cast<Activation>(activation)) {
    case Activation::silu: return all(std::integral_constant<int, static_cast<int>(Activation::silu)>());
    case Activation::sigmoid: return all(std::integral_constant<int, static_cast<int>(Activation::sigmoid)>());
    case Activation::relu2: return all(std::integral_constant<int, static_cast<int>(Activation::relu2)>());
    default: return;
  }
}

// One tile of one group: [128 of the weights, K] · [kN pairs, K]ᵀ.
template <Product kProduct, int kN>
__device__ void multiply(const ProductArgs& p, Ring ring, Slot& slot, uint32_t out_stage, Rows rows, int column,
                         int steps) {
  using S = Shape<kProduct>;
  constexpr int kOutRows = Wide::kOutRows, kOutRowBytes = S::kGroupColumns * 2, kOutChunks = kOutRowBytes / 16;
  constexpr int kWarpChunks = kOutChunks / 4;
  const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
  int32_t places[(kN + kOutRows - 1) / kOutRows];  // where the rows go, each lane's
#pragma unroll
  for (int i = 0; i < static_cast<int>(std::size(places)); ++i) {
    const int row = i * kOutRows + lane;
    places[i] = rows.first + row;
    if (kProduct == Product::down && row < rows.count) places[i] = p.pairs[rows.first + row];
  }

  // Of 64 of the weights each: even eights and odd ones, so that what a warp has of both lies together.
  float sum[2][kN / 2] = {};
  const auto release = [&](int at) {
    if (lane < 2) barrier_arrive_at(ring.empty + at * 8, lane);
  };
  int before = 0;
  for (int step = 0; step < steps; ++step) {
    barrier_wait(ring.full + slot.at * 8, slot.parity);
    if constexpr (S::kGathers) shared_fence();  // what cp.async wrote, for wgmma
    const uint64_t weights = matrix_in_shared(ring.stage(slot.at) + group * (kPairsAt / 2), 16, 2 * kEightBytes);
    const uint64_t pairs = matrix_in_shared(ring.stage(slot.at) + kPairsAt, 16, kEightBytes);
    wgmma_operand(sum);
    wgmma_begin();
#pragma unroll
    for (int k16 = 0; k16 < Wide::kStep / 16; ++k16) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        wgmma_bf16<kN>(sum[i], matrix_at(weights, i * kEightBytes + k16 * 32), matrix_at(pairs, k16 * 32));
    }
    wgmma_commit();
    wgmma_operand(sum);
    if (step > 0) {
      wgmma_wait<1>();
      release(before);
    }
    before = slot.at;
    slot.advance();
  }
  wgmma_wait<0>();
  wgmma_operand(sum);
  release(before);

  // Out through shared memory of the group: matrices of 8 columns by 8 pairs are turned on the way, so that whole lines
  // leave.
  const auto at = [&](int row, int chunk) {  // eight rows at one chunk touch every bank once
    return out_stage + row * kOutRowBytes + (chunk ^ (row & 7)) * 16;
  };
  const int warp = threadIdx.x / 32 % 4;
  constexpr int kRowsAtOnce = 32 / kOutChunks;
  const int chunk = lane % kOutChunks, to_column = column + chunk * 8;
#pragma unroll
  for (int begin = 0; begin < kN; begin += kOutRows) {
    constexpr int kEights = kOutRows / 8;
    named_barrier(1 + group, 128);  // what was here before is read
    constexpr int kValues = 4 * kOutRows / 8;
    float x[kValues] = {}, y[kValues] = {};  // columns of even eights and of odd ones, or gates and what they multiply
#pragma unroll
    for (int i = 0; i < kValues; ++i)
      if (begin / 2 + i < kN / 2) x[i] = sum[0][begin / 2 + i], y[i] = sum[1][begin / 2 + i];
    if constexpr (kProduct != Product::down) activate_all(x, p.activation);
    if constexpr (kProduct == Product::ungated) activate_all(y, p.activation);
#pragma unroll
    for (int e = 0; e < kEights && begin + e * 8 < kN; ++e) {
      const int i = 4 * e;
      const uint32_t to = at(e * 8 + lane % 8, warp * kWarpChunks + lane / 8 % kWarpChunks);
      if constexpr (kProduct == Product::gated) {
        stmatrix_x2_trans(to, pack_bf16(x[i] * y[i], x[i + 1] * y[i + 1]),
                          pack_bf16(x[i + 2] * y[i + 2], x[i + 3] * y[i + 3]));
      } else {
        stmatrix_x4_trans(to, {pack_bf16(x[i], x[i + 1]), pack_bf16(y[i], y[i + 1]), pack_bf16(x[i + 2], x[i + 3]),
                               pack_bf16(y[i + 2], y[i + 3])});
      }
    }
    named_barrier(1 + group, 128);
#pragma unroll
    for (int part = 0; part < kOutRows / 4 / kRowsAtOnce; ++part) {
      const int row = warp * (kOutRows / 4) + part * kRowsAtOnce + lane / kOutChunks;
      const int64_t place = __shfl_sync(0xffffffffu, places[begin / kOutRows], row);
      if (begin + row < rows.count && to_column < p.columns)
        *reinterpret_cast<uint4*>(p.out + place * p.columns + to_column) = load_shared_16(at(row, chunk));
    }
  }
}

// Calls multiply of the least of the widths kN... that is not below that of the rows.
template <Product kProduct, int kN, int... kMore>
__device__ void multiply_any(std::integer_sequence<int, kN, kMore...>, const ProductArgs& p, Ring ring,
                             Slot& slot, uint32_t out_stage, Rows rows, int column, int steps) {
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
__global__ void __cluster_dims__(2) __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap pairs,
                   const __grid_constant__ ProductArgs p) {
  using S = Shape<kProduct>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), out_stages = base + Wide::kStages * Wide::kStageBytes;
  const uint32_t barriers = out_stages + Wide::kOutBytes;
  const Ring ring{base, barriers, barriers + Wide::kStages * 8};
  const int rank = static_cast<int>(cluster_rank()), warp = threadIdx.x / 32;

  if (threadIdx.x == 0) {
    prefetch_tensor(&weights), prefetch_tensor(&pairs);
    for (int i = 0; i < Wide::kStages; ++i) {
      barrier_init(ring.full + i * 8, S::kFullArrivals);
      barrier_init(ring.empty + i * 8, kEmptyArrivals);
    }
    barrier_init_fence();
  }
  cluster_sync();
  follow();
  const int work = *p.tile_count * p.column_tiles, steps = (p.K + Wide::kStep - 1) / Wide::kStep;

  if (threadIdx.x >= kMultipliers) {
    give_registers<kFetchRegisters>();
    if constexpr (S::kGathers)
      fetch_gathered<kProduct>(&weights, p, ring, rank, work, steps);
    else if (threadIdx.x == kMultipliers)
      fetch<kProduct>(&weights, &pairs, p, ring, rank, work, steps);
  } else {
    take_registers<kMultiplyRegisters>();
    const int group = warp / 4, clusters = gridDim.x / 2;
    Slot slot;
    int4 ahead = p.tiles[blockIdx.x / 2 / p.column_tiles];
    for (int at = blockIdx.x / 2; at < work; at += clusters) {
      const Rows rows = rows_of(ahead, rank);
      if (at + clusters < work) ahead = p.tiles[(at + clusters) / p.column_tiles];
      const int column = at % p.column_tiles * S::kColumns + group * S::kGroupColumns;
      multiply_any<kProduct>(Widths(), p, ring, slot, out_stages + group * (4 * Wide::kOutWarpBytes), rows, column, steps);
    }
  }
  cluster_sync();  // the other block may still send here
}

// ---- Launch

// Of a tensor of kAxes axes, the innermost first, read in boxes. What lies beyond it is zero.
template <int kAxes>
CUtensorMap tensor_map(const void* data, const cuuint64_t (&sizes)[kAxes], const cuuint64_t (&strides)[kAxes - 1],
                       const cuuint32_t (&box)[kAxes]) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    HYPIC_CHECK(found == cudaDriverEntryPointSuccess, "this driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  cuuint32_t element_strides[kAxes];
  std::fill_n(element_strides, kAxes, 1);
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kAxes, const_cast<void*>(data), sizes, strides, box,
             element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HYPIC_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error ", static_cast<int>(result));
  return map;
}

// Of weights [E, parts · columns, K] in boxes of half a tile: in shared memory eights of a gate's rows and of the
// same up's take turns.
CUtensorMap weights_map(const void* weights, int E, int parts, int columns, int K) {
  const auto axis = [](int64_t size) { return static_cast<cuuint64_t>(size); };
  const cuuint64_t row = axis(K) * 2;
  const auto part_box = static_cast<cuuint32_t>(parts);
  return tensor_map<5>(weights, {axis(K), 8, axis(parts), axis(columns / 8), axis(E)},
                       {row, row * axis(columns), row * 8, row * axis(columns) * axis(parts)},
                       {Wide::kStep, 8, part_box, Wide::kColumns / 2 / 8 / part_box, 1});
}

// Of the rows [P, K] of all pairs, in order of places.
CUtensorMap pairs_map(const void* rows, int64_t P, int K) {
  const auto axis = [](int64_t size) { return static_cast<cuuint64_t>(size); };
  return tensor_map<2>(rows, {axis(K), axis(P)}, {axis(K) * 2}, {Wide::kStep, Wide::kBoxRows});
}

template <Product kProduct>
void launch_product(const CUtensorMap& weights, const CUtensorMap& pairs, const ProductArgs& args, int blocks,
                    cudaStream_t stream) {
  const auto kernel = product_kernel<kProduct>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Wide::kSharedBytes),
        "experts, shared memory");
  launch_next("experts, products", kernel, dim3(static_cast<unsigned>(blocks)), kThreads, Wide::kSharedBytes,
              stream, weights, pairs, args);
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
  const CUtensorMap up_weights = weights_map(a.up.data, s.E, a.gated ? 2 : 1, s.I, s.N);
  const CUtensorMap down_weights = weights_map(a.down.data, s.E, 1, s.N, s.I);
  for (int64_t begin = 0; begin < s.R; begin += plan.pass_rows) {
    const int64_t end = std::min(s.R, begin + plan.pass_rows), P = (end - begin) * s.k;
    const Tensor x = a.x.rows(begin, end);
    experts_sort(a.experts.rows(begin, end), s.E, plan, scratch, stream);
    const ProductArgs up{.K = s.N,
                         .columns = s.I,
                         .column_tiles = plan.up_column_tiles,
                         .tiles = scratch.tiles,
                         .tile_count = scratch.tile_count,
                         .pairs = scratch.pairs,
                         .out = scratch.inner,
                         .activation = static_cast<int>(a.activation),
                         .x = view<__nv_bfloat16>(x).data,
                         .x_stride = x.stride[0],
                         .k = s.k};
    ProductArgs down = up;
    down.K = s.I, down.columns = s.N, down.column_tiles = plan.down_column_tiles;
    down.out = scratch.outputs;
    const CUtensorMap inner = pairs_map(scratch.inner, P, s.I);
    if (a.gated)
      launch_product<Product::gated>(up_weights, inner, up, plan.up_blocks, stream);
    else
      launch_product<Product::ungated>(up_weights, inner, up, plan.up_blocks, stream);
    launch_product<Product::down>(down_weights, inner, down, plan.down_blocks, stream);
    experts_combine(scratch.outputs, a.weights.rows(begin, end), a.out.rows(begin, end), {}, stream);
  }
}

}  // namespace hypic::cuda
