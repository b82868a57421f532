#include "kernels/ops/experts_sort.cuh"

#include "kernels/common/mma.cuh"

namespace hypic::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kSortWarps = kExpertsSortThreads / 32;
constexpr int kSortAhead = 8;  // reads under way in each thread

struct SortArgs {
  View<int32_t> experts;
  int k, P, E;
  int block_pairs;
  int tile_rows, max_tiles;
  int32_t* counts;  // [blocks, E]
  int32_t* pairs;
  int4* tiles;
  int32_t* tile_count;
};

// Of a block, and of a warp in it.
struct Span {
  int begin, end;
};

// Calls visit(first pair, the experts of 32 · kSortAhead pairs as lanes hold them: −1 beyond the end).
template <class Visitor>
__device__ void visit_pairs(const SortArgs& a, Span span, Visitor&& visit) {
  const int lane = threadIdx.x % 32;
  for (int base = span.begin; base < span.end; base += 32 * kSortAhead) {
    int e[kSortAhead];
#pragma unroll
    for (int i = 0; i < kSortAhead; ++i) {
      const int pair = base + i * 32 + lane;
      e[i] = pair < span.end ? a.experts.row(pair / a.k)[pair % a.k] : -1;
    }
    visit(base, e);
  }
}

__device__ Span block_span(const SortArgs& a) {
  const int begin = blockIdx.x * a.block_pairs;
  return {begin, min(begin + a.block_pairs, a.P)};
}

// Of each block: how many pairs an expert has.
__global__ void __launch_bounds__(kExpertsSortThreads) count_kernel(SortArgs a) {
  extern __shared__ int32_t counters[];
  cudaTriggerProgrammaticLaunchCompletion();
  for (int i = threadIdx.x; i < a.E; i += kExpertsSortThreads) counters[i] = 0;
  __syncthreads();
  const Span span = block_span(a);
  for (int pair = span.begin + threadIdx.x; pair < span.end; pair += kExpertsSortThreads)
    atomicAdd(counters + a.experts.row(pair / a.k)[pair % a.k], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < a.E; i += kExpertsSortThreads)
    a.counts[static_cast<int64_t>(blockIdx.x) * a.E + i] = counters[i];
}

// Shared memory: [warps][E] how many pairs of an expert a warp has, then where its next one goes · [E + 1] the
// first place of an expert · [E + 1] its first tile.
size_t place_bytes(int E) { return sizeof(int32_t) * (static_cast<size_t>(kSortWarps) * E + 2 * (E + 1)); }

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

// Every block finds where its pairs go; the first lists the tiles. A block alone needs no count_kernel before.
__global__ void __launch_bounds__(kExpertsSortThreads, 1) place_kernel(SortArgs a) {
  extern __shared__ int32_t counters[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, E = a.E;
  const Span block = block_span(a);
  const int pairs = block.end - block.begin, warps = min(kSortWarps, (pairs + 31) / 32);
  const int warp_pairs = ((pairs + warps - 1) / warps + 31) / 32 * 32;
  const Span mine{block.begin + warp * warp_pairs, min(block.begin + (warp + 1) * warp_pairs, block.end)};
  int32_t* const next = counters + warp * E;
  int32_t* const first_place = counters + warps * E;
  int32_t* const first_tile = first_place + E + 1;

  for (int i = threadIdx.x; i < warps * E; i += kExpertsSortThreads) counters[i] = 0;
  __syncthreads();
  cudaTriggerProgrammaticLaunchCompletion();
  if (gridDim.x == 1) cudaGridDependencySynchronize();  // with more, count_kernel lies between and waited
  visit_pairs(a, mine, [&](int, const int(&e)[kSortAhead]) {
#pragma unroll
    for (int i = 0; i < kSortAhead; ++i)
      if (e[i] >= 0) atomicAdd(next + e[i], 1);
  });
  __syncthreads();

  const int expert = threadIdx.x;
  int count = 0, before = 0;  // of all blocks; of those before this one
  if (expert < E) {
    if (gridDim.x == 1) {
      for (int w = 0; w < warps; ++w) count += counters[w * E + expert];
    } else {
      cudaGridDependencySynchronize();
#pragma unroll 16
      for (int b = 0; b < static_cast<int>(gridDim.x); ++b) {
        const int of_block = a.counts[static_cast<int64_t>(b) * E + expert];
        count += of_block;
        if (b < static_cast<int>(blockIdx.x)) before += of_block;
      }
    }
  }
  const int tiles = (count + a.tile_rows - 1) / a.tile_rows;
  const uint64_t sums = block_scan(static_cast<uint64_t>(tiles) << 32 | static_cast<uint32_t>(count));
  if (expert < E) {
    int place = static_cast<int>(static_cast<uint32_t>(sums)) - count;
    first_place[expert] = place;
    first_tile[expert] = static_cast<int>(sums >> 32) - tiles;
    place += before;
    for (int w = 0; w < warps; ++w) {
      const int of_warp = counters[w * E + expert];
      counters[w * E + expert] = place;
      place += of_warp;
    }
    if (expert == E - 1) {
      first_place[E] = static_cast<int>(static_cast<uint32_t>(sums));
      first_tile[E] = static_cast<int>(sums >> 32);
    }
  }
  __syncthreads();

  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) *a.tile_count = first_tile[E];
    for (int t = threadIdx.x; t < first_tile[E]; t += kExpertsSortThreads) {
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
    for (int t = first_tile[E] + threadIdx.x; t < a.max_tiles; t += kExpertsSortThreads)  // read, never used
      a.tiles[t] = make_int4(0, 0, 0, 0);
  }

  visit_pairs(a, mine, [&](int base, const int(&e)[kSortAhead]) {
#pragma unroll
    for (int i = 0; i < kSortAhead; ++i) {
      const unsigned same = __match_any_sync(kAllLanes, e[i]);
      const int before_lane = __popc(same & ((1u << lane) - 1));
      if (e[i] >= 0) a.pairs[next[e[i]] + before_lane] = base + i * 32 + lane;
      __syncwarp();
      if (e[i] >= 0 && before_lane == 0) next[e[i]] += __popc(same);
      __syncwarp();
    }
  });
}

// ---- The sum over the choices

constexpr int kCombineThreads = 256;

struct CombineArgs {
  const __nv_bfloat16* outputs;  // [R · k, N]
  View<float> weights;
  int k, N;
  View<__nv_bfloat16> out;
  ExpertsMore more;
};

__global__ void __launch_bounds__(kCombineThreads) combine_kernel(CombineArgs a) {
  follow();
  const int k = a.k, N = a.N;
  const int64_t r = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y * kCombineThreads + threadIdx.x) * 8;
  if (column >= N) return;
  const __nv_bfloat16* const from = a.outputs + r * k * N + column;
  const float* const weights = a.weights.row(r);
  Piece<__nv_bfloat16> sums(uint4{});
#pragma unroll 8
  for (int j = 0; j < k; ++j) {
    const auto part = Piece<__nv_bfloat16>::load(from + static_cast<int64_t>(j) * N);
    const float weight = weights[j];
#pragma unroll
    for (int i = 0; i < 8; ++i) sums.at[i] += weight * part.at[i];
  }
  store_experts(sums, a.more, r, column, a.out.row(r) + column);
}

}  // namespace

ExpertsSizes experts_sizes(const ExpertsArgs& a) {
  Shapes shapes("experts");
  shapes.bind(a.x, "x", {"R", "N"}).bind(a.experts, "experts", {"R", "k"}).bind(a.weights, "weights", {"R", "k"})
      .bind(a.up, "up", {"E", "U", "N"}).bind(a.down, "down", {"E", "N", "I"}).bind(a.out, "out", {"R", "N"});
  const auto at = [&](const char* axis) { return static_cast<int>(shapes[axis]); };
  HYPIC_CHECK(at("U") == (a.gated ? 2 * at("I") : at("I")) && a.x.data != a.out.data);
  return {shapes["R"], at("k"), at("E"), at("N"), at("I")};
}

ExpertsScratch experts_scratch(const ExpertsPlan& plan, void* scratch) {
  const auto at = [&](size_t offset) { return static_cast<char*>(scratch) + offset; };
  return {.counts = reinterpret_cast<int32_t*>(at(plan.counts)),
          .tiles = reinterpret_cast<int4*>(at(plan.tiles)),
          .tile_count = reinterpret_cast<int32_t*>(at(plan.tile_count)),
          .pairs = reinterpret_cast<int32_t*>(at(plan.pairs)),
          .inner = reinterpret_cast<__nv_bfloat16*>(at(plan.inner)),
          .outputs = reinterpret_cast<__nv_bfloat16*>(at(plan.outputs))};
}

void experts_sort(const Tensor& experts, int E, const ExpertsPlan& plan, const ExpertsScratch& scratch,
                  cudaStream_t stream) {
  check(cudaFuncSetAttribute(place_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(place_bytes(kMaxExperts))),
        "experts, shared memory");
  const SortArgs sort{.experts = {experts.as<int32_t>(), experts.stride[0]},
                      .k = static_cast<int>(experts[1]),
                      .P = static_cast<int>(experts[0] * experts[1]),
                      .E = E,
                      .block_pairs = plan.sort_pairs,
                      .tile_rows = plan.tile_rows,
                      .max_tiles = plan.max_tiles,
                      .counts = scratch.counts,
                      .pairs = scratch.pairs,
                      .tiles = scratch.tiles,
                      .tile_count = scratch.tile_count};
  const dim3 blocks(static_cast<unsigned>(ceil_div(sort.P, sort.block_pairs)));
  if (blocks.x > 1) {
    count_kernel<<<blocks, kExpertsSortThreads, sizeof(int32_t) * static_cast<size_t>(E), stream>>>(sort);
    check_launch("experts, sort");
  }
  launch_next("experts, sort", place_kernel, blocks, kExpertsSortThreads, static_cast<int>(place_bytes(E)),
              stream, sort);
}

void experts_combine(const __nv_bfloat16* outputs, const Tensor& weights, const Tensor& out, const ExpertsMore& more,
                     cudaStream_t stream) {
  const auto N = static_cast<int>(out[1]);
  const dim3 blocks(static_cast<unsigned>(out[0]), static_cast<unsigned>(ceil_div(N, kCombineThreads * 8)));
  launch_next("experts, sum", combine_kernel, blocks, kCombineThreads, 0, stream,
              CombineArgs{outputs, view<float>(weights), static_cast<int>(weights[1]), N, view<__nv_bfloat16>(out), more});
}

}  // namespace hypic::cuda
