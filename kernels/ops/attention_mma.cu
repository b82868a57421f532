#include "kernels/ops/attention_mma.cuh"

#include "kernels/common/launch_next.cuh"
#include "kernels/ops/attention_tiles.cuh"

// After FlashAttention-2 (arXiv 2307.08691). A block holds a tile of rows, its Q rotated in shared memory, and
// lets tiles of keys go by; scores, softmax and the sums of V stay in registers. Q is rotated anew where a residue
// with another shift begins. Nothing is summed in an order that depends on time: a result is the same bits each run.

namespace hypic::cuda {
namespace {

constexpr int kKeys = kAttentionKeys;
constexpr int kMergeThreads = 512;

// A tile of keys that is on its way to shared memory or there.
struct KeyTile {
  int32_t count;      // 0: there is none, nor any after it
  int32_t first_own;  // its first key among the chain's own; kNone: keys of a residue
  int32_t seen_from;  // residue: the position from which rows see it
  int32_t shift;
  bool rotate;        // its shift is not that of the tile before
  bool masked;        // some row does not see some key
  int64_t k_at[kKeys], v_at[kKeys];  // bytes from the first page to the key; 0 where there is no key

  __device__ int seen(int32_t position, int32_t limit) const {  // how many keys a row sees
    if (first_own == kNone) return position >= seen_from ? count : 0;
    return limit + 1 - first_own;
  }
};

// Goes through the keys that a split of a tile of rows sees: residues in order, then the chain's own. For a whole
// warp; it lies in shared memory, for between two tiles nobody has registers for it.
struct KeyCursor {
  int part;  // residue of the chain; their number: own keys
  int left;  // tiles of this split
  int32_t page_begin, token, end, seen_from, shift;
  int32_t rotated;  // shift that Q has been rotated for

  __device__ void begin(const Params& p, const RowTile& rows, int split) {
    const int residues = rows.chain.residue_end - rows.chain.residue_begin;
    int skip = split * p.chunk;
    const auto tiles = [&](int i) {
      if (i == residues) return tiles_of(rows.last_limit + 1);
      const ResidueRef& r = p.table.residues[rows.chain.residue_begin + i];
      return seen(rows, r) ? tiles_of(r.last - r.first) : 0;
    };
    const int at = warp_find(residues + 1, tiles, &skip);
    left = at > residues ? 0 : split == p.splits - 1 ? INT32_MAX : p.chunk;
    enter(p, rows, min(at, residues));
    token += skip * kKeys;
    rotated = shift;
  }

  __device__ void next(const Params& p, const RowTile& rows, KeyTile* to) {
    const int residues = rows.chain.residue_end - rows.chain.residue_begin, lane = threadIdx.x % 32;
    while (token >= end && part < residues) enter(p, rows, part + 1);
    const bool own = part == residues;
    const int count = left > 0 ? min(kKeys, end - token) : 0;
    for (int i = lane; i < kKeys; i += 32) {
      int64_t k_at = 0, v_at = 0;
      if (i < count) {
        const int64_t page = __ldg(p.table.pages + page_begin + (token + i) / p.table.page_size);
        const int at = (token + i) % p.table.page_size;
        k_at = page * p.k.stride_page + at * p.k.stride_token;
        v_at = page * p.v.stride_page + at * p.v.stride_token;
      }
      to->k_at[i] = k_at;
      to->v_at[i] = v_at;
    }
    if (lane == 0) {
      to->count = count;
      to->first_own = own ? token : kNone;
      to->seen_from = seen_from;
      to->shift = shift;
      to->rotate = shift != rotated;
      to->masked = count < kKeys || (own ? rows.first_limit < token + kKeys - 1 : rows.first_position < seen_from);
    }
    rotated = shift;
    token += count;
    --left;
  }

 private:
  __device__ static int tiles_of(int keys) { return (keys + kKeys - 1) / kKeys; }
  __device__ static bool seen(const RowTile& rows, const ResidueRef& r) {
    return rows.last_position >= r.start + r.last;
  }

  __device__ void enter(const Params& p, const RowTile& rows, int to) {
    const int residues = rows.chain.residue_end - rows.chain.residue_begin;
    if (to < residues) {
      const ResidueRef r = p.table.residues[rows.chain.residue_begin + to];
      if (seen(rows, r)) {
        part = to;
        page_begin = r.page_begin;
        token = r.first;
        end = r.last;
        seen_from = r.start + r.last;
        shift = r.shift;
        return;
      }
    }
    part = residues;  // the residues after one that is not seen are not seen
    page_begin = rows.chain.page_begin;
    token = 0;
    end = rows.last_limit + 1;
    seen_from = shift = 0;
  }
};

template <int D, int kRows_>
struct Layout {
  static constexpr AttentionBlock kBlock = attention_block(D, kRows_);
  static constexpr int kRows = kRows_, kStages = kBlock.stages;
  static constexpr int kThreads = 32 * kBlock.row_warps * kBlock.key_warps;
  static constexpr int kRowBlocks = kRows / 16 / kBlock.row_warps;  // of a warp, 16 rows each
  static constexpr int kKeyBlocks = kKeys / 16 / kBlock.key_warps;  // of a warp, 16 keys each
  static constexpr int kRowBytes = D * 2;
  static constexpr int kKeyTileBytes = kKeys * kRowBytes;
  static constexpr int kTiles = kStages + 1;  // descriptions: of the tiles in flight and the one in use

  // Q · ring of K · ring of V · key tiles · positions and limits of rows · row tile · key cursor. The parts of key
  // warps take the place of K and V.
  static constexpr int kK = kRows * kRowBytes;
  static constexpr int kV = kK + kStages * kKeyTileBytes;
  static constexpr int kDescriptions = kV + kStages * kKeyTileBytes;
  static constexpr int kRowTable = kDescriptions + kTiles * static_cast<int>(sizeof(KeyTile));
  static constexpr int kRowTile = kRowTable + kRows * static_cast<int>(sizeof(int2));
  static constexpr int kCursor = kRowTile + static_cast<int>(sizeof(RowTile));
  static constexpr int kBytes = kCursor + static_cast<int>(sizeof(KeyCursor));

  static constexpr int kPartStride = D + 8;  // floats; rows of a fragment lie in different banks
  static constexpr int kPartSums = kBlock.key_warps * kRows * kPartStride;
  static_assert(kBlock.key_warps == 1 || (kRowBlocks == 1 && kBlock.row_warps == 1 &&
                                          (kPartSums + 2 * kBlock.key_warps * kRows) * 4 <= kDescriptions - kK));
  static_assert(kThreads % (D / 8) == 0 && kBytes <= 227 * 1024);
};

// Puts Q into shared memory, its first dims rotated by position − shift. `all`: also the dims without rotation.
template <class L, int D>
__device__ void stage_queries(const Params& p, const RowTile& rows, const int2* row_table, int32_t shift, bool all,
                              unsigned char* to) {
  stage_rotated<D, L::kRows, L::kThreads>(
      p.rotation, all,
      [&](int row) { return row < rows.valid ? p.q.row(rows.row_of(row), rows.head(row)) : nullptr; },
      [&](int row) { return row_table[row].x - shift; },
      [&](int row, int chunk) {
        return reinterpret_cast<uint4*>(to + row * L::kRowBytes + swizzle_128(row, chunk) * 16);
      });
}

// Starts the copy of a tile of keys, or of their values, of one head; zeros follow the last key. One group of copies
// a call, whether or not there are keys, so that groups count steps.
template <class L, int D>
__device__ void copy_keys(const char* from, const int64_t (&at)[kKeys], int count, uint32_t to) {
  constexpr int kStep = L::kThreads / (D / 8);  // keys that all threads copy at once
  if (count == 0) return cp_async_commit();
  const int first = threadIdx.x / (D / 8), chunk = threadIdx.x % (D / 8);
#pragma unroll
  for (int i = 0; i < kKeys / kStep; ++i) {
    const int key = first + i * kStep;
    cp_async_16(to + key * L::kRowBytes + swizzle_128(key, chunk) * 16, from + at[key] + chunk * 16, key < count);
  }
  cp_async_commit();
}

// The address of chunks 2i, 2i + 1 of a row, given that of its chunks 0 and 1.
__device__ inline uint32_t chunk_pair(uint32_t address, int i) { return (address ^ (i % 4 * 32)) + i / 4 * 128; }

template <int D, int kRows>
__global__ void __launch_bounds__(Layout<D, kRows>::kThreads, Layout<D, kRows>::kBlock.blocks_per_sm)
    attention_mma_kernel(const __grid_constant__ Params p) {
  using L = Layout<D, kRows>;
  constexpr int kStages = L::kStages, M = L::kRowBlocks, N = L::kKeyBlocks;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto* tiles = reinterpret_cast<KeyTile*>(memory + L::kDescriptions);
  auto* row_table = reinterpret_cast<int2*>(memory + L::kRowTable);  // position and limit
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row_warp = warp / L::kBlock.key_warps, key_warp = warp % L::kBlock.key_warps;
  follow();

  auto& rows = *reinterpret_cast<RowTile*>(memory + L::kRowTile);
  auto* shared_cursor = reinterpret_cast<KeyCursor*>(memory + L::kCursor);
  if (warp == 0) {
    // The last rows of a chain see the most keys: they go first.
    const int block = static_cast<int>(blockIdx.x);
    const RowTile found = row_tile(p, kRows, p.tiles - 1 - block / p.kv_heads, block % p.kv_heads);
    if (lane == 0) rows = found;
    KeyCursor cursor;
    cursor.begin(p, found, static_cast<int>(blockIdx.y));
    for (int j = 0; j < kStages; ++j) cursor.next(p, found, &tiles[j]);
    if (lane == 0) *shared_cursor = cursor;
  }
  __syncthreads();
  const char* const k_data = p.k.data + rows.kv * p.k.stride_h;
  const char* const v_data = p.v.data + rows.kv * p.v.stride_h;
  const uint32_t shared = shared_address(memory);
  const auto copy_k = [&](int j) {
    const KeyTile& tile = tiles[j % L::kTiles];
    copy_keys<L, D>(k_data, tile.k_at, tile.count, shared + L::kK + j % kStages * L::kKeyTileBytes);
  };
  const auto copy_v = [&](int j) {
    const KeyTile& tile = tiles[j % L::kTiles];
    copy_keys<L, D>(v_data, tile.v_at, tile.count, shared + L::kV + j % kStages * L::kKeyTileBytes);
  };
  copy_k(0);
  for (int j = 1; j < kStages; ++j) {
    copy_v(j - 1);
    copy_k(j);
  }
  for (int row = threadIdx.x; row < kRows; row += L::kThreads)
    row_table[row] = {p.table.positions[rows.row_of(row)], rows.chain.kv_begin + rows.token(row)};
  __syncthreads();
  if (tiles[0].count > 0) stage_queries<L, D>(p, rows, row_table, tiles[0].shift, true, memory);

  // Until the oldest copy under way is there, and every warp is done with the step before: its buffer is free.
  const auto wait = [] {
    cp_async_wait<2 * kStages - 2>();
    __syncthreads();
  };

  // Addresses of this lane's row of the first matrices that ldmatrix reads.
  const int swizzle = lane % 8;
  const uint32_t q_at = shared + (row_warp * M * 16 + lane % 16) * L::kRowBytes + (lane / 16 ^ swizzle) * 16;
  const uint32_t k_at = shared + L::kK + (key_warp * N * 16 + lane / 16 * 8 + lane % 8) * L::kRowBytes +
                        (lane / 8 % 2 ^ swizzle) * 16;
  const uint32_t v_at =
      shared + L::kV + (key_warp * N * 16 + lane % 16) * L::kRowBytes + (lane / 16 ^ swizzle) * 16;

  float sums[M][D / 8][4] = {};
  float top[M][2], divisor[M][2] = {};  // of rows lane / 4 and lane / 4 + 8; the divisor is this lane's share
#pragma unroll
  for (int m = 0; m < M; ++m) top[m][0] = top[m][1] = -INFINITY;

  for (int j = 0;; ++j) {
    wait();  // K is there
    const KeyTile& tile = tiles[j % L::kTiles];
    if (tile.count == 0) break;
    copy_v(j + kStages - 1);
    if (warp == 0) {
      KeyCursor cursor = *shared_cursor;
      cursor.next(p, rows, &tiles[(j + kStages) % L::kTiles]);
      __syncwarp();
      if (lane == 0) *shared_cursor = cursor;
    }
    if (tile.rotate) {
      stage_queries<L, D>(p, rows, row_table, tile.shift, false, memory);
      __syncthreads();
    }

    float scores[M][2 * N][4] = {};
    const uint32_t k_tile = k_at + j % kStages * L::kKeyTileBytes;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      uint32_t q[M][4];
#pragma unroll
      for (int m = 0; m < M; ++m) ldmatrix_x4(q[m], chunk_pair(q_at, i) + m * 16 * L::kRowBytes);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        uint32_t k[4];
        ldmatrix_x4(k, chunk_pair(k_tile, i) + n * 16 * L::kRowBytes);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          mma_bf16(scores[m][2 * n], q[m], k[0], k[1]);
          mma_bf16(scores[m][2 * n + 1], q[m], k[2], k[3]);
        }
      }
    }

    if (tile.masked) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int2 row = row_table[(row_warp * M + m) * 16 + half * 8 + lane / 4];
          const int seen = tile.seen(row.x, row.y) - key_warp * N * 16 - lane % 4 * 2;
#pragma unroll
          for (int n = 0; n < 2 * N; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (n * 8 + e >= seen) scores[m][n][half * 2 + e] = -INFINITY;
        }
    }

    uint32_t weights[M][N][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float keep[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float raised = top[m][half];
#pragma unroll
        for (int n = 0; n < 2 * N; ++n)
          raised = fmaxf(raised, fmaxf(scores[m][n][half * 2], scores[m][n][half * 2 + 1]));
        raised = fmaxf(raised, __shfl_xor_sync(kAll, raised, 1));
        raised = fmaxf(raised, __shfl_xor_sync(kAll, raised, 2));
        const bool none = raised == -INFINITY;  // no key seen yet: all weights are 0
        const float base = none ? 0.0f : raised * p.scale;
        keep[half] = none ? 1.0f : exp2_approx((top[m][half] - raised) * p.scale);
        top[m][half] = raised;
        divisor[m][half] *= keep[half];
#pragma unroll
        for (int n = 0; n < 2 * N; ++n)
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; ++e) {
            scores[m][n][e] = exp2_approx(scores[m][n][e] * p.scale - base);
            divisor[m][half] += scores[m][n][e];
          }
      }
      if (__any_sync(kAll, keep[0] != 1 || keep[1] != 1)) {
#pragma unroll
        for (int d = 0; d < D / 8; ++d)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[m][d][e] *= keep[e / 2];
      }
#pragma unroll
      for (int n = 0; n < 2 * N; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          weights[m][n / 2][n % 2 * 2 + half] = pack_bf16(scores[m][n][half * 2], scores[m][n][half * 2 + 1]);
    }

    wait();  // V is there
    copy_k(j + kStages);
    const uint32_t v_tile = v_at + j % kStages * L::kKeyTileBytes;
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, chunk_pair(v_tile, i) + n * 16 * L::kRowBytes);
#pragma unroll
        for (int m = 0; m < M; ++m) {
          mma_bf16(sums[m][2 * i], weights[m][n], v[0], v[1]);
          mma_bf16(sums[m][2 * i + 1], weights[m][n], v[2], v[3]);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[m][half] *= p.scale;
      divisor[m][half] += __shfl_xor_sync(kAll, divisor[m][half], 1);
      divisor[m][half] += __shfl_xor_sync(kAll, divisor[m][half], 2);
    }

  const auto part_of = [&](int row) -> int64_t {  // of this split
    if (p.splits == 1) return kNone;
    return (int64_t{blockIdx.y} * p.rows + rows.row_of(row)) * (p.kv_heads * p.group) + rows.head(row);
  };
  if constexpr (L::kBlock.key_warps == 1) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (row_warp * M + m) * 16 + half * 8 + lane / 4;
        if (row >= rows.valid) continue;
        const RowWriter<D> to(p, rows, row, part_of(row), top[m][half], divisor[m][half]);
#pragma unroll
        for (int d = 0; d < D / 8; ++d)
          to.write(d * 8 + lane % 4 * 2, {sums[m][d][half * 2], sums[m][d][half * 2 + 1]});
      }
  } else {  // each warp has the softmax of its own keys; they are joined in order
    auto* parts = reinterpret_cast<float*>(memory + L::kK);
    auto* part_sums = reinterpret_cast<float2*>(parts + L::kPartSums);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = warp * kRows + half * 8 + lane / 4;
      if (lane % 4 == 0) part_sums[at] = {top[0][half], divisor[0][half]};
#pragma unroll
      for (int d = 0; d < D / 8; ++d)
        *reinterpret_cast<float2*>(parts + at * L::kPartStride + d * 8 + lane % 4 * 2) = {sums[0][d][half * 2],
                                                                                         sums[0][d][half * 2 + 1]};
    }
    __syncthreads();
    for (int c = threadIdx.x; c < rows.valid * (D / 2); c += L::kThreads) {
      const int row = c / (D / 2), d = c % (D / 2) * 2;
      float all = -INFINITY, weight = 0;
      for (int w = 0; w < L::kBlock.key_warps; ++w) all = fmaxf(all, part_sums[w * kRows + row].x);
      float2 total = {};
      for (int w = 0; w < L::kBlock.key_warps; ++w) {
        const int at = w * kRows + row;
        const float2 part = part_sums[at];
        const float share = part.x == -INFINITY ? 0.0f : exp2_approx(part.x - all);  // a warp without keys
        weight += share * part.y;
        total.x += share * parts[at * L::kPartStride + d];
        total.y += share * parts[at * L::kPartStride + d + 1];
      }
      RowWriter<D>(p, rows, row, part_of(row), all, weight).write(d, total);
    }
  }
}

// Joins the parts of the splits of one row and head, in an order that is fixed. A split without keys has no part.
template <int D>
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ Params p) {
  constexpr int kColumns = D / 4, kGroups = kMergeThreads / kColumns;  // group g takes splits g, g + kGroups …
  __shared__ float shares[kMaxAttentionSplits], divisors[kMaxAttentionSplits], tops[kMaxAttentionSplits / 32];
  __shared__ float4 totals[kGroups][kColumns];
  const int heads = p.kv_heads * p.group, s = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x, rows = int64_t{p.rows} * heads;
  follow();
  const float2 part = s < p.splits ? p.part_sums[s * rows + row] : float2{-INFINITY, 0};
  float all = part.x;
  for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(kAll, all, step));
  if (s % 32 == 0 && s < kMaxAttentionSplits) tops[s / 32] = all;
  __syncthreads();
  for (const float top : tops) all = fmaxf(all, top);
  if (s < kMaxAttentionSplits) {
    shares[s] = part.x == -INFINITY ? 0.0f : exp2_approx(part.x - all);
    divisors[s] = shares[s] * part.y;
  }
  __syncthreads();

  const int group = s / kColumns, column = s % kColumns;
  float4 total = {};
#pragma unroll 4
  for (int i = group; i < p.splits; i += kGroups) {
    const float share = shares[i];
    const auto* from = reinterpret_cast<const float4*>(p.parts + (i * rows + row) * D) + column;
    const float4 x = share != 0 ? *from : float4{};  // a part that is not there may hold NaN
    total.x += share * x.x;
    total.y += share * x.y;
    total.z += share * x.z;
    total.w += share * x.w;
  }
  totals[group][column] = total;
  __syncthreads();
  if (group > 0) return;
  for (int g = 1; g < kGroups; ++g) {
    total.x += totals[g][column].x;
    total.y += totals[g][column].y;
    total.z += totals[g][column].z;
    total.w += totals[g][column].w;
  }
  float divisor = 0;
  for (int i = 0; i < p.splits; ++i) divisor += divisors[i];
  const float inverse = 1 / divisor;
  *reinterpret_cast<uint2*>(p.out.row(row / heads, row % heads) + 4 * column) = {
      pack_bf16(total.x * inverse, total.y * inverse), pack_bf16(total.z * inverse, total.w * inverse)};
}

template <int D, int kRows>
void launch_tiles(const Params& p, cudaStream_t stream) {
  using L = Layout<D, kRows>;
  check(cudaFuncSetAttribute(attention_mma_kernel<D, kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kBytes),
        "shared memory");
  const dim3 grid(static_cast<unsigned>(p.tiles * p.kv_heads), static_cast<unsigned>(p.splits));
  launch_next("attention_mma", attention_mma_kernel<D, kRows>, grid, L::kThreads, L::kBytes, stream, p);
  if (p.splits == 1) return;
  launch_next("attention_mma merge", merge_kernel<D>, static_cast<unsigned>(p.rows * p.kv_heads * p.group),
              kMergeThreads, 0, stream, p);
}

template <int D>
void launch(int tile_rows, const Params& p, cudaStream_t stream) {
  if (tile_rows == 16) return launch_tiles<D, 16>(p, stream);
  if constexpr (D > 128)
    if (tile_rows == 64) return launch_tiles<D, 64>(p, stream);
  HYPIC_CHECK(tile_rows == 128, "tiles of ", tile_rows, " rows for heads of ", D, " dims");
  launch_tiles<D, 128>(p, stream);
}

}  // namespace

bool attention_mma_takes(const AttentionArgs& a, const TableUpload& table) { return attention_tiles_takes(a, table); }

void attention_mma(const AttentionArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  HYPIC_CHECK(attention_mma_takes(a, table) && a.q[1] % a.k_pages[2] == 0);
  attention_mma_by(plan_attention(attention_shape(a, table, sms), table.chains()), a, table, stream);
}

void attention_mma_by(const AttentionPlan& plan, const AttentionArgs& a, const TableUpload& table,
                      cudaStream_t stream) {
  HYPIC_CHECK(attention_mma_takes(a, table));
  check_attention(a, table);
  HYPIC_CHECK(1 <= plan.splits && plan.splits <= kMaxAttentionSplits);
  if (a.q[0] == 0) return;
  const int64_t parts = plan.splits > 1 ? plan.splits * a.q[0] * a.q[1] : 0;
  const Scratch scratch(part_bytes(parts, a), stream);
  Params p = attention_params(a, table, plan.tiles, parts, scratch);
  p.splits = plan.splits;
  p.chunk = plan.chunk;
  if (a.q[2] == 64) launch<64>(plan.rows, p, stream);
  if (a.q[2] == 128) launch<128>(plan.rows, p, stream);
  if (a.q[2] == 256) launch<256>(plan.rows, p, stream);
}

}  // namespace hypic::cuda
