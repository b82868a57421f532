// Few rows an expert. Pairs of (row, choice) are sorted by expert, unless there is one row; then two products, each
// expert's pairs by its matrix, in tiles that lie in order of experts, so that tiles which read the same weights run at
// the same time; then the sum over a row's choices, in their order.
//
// Every sum over the inner axis is one chain of m16n8k16 from its begin to its end, whatever the tile: that gives
// a row the same bits in any batch.
#include "kernels/ops/experts_mma.cuh"

#include <algorithm>

#include "kernels/common/mma.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"
#include "kernels/ops/experts_plan.h"
#include "kernels/ops/experts_row.cuh"
#include "kernels/ops/experts_sort.cuh"

namespace hypic::cuda {
namespace {

enum class Product { gated, ungated, down };

struct ProductArgs {
  const __nv_bfloat16* a;  // up: rows of x; down: inner, in order of places
  int64_t a_stride;
  const __nv_bfloat16* b;  // [E, columns (gated: gate's, then up's), K]
  int K, columns;          // columns: of the result
  int column_tiles;
  int k;
  const int32_t* experts;  // [k] of one row, each choice a tile of its own; null: the next three, of the sort
  const int4* tiles;
  const int32_t* tile_count;
  const int32_t* pairs;
  __nv_bfloat16* out;  // [P, columns]
  int activation;
};

// Which column of a tile's result, of which part (gate or up), row s of its B in shared memory makes. They are
// permuted so that a thread's fragments hold runs of 2 · kJoin columns, which it stores at once, and both parts of
// each.
template <int kWarpColumns, int kParts>
struct Columns {
  static constexpr int kBlocks = kWarpColumns / 8 / kParts;  // of 8 columns, of a part, in a warp
  static constexpr int kJoin = kBlocks < 4 ? kBlocks : 4;
  __host__ __device__ static constexpr int part(int s) { return s % kWarpColumns / 8 / kBlocks; }
  __host__ __device__ static constexpr int column(int s) {
    const int block = s % kWarpColumns / 8 % kBlocks;
    return s / kWarpColumns * (8 * kBlocks) + block / kJoin * (8 * kJoin) + s % 8 / 2 * (2 * kJoin) +
           block % kJoin * 2 + s % 2;
  }
  // Whether a thread that copies the rows first + j · skip finds the columns of all from that of the first.
  static constexpr bool adds_up(int rows, int skip) {
    for (int s = 0; s < rows; ++s) {
      const int first = s % skip, rest = s - first;
      if (column(s) != column(first) + column(rest) || part(s) != part(first) + part(rest)) return false;
    }
    return true;
  }
};

// A kernel's constants.
template <int kTile, Product kProduct>
struct Shape {
  static constexpr ExpertsTile kT = kExpertsTiles[kTile];
  static constexpr int kM = kT.rows, kN = kT.columns, kStages = kT.stages, kRing = kT.ring();
  static constexpr int kWarpsM = kT.warps_m, kWarpsN = kT.warps_n, kThreads = kT.threads();
  static constexpr int kBlocksPerSm = kT.blocks_per_sm;
  static constexpr int kParts = kProduct == Product::gated ? 2 : 1;
  static constexpr int kRowBytes = kExpertsStep * 2, kChunks = kRowBytes / 16;
  static constexpr int kStageBytes = static_cast<int>(kT.stage_bytes());
  static constexpr int kSharedBytes = static_cast<int>(kT.shared_bytes());
  static constexpr int kBlocksM = kM / 16 / kWarpsM, kBlocksN = kN / 8 / kWarpsN;  // of a warp
  static constexpr int kSkip = kThreads / kChunks;                                 // rows between a thread's copies
  using Map = Columns<kN / kWarpsN, kParts>;
  static_assert(kM % kSkip == 0 && kN % kSkip == 0 && kSkip % 8 == 0 && Map::adds_up(kN, kSkip));
};

template <int kWords>
__device__ inline void store_words(__nv_bfloat16* to, const uint32_t (&words)[kWords]) {
  if constexpr (kWords == 4) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    static_assert(kWords == 1);
    *reinterpret_cast<uint32_t*>(to) = words[0];
  }
}

// Blocks walk (tile, column tile) with the stride of the grid. Copies run ahead of the products by stages − 1 steps,
// across the ends of tiles too, so that memory stays busy while a result is written.
template <int kTile, Product kProduct>
__global__ void __launch_bounds__(Shape<kTile, kProduct>::kThreads, Shape<kTile, kProduct>::kBlocksPerSm)
    product_kernel(ProductArgs p) {
  using S = Shape<kTile, kProduct>;
  using Map = typename S::Map;
  constexpr int kM = S::kM, kN = S::kN, kStages = S::kStages, kRing = S::kRing, kThreads = S::kThreads;
  constexpr int kWarpsM = S::kWarpsM, kParts = S::kParts, kBlocksM = S::kBlocksM, kBlocksN = S::kBlocksN;
  constexpr int kRowBytes = S::kRowBytes, kChunks = S::kChunks, kStageBytes = S::kStageBytes, kSkip = S::kSkip;
  constexpr int kSteps = kExpertsStep / 16;
  constexpr uint32_t kNone = 0xffffffffu;

  extern __shared__ __align__(128) unsigned char shared[];
  int2* const ring_tile = reinterpret_cast<int2*>(shared + kStages * kStageBytes);  // first place, places
  auto* const ring_pairs = reinterpret_cast<int32_t*>(ring_tile + kRing);           // [kRing][kM]
  const uint32_t stages = shared_address(shared);

  follow();
  const auto tile_at = [&](int tile) { return p.experts ? make_int4(p.experts[tile], tile, 1, 0) : p.tiles[tile]; };
  int4 ahead = tile_at(static_cast<int>(blockIdx.x) / p.column_tiles);  // of the next tile to fetch
  const int work = (p.experts ? p.k : *p.tile_count) * p.column_tiles, steps = (p.K + kExpertsStep - 1) / kExpertsStep;
  if (blockIdx.x >= work) return;

  // Copies: the next step to fetch, and where this thread's rows of it come from.
  const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
  const uint32_t to = first * kRowBytes + swizzle_128(first, chunk) * 16;
  const auto row_stride = static_cast<uint32_t>(p.a_stride / 8);
  int fetch_work = blockIdx.x, fetch_step = 0, fetch_ring = 0;
  int first_place = 0, places = 0;
  uint32_t a_rows[kM / kSkip];  // in chunks
  const __nv_bfloat16* b_from = nullptr;
  int columns_left = 0;

  const auto open = [&] {
    const int column = fetch_work % p.column_tiles * (kN / kParts) + Map::column(first);
    b_from = p.b + ((static_cast<int64_t>(ahead.x) * kParts + Map::part(first)) * p.columns + column) * p.K;
    columns_left = p.columns - column;
    first_place = ahead.y;
    places = ahead.z;
    if (threadIdx.x == 0) ring_tile[fetch_ring] = make_int2(first_place, places);
    if constexpr (kProduct == Product::down) {
      if (p.experts) {
        if (threadIdx.x == 0) ring_pairs[fetch_ring * kM] = first_place;
      } else {
        for (int i = threadIdx.x; i < places; i += kThreads)
          cp_async_4(shared_address(ring_pairs + fetch_ring * kM + i), p.pairs + first_place + i);
      }
    }
    if (fetch_work + static_cast<int>(gridDim.x) < work)
      ahead = tile_at((fetch_work + static_cast<int>(gridDim.x)) / p.column_tiles);
  };
  const auto find_rows = [&] {
#pragma unroll
    for (int j = 0; j < kM / kSkip; ++j) {
      const int row = first + j * kSkip;
      a_rows[j] = kNone;
      if (row < places) {
        const int place = first_place + row;
        int of = place;
        if constexpr (kProduct != Product::down) of = p.experts ? 0 : p.pairs[place] / p.k;
        a_rows[j] = static_cast<uint32_t>(of) * row_stride;
      }
    }
  };
  // Rows and columns beyond the tile's are left as they are, for no other row or column sees them; what lies beyond
  // K is zero in both operands, for every sum sees it.
  const auto fetch = [&](int slot) {
    if (fetch_work < work) {
      if (fetch_step == 0) open();
      const int at = fetch_step * kExpertsStep + chunk * 8;
      const bool inside = at < p.K;
      const uint32_t stage = stages + slot * kStageBytes + to;
#pragma unroll
      for (int j = 0; j < kN / kSkip; ++j)
        if (Map::column(j * kSkip) < columns_left)
          cp_async_16(stage + (kM + j * kSkip) * kRowBytes,
                      b_from + (Map::part(j * kSkip) * p.columns + Map::column(j * kSkip)) * p.K + at, inside);
      if (fetch_step == 0) find_rows();  // waits for memory, so after the weights are asked for
#pragma unroll
      for (int j = 0; j < kM / kSkip; ++j)
        if (a_rows[j] != kNone)
          cp_async_16(stage + j * kSkip * kRowBytes, p.a + static_cast<int64_t>(a_rows[j]) * 8 + at, inside);
      if (++fetch_step == steps) {
        fetch_step = 0;
        fetch_work += gridDim.x;
        fetch_ring = fetch_ring + 1 == kRing ? 0 : fetch_ring + 1;
      }
    }
    cp_async_commit();
  };

  // Products: a warp has every kWarpsM-th block of 16 rows, so that the rows of a tile that is not full are spread
  // over all warps. Fragments are read one step of 16 ahead.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % kWarpsM, warp_n = warp / kWarpsM;
  const uint32_t a_at = (warp_m * 16 + lane % 16) * kRowBytes;
  const uint32_t b_at = (kM + warp_n * kBlocksN * 8 + lane / 16 * 8 + lane % 8) * kRowBytes;
  uint32_t a[2][kBlocksM][4], b[2][kBlocksN / 2][4];
  const auto read = [&](int buffer, int slot, int k16) {
    const uint32_t stage = stages + slot * kStageBytes;
    const uint32_t a_chunk = swizzle_128(lane, k16 * 2 + lane / 16) * 16;
    const uint32_t b_chunk = swizzle_128(lane, k16 * 2 + lane / 8 % 2) * 16;
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i)
      ldmatrix_x4(a[buffer][i], stage + a_at + i * kWarpsM * 16 * kRowBytes + a_chunk);
#pragma unroll
    for (int j = 0; j < kBlocksN / 2; ++j) ldmatrix_x4(b[buffer][j], stage + b_at + j * 16 * kRowBytes + b_chunk);
  };

  for (int slot = 0; slot < kStages - 1; ++slot) fetch(slot);
  cp_async_wait<kStages - 2>();
  __syncthreads();
  read(0, 0, 0);

  int slot = 0, ring = 0;
  for (int at = blockIdx.x; at < work; at += gridDim.x) {
    const int2 tile = ring_tile[ring];
    const int live = ((tile.y + 15) / 16 - warp_m + kWarpsM - 1) / kWarpsM;  // blocks of this warp with rows
    float sum[kBlocksM][kBlocksN][4] = {};
    for (int step = 0; step < steps; ++step) {
      fetch(slot == 0 ? kStages - 1 : slot - 1);  // the slot that all have read
#pragma unroll
      for (int k16 = 0; k16 < kSteps; ++k16) {
        if (k16 == kSteps - 1) {
          cp_async_wait<kStages - 2>();
          __syncthreads();
          slot = slot + 1 == kStages ? 0 : slot + 1;
        }
        read((k16 + 1) % 2, slot, (k16 + 1) % kSteps);
#pragma unroll
        for (int i = 0; i < kBlocksM; ++i)
          if (i < live) {
#pragma unroll
            for (int j = 0; j < kBlocksN; ++j)
              mma_bf16(sum[i][j], a[k16 % 2][i], b[k16 % 2][j / 2][j % 2 * 2], b[k16 % 2][j / 2][j % 2 * 2 + 1]);
          }
      }
    }

    const int column =
        at % p.column_tiles * (kN / kParts) + warp_n * (8 * Map::kBlocks) + lane % 4 * (2 * Map::kJoin);
#pragma unroll
    for (int i = 0; i < kBlocksM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (i * kWarpsM + warp_m) * 16 + half * 8 + lane / 4;
        if (row >= tile.y) continue;
        int64_t place = tile.x + row;
        if constexpr (kProduct == Product::down) place = ring_pairs[ring * kM + row];
        __nv_bfloat16* const out = p.out + place * p.columns + column;
#pragma unroll
        for (int q = 0; q < Map::kBlocks / Map::kJoin; ++q) {
          uint32_t words[Map::kJoin];
#pragma unroll
          for (int w = 0; w < Map::kJoin; ++w) {
            const auto value = [&](int c) {
              const int block = q * Map::kJoin + w, element = half * 2 + c;
              const float x = sum[i][block][element];
              if constexpr (kProduct == Product::gated)
                return activate_fast(x, p.activation) * sum[i][block + Map::kBlocks][element];
              else if constexpr (kProduct == Product::ungated)
                return activate_fast(x, p.activation);
              else
                return x;
            };
            words[w] = pack_bf16(value(0), value(1));
          }
          if (column + q * 8 * Map::kJoin < p.columns) store_words(out + q * 8 * Map::kJoin, words);
        }
      }
    }
    ring = ring + 1 == kRing ? 0 : ring + 1;
  }
}

template <int kTile, Product kProduct>
void launch_product(const ProductArgs& args, int blocks, cudaStream_t stream) {
  using S = Shape<kTile, kProduct>;
  const auto kernel = product_kernel<kTile, kProduct>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
        "experts, shared memory");
  launch_next("experts, products", kernel, dim3(static_cast<unsigned>(blocks)), S::kThreads, S::kSharedBytes,
              stream, args);
}

// Calls visit(std::integral_constant<int, tile>).
template <class Visitor, int... kTiles>
void visit_tile(int tile, Visitor&& visit, std::integer_sequence<int, kTiles...>) {
  ((tile == kTiles ? visit(std::integral_constant<int, kTiles>{}) : void()), ...);
}

}  // namespace

bool experts_mma_takes(const ExpertsArgs& a) {
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  const auto matrix = [&](const Tensor& t) { return t.dtype == DType::bf16 && t.contiguous() && aligned(t); };
  const auto rows = [&](const Tensor& t) {
    return t.dtype == DType::bf16 && t.rank == 2 && t.stride[1] == 1 && t.stride[0] % 8 == 0 && aligned(t);
  };
  if (!matrix(a.up) || !matrix(a.down) || !rows(a.x) || !rows(a.out) || a.weights.dtype != DType::f32) return false;
  const int64_t E = a.down[0], N = a.down[1], I = a.down[2], k = a.experts[1];
  constexpr int64_t kMaxIndex = int64_t{1} << 31;
  return N > 0 && N % 8 == 0 && I > 0 && I % 8 == 0 && 1 <= k && k <= kMaxExpertChoices && E <= kMaxExperts &&
         a.up[1] * N < kMaxIndex && a.x[0] * a.x.stride[0] / 8 < kMaxIndex;
}

void experts_mma(const ExpertsArgs& a, const ExpertsMore& more, int sms, cudaStream_t stream) {
  const auto [R, k, E, N, I] = experts_sizes(a);
  HYPIC_CHECK(experts_mma_takes(a));
  if (R == 0) return;
  const ExpertsPlan plan = plan_experts(sms, R, k, E, N, I, a.gated);
  HYPIC_CHECK(!plan.wide);
  const Scratch memory(plan.bytes, stream);
  const ExpertsScratch scratch = experts_scratch(plan, memory.as<void>());
  for (int64_t begin = 0; begin < R; begin += plan.pass_rows) {
    const int64_t end = std::min(R, begin + plan.pass_rows);
    const Tensor x = a.x.rows(begin, end);
    if (R > 1) experts_sort(a.experts.rows(begin, end), E, plan, scratch, stream);
    const ProductArgs up{.a = view<__nv_bfloat16>(x).data,
                         .a_stride = x.stride[0],
                         .b = static_cast<const __nv_bfloat16*>(a.up.data),
                         .K = N,
                         .columns = I,
                         .column_tiles = plan.up_column_tiles,
                         .k = k,
                         .experts = R > 1 ? nullptr : a.experts.as<int32_t>(),
                         .tiles = scratch.tiles,
                         .tile_count = scratch.tile_count,
                         .pairs = scratch.pairs,
                         .out = scratch.inner,
                         .activation = static_cast<int>(a.activation)};
    ProductArgs down = up;
    down.a = scratch.inner, down.a_stride = I;
    down.b = static_cast<const __nv_bfloat16*>(a.down.data);
    down.K = I, down.columns = N, down.column_tiles = plan.down_column_tiles;
    down.out = scratch.outputs;
    const auto products = [&](auto tile) {
      constexpr int kTile = decltype(tile)::value;
      if (a.gated)
        launch_product<kTile, Product::gated>(up, plan.up_blocks, stream);
      else
        launch_product<kTile, Product::ungated>(up, plan.up_blocks, stream);
      if (!experts_row_takes(a)) launch_product<kTile, Product::down>(down, plan.down_blocks, stream);
    };
    visit_tile(plan.tile, products, std::make_integer_sequence<int, kExpertsTileCount>());
    if (experts_row_takes(a))
      experts_down_row(scratch.inner, a, more, stream);
    else
      experts_combine(scratch.outputs, a.weights.rows(begin, end), a.out.rows(begin, end), more.from(begin), stream);
  }
}

}  // namespace hypic::cuda
