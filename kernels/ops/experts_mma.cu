// Pairs of (row, choice) are sorted by expert; then two products, each expert's pairs by its matrix, in tiles that
// lie in order of experts, so that tiles which read the same weights run at the same time; then the sum over a
// row's choices, in their order.
//
// Every sum over the inner axis is one chain of m16n8k16 from its begin to its end, whatever the tile: that gives
// a row the same bits in any batch.
#include "kernels/ops/experts_mma.cuh"

#include <algorithm>

#include "kernels/common/mma.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"
#include "kernels/ops/experts_plan.h"

namespace hypic::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

// A kernel that launch_next started: lets the next one of the chain take its place already, and waits until those
// before it are done and their memory can be seen.
__device__ inline void follow() {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
}

// Launches a kernel that calls follow(), for the time of a launch counts where rows are few.
template <class Args>
void launch_next(void (*kernel)(Args), dim3 blocks, int threads, int shared_bytes, const Args& args,
                 cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args), "experts, launch");
}

// ---- Pairs in order of experts

constexpr int kSortThreads = 1024;
constexpr int kSortWarps = kSortThreads / 32;
constexpr int kSortAhead = 8;  // reads under way in each thread

struct SortArgs {
  View<int32_t> experts;
  View<float> weights;
  int k, P, E;
  int tile_rows, max_tiles;
  int32_t* pairs;
  float* sorted_weights;
  int4* tiles;
  int32_t* tile_count;
};

// Shared memory: [warps][E] how many pairs of an expert a warp has, then where its next one goes · [E + 1] the
// first place of an expert · [E + 1] its first tile.
size_t sort_bytes(int E) { return sizeof(int32_t) * (static_cast<size_t>(kSortWarps) * E + 2 * (E + 1)); }

// Inclusive sum over the threads of the block.
__device__ uint64_t block_scan(uint64_t x) {
  __shared__ uint64_t of_warp[kSortWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto warp_scan = [&](uint64_t sum) {
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint64_t other = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += other;
    }
    return sum;
  };
  const uint64_t sum = warp_scan(x);
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  if (warp == 0) of_warp[lane] = warp_scan(of_warp[lane]);
  __syncthreads();
  return warp > 0 ? sum + of_warp[warp - 1] : sum;
}

// One block: what it takes is little beside the products, and more blocks would need more launches.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(SortArgs a) {
  extern __shared__ int32_t counters[];
  cudaTriggerProgrammaticLaunchCompletion();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, E = a.E;
  const int warps = min(kSortWarps, (a.P + 31) / 32);
  const int span = ((a.P + warps - 1) / warps + 31) / 32 * 32;
  const int begin = warp * span, end = min(begin + span, a.P);  // this warp's pairs
  int32_t* const mine = counters + warp * E;
  int32_t* const first_place = counters + warps * E;
  int32_t* const first_tile = first_place + E + 1;

  for (int i = threadIdx.x; i < warps * E; i += kSortThreads) counters[i] = 0;
  __syncthreads();
  for (int base = begin; base < end; base += 32 * kSortAhead) {
    int e[kSortAhead];
#pragma unroll
    for (int i = 0; i < kSortAhead; ++i) {
      const int pair = base + i * 32 + lane;
      e[i] = pair < end ? a.experts.row(pair / a.k)[pair % a.k] : -1;
    }
#pragma unroll
    for (int i = 0; i < kSortAhead; ++i)
      if (e[i] >= 0) atomicAdd(mine + e[i], 1);
  }
  __syncthreads();

  const int expert = threadIdx.x;
  int count = 0;
  if (expert < E)
    for (int w = 0; w < warps; ++w) count += counters[w * E + expert];
  const int tiles = (count + a.tile_rows - 1) / a.tile_rows;
  const uint64_t sums = block_scan(static_cast<uint64_t>(tiles) << 32 | static_cast<uint32_t>(count));
  if (expert < E) {
    int place = static_cast<int>(static_cast<uint32_t>(sums)) - count;
    first_place[expert] = place;
    first_tile[expert] = static_cast<int>(sums >> 32) - tiles;
    for (int w = 0; w < warps; ++w) {
      const int of_warp = counters[w * E + expert];
      counters[w * E + expert] = place;
      place += of_warp;
    }
    if (expert == E - 1) {
      first_place[E] = static_cast<int>(static_cast<uint32_t>(sums));
      first_tile[E] = static_cast<int>(sums >> 32);
      *a.tile_count = first_tile[E];
    }
  }
  __syncthreads();

  for (int t = threadIdx.x; t < first_tile[E]; t += kSortThreads) {
    int low = 0, high = E;  // first_tile[low] <= t < first_tile[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_tile[middle] <= t ? low : high) = middle;
    }
    const int places = first_place[low + 1] - first_place[low], tiles_of = first_tile[low + 1] - first_tile[low];
    // Tiles of one expert are of like size, in blocks of 16 rows, and so take alike long.
    const int rows = ((places + tiles_of - 1) / tiles_of + 15) / 16 * 16;
    const int at = (t - first_tile[low]) * rows;
    a.tiles[t] = make_int4(low, first_place[low] + at, min(rows, places - at), 0);
  }
  for (int t = first_tile[E] + threadIdx.x; t < a.max_tiles; t += kSortThreads)  // read, never used
    a.tiles[t] = make_int4(0, 0, 0, 0);

  for (int base = begin; base < end; base += 32 * kSortAhead) {
    int e[kSortAhead];
    float weight[kSortAhead];
#pragma unroll
    for (int i = 0; i < kSortAhead; ++i) {
      const int pair = base + i * 32 + lane;
      e[i] = pair < end ? a.experts.row(pair / a.k)[pair % a.k] : -1;
      weight[i] = pair < end ? a.weights.row(pair / a.k)[pair % a.k] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSortAhead; ++i) {
      const unsigned same = __match_any_sync(kAllLanes, e[i]);
      const int before = __popc(same & ((1u << lane) - 1));
      if (e[i] >= 0) {
        const int place = mine[e[i]] + before;
        a.pairs[place] = base + i * 32 + lane;
        a.sorted_weights[place] = weight[i];
      }
      __syncwarp();
      if (e[i] >= 0 && before == 0) mine[e[i]] += __popc(same);
      __syncwarp();
    }
  }
}

// ---- Products

enum class Product { gated, ungated, down };

struct ProductArgs {
  const __nv_bfloat16* a;  // up: rows of x; down: inner, in order of places
  int64_t a_stride;
  const __nv_bfloat16* b;  // [E, columns (gated: gate's, then up's), K]
  int K, columns;          // columns: of the result
  int column_tiles;
  int k;
  const int4* tiles;
  const int32_t* tile_count;
  const int32_t* pairs;
  const float* weights;
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

// In hardware's approximations of exp and division: what is rounded to bf16 next does not need more.
__device__ inline float activate_fast(float x, int activation) {
  switch (static_cast<Activation>(activation)) {
    case Activation::silu: return __fdividef(x, 1 + __expf(-x));
    case Activation::sigmoid: return __fdividef(1, 1 + __expf(-x));
    case Activation::relu2: return x > 0 ? x * x : 0.0f;
    default: return x;
  }
}

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
  auto* const ring_weights = reinterpret_cast<float*>(ring_pairs + kRing * kM);     // [kRing][kM]
  const uint32_t stages = shared_address(shared);

  follow();
  int4 ahead = p.tiles[blockIdx.x / p.column_tiles];  // of the next tile to fetch
  const int work = *p.tile_count * p.column_tiles, steps = (p.K + kExpertsStep - 1) / kExpertsStep;
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
      for (int i = threadIdx.x; i < places; i += kThreads) {
        cp_async_4(shared_address(ring_pairs + fetch_ring * kM + i), p.pairs + first_place + i);
        cp_async_4(shared_address(ring_weights + fetch_ring * kM + i), p.weights + first_place + i);
      }
    }
    if (fetch_work + static_cast<int>(gridDim.x) < work) ahead = p.tiles[(fetch_work + gridDim.x) / p.column_tiles];
  };
  const auto find_rows = [&] {
#pragma unroll
    for (int j = 0; j < kM / kSkip; ++j) {
      const int row = first + j * kSkip;
      a_rows[j] = kNone;
      if (row < places) {
        const int place = first_place + row;
        a_rows[j] = static_cast<uint32_t>(kProduct == Product::down ? place : p.pairs[place] / p.k) * row_stride;
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
        float weight = 1;
        if constexpr (kProduct == Product::down) {
          place = ring_pairs[ring * kM + row];
          weight = ring_weights[ring * kM + row];
        }
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
                return weight * x;
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

// ---- The sum over the choices

constexpr int kCombineThreads = 256;

struct CombineArgs {
  const __nv_bfloat16* outputs;  // [R · k, N]
  int k, N;
  View<__nv_bfloat16> out;
};

__global__ void __launch_bounds__(kCombineThreads) combine_kernel(CombineArgs a) {
  follow();
  const int k = a.k, N = a.N;
  const int64_t r = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y * kCombineThreads + threadIdx.x) * 8;
  if (column >= N) return;
  const __nv_bfloat16* const from = a.outputs + r * k * N + column;
  float sum[8] = {};
#pragma unroll 8
  for (int j = 0; j < k; ++j) {
    const uint4 words = *reinterpret_cast<const uint4*>(from + static_cast<int64_t>(j) * N);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[2 * i] += __uint_as_float(pairs[i] << 16);
      sum[2 * i + 1] += __uint_as_float(pairs[i] & 0xffff0000u);
    }
  }
  const uint32_t words[4] = {pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                             pack_bf16(sum[6], sum[7])};
  store_words(a.out.row(r) + column, words);
}

template <int kTile, Product kProduct>
void launch_product(const ProductArgs& args, int blocks, cudaStream_t stream) {
  using S = Shape<kTile, kProduct>;
  const auto kernel = product_kernel<kTile, kProduct>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
        "experts, shared memory");
  launch_next(kernel, dim3(static_cast<unsigned>(blocks)), S::kThreads, S::kSharedBytes, args, stream);
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

void experts_mma(const ExpertsArgs& a, int sms, cudaStream_t stream) {
  Shapes shapes("experts");
  shapes.bind(a.x, "x", {"R", "N"}).bind(a.experts, "experts", {"R", "k"}).bind(a.weights, "weights", {"R", "k"})
      .bind(a.up, "up", {"E", "U", "N"}).bind(a.down, "down", {"E", "N", "I"}).bind(a.out, "out", {"R", "N"});
  const auto N = static_cast<int>(shapes["N"]), I = static_cast<int>(shapes["I"]), U = static_cast<int>(shapes["U"]),
             k = static_cast<int>(shapes["k"]), E = static_cast<int>(shapes["E"]);
  HYPIC_CHECK(U == (a.gated ? 2 * I : I) && a.x.data != a.out.data && experts_mma_takes(a));
  const int64_t R = shapes["R"];
  if (R == 0) return;
  const ExpertsPlan plan = plan_experts(sms, R, k, E, N, I, a.gated);
  const Scratch scratch(plan.bytes, stream);
  const auto at = [&](size_t offset) { return scratch.as<char>() + offset; };
  auto* const tiles = reinterpret_cast<int4*>(at(plan.tiles));
  auto* const count = reinterpret_cast<int32_t*>(at(plan.count));
  auto* const pairs = reinterpret_cast<int32_t*>(at(plan.pairs));
  auto* const weights = reinterpret_cast<float*>(at(plan.weights));
  auto* const inner = reinterpret_cast<__nv_bfloat16*>(at(plan.inner));
  // In bf16: float32 would be half a gigabyte written and read at 8192 rows of 8 choices and N = 2048. A rounding is
  // 1.65e-3 of the RMS, before the sum over the choices as after; with those of inner and out 2.9e-3 of 6e-3.
  auto* const outputs = reinterpret_cast<__nv_bfloat16*>(at(plan.outputs));

  check(cudaFuncSetAttribute(sort_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sort_bytes(kMaxExperts))),
        "experts, shared memory");
  for (int64_t begin = 0; begin < R; begin += plan.pass_rows) {
    const int64_t end = std::min(R, begin + plan.pass_rows);
    const Tensor x = a.x.rows(begin, end), experts = a.experts.rows(begin, end),
                 row_weights = a.weights.rows(begin, end), out = a.out.rows(begin, end);
    const SortArgs sort{.experts = {experts.as<int32_t>(), experts.stride[0]},
                        .weights = view<float>(row_weights),
                        .k = k,
                        .P = static_cast<int>(end - begin) * k,
                        .E = E,
                        .tile_rows = kExpertsTiles[plan.tile].rows,
                        .max_tiles = plan.max_tiles,
                        .pairs = pairs,
                        .sorted_weights = weights,
                        .tiles = tiles,
                        .tile_count = count};
    sort_kernel<<<1, kSortThreads, sort_bytes(E), stream>>>(sort);
    check_launch("experts, sort");
    const ProductArgs up{.a = view<__nv_bfloat16>(x).data,
                         .a_stride = x.stride[0],
                         .b = static_cast<const __nv_bfloat16*>(a.up.data),
                         .K = N,
                         .columns = I,
                         .column_tiles = plan.up_column_tiles,
                         .k = k,
                         .tiles = tiles,
                         .tile_count = count,
                         .pairs = pairs,
                         .weights = weights,
                         .out = inner,
                         .activation = static_cast<int>(a.activation)};
    ProductArgs down = up;
    down.a = inner, down.a_stride = I;
    down.b = static_cast<const __nv_bfloat16*>(a.down.data);
    down.K = I, down.columns = N, down.column_tiles = plan.down_column_tiles;
    down.out = outputs;
    const auto products = [&](auto tile) {
      constexpr int kTile = decltype(tile)::value;
      if (a.gated)
        launch_product<kTile, Product::gated>(up, plan.up_blocks, stream);
      else
        launch_product<kTile, Product::ungated>(up, plan.up_blocks, stream);
      launch_product<kTile, Product::down>(down, plan.down_blocks, stream);
    };
    visit_tile(plan.tile, products, std::make_integer_sequence<int, kExpertsTileCount>());
    launch_next(combine_kernel,
                dim3(static_cast<unsigned>(end - begin), static_cast<unsigned>(ceil_div(N, kCombineThreads * 8))),
                kCombineThreads, 0, CombineArgs{outputs, k, N, view<__nv_bfloat16>(out)}, stream);
  }
}

}  // namespace hypic::cuda
