#include "kernels/ops/attention_mma.cuh"

#include "kernels/common/mma.cuh"
#include "kernels/common/rotation_table.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"

// After FlashAttention-2 (arXiv 2307.08691). A block holds a tile of rows, its Q rotated in shared memory, and
// lets tiles of keys go by; scores, softmax and the sums of V stay in registers. Q is rotated anew where a residue
// with another shift begins. Nothing is summed in an order that depends on time: a result is the same bits each run.

namespace hypic::cuda {
namespace {

using bf16 = __nv_bfloat16;
constexpr int kKeys = kAttentionKeys;
constexpr int kMergeThreads = 512;
constexpr unsigned kAll = 0xffffffffu;  // lanes

struct KvPages {  // [P, page size, H, D]; strides in bytes
  const char* data = nullptr;
  int64_t stride_page = 0, stride_token = 0, stride_h = 0;
  explicit KvPages(const Tensor& t)
      : data(static_cast<const char*>(t.data)),
        stride_page(t.stride[0] * 2),
        stride_token(t.stride[1] * 2),
        stride_h(t.stride[2] * 2) {}
};

struct Params {
  View<bf16> q;
  KvPages k, v;
  View<bf16> out;
  float* parts;       // [splits, R, Hq, D] sums of V, where there are several splits
  float2* part_sums;  // [splits, R, Hq] largest exponent (base 2) and divisor
  int rows, kv_heads, group;
  int chains, tiles, splits, chunk;
  float scale;  // of scores, times log2 e
  RotationTable rotation;
  DeviceTable table;
};

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Entry i of `entries` holds count(i) units, one entry after another: the entry with unit *index, which becomes the
// unit's number in it. `entries` where there are fewer units. For a whole warp.
template <class Count>
__device__ int warp_find(int entries, const Count& count, int* index) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < entries; base += 32) {
    const int units = base + lane < entries ? count(base + lane) : 0;
    int until = units;
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(kAll, until, step);
      if (lane >= step) until += below;
    }
    const unsigned holders = __ballot_sync(kAll, *index < until);
    if (holders != 0) {
      const int at = __ffs(holders) - 1;
      *index -= __shfl_sync(kAll, until - units, at);
      return base + at;
    }
    *index -= __shfl_sync(kAll, until, 31);
  }
  return entries;
}

// A tile of rows: pairs (token, query head of KV head kv) of a chain from `first` on, of which `valid` are there;
// those after them stand for the last one. A token sees the chain's own keys up to its limit.
struct RowTile {
  Chain chain;
  int kv, group;
  int first, valid;
  int32_t first_limit, last_limit, first_position, last_position;

  __device__ int token(int row) const { return (first + min(row, valid - 1)) / group; }  // of the chain
  __device__ int row_of(int row) const { return chain.row_begin + token(row); }
  __device__ int head(int row) const { return kv * group + (first + row) % group; }
};

// For a whole warp.
__device__ inline RowTile row_tile(const Params& p, int tile_rows, int block) {
  RowTile rows;
  rows.kv = block % p.kv_heads;
  rows.group = p.group;
  int tile = p.tiles - 1 - block / p.kv_heads;  // the last rows of a chain see the most keys: they go first
  const auto pairs = [&](int c) { return (p.table.chains[c].row_end - p.table.chains[c].row_begin) * p.group; };
  const int c = warp_find(p.chains, [&](int c) { return (pairs(c) + tile_rows - 1) / tile_rows; }, &tile);
  rows.chain = p.table.chains[c];
  rows.first = tile * tile_rows;
  rows.valid = min(tile_rows, pairs(c) - rows.first);
  rows.first_limit = rows.chain.kv_begin + rows.token(0);
  rows.last_limit = rows.chain.kv_begin + rows.token(rows.valid - 1);
  rows.first_position = p.table.positions[rows.row_of(0)];
  rows.last_position = p.table.positions[rows.row_of(rows.valid - 1)];
  return rows;
}

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
  const int pair_chunks = p.rotation.pairs / 8;  // 16 bytes, 8 dims each
  const auto chunk_at = [&](int row, int chunk) -> uint4* {
    return reinterpret_cast<uint4*>(to + row * L::kRowBytes + swizzle_128(row, chunk) * 16);
  };
  if (all)
    for (int c = threadIdx.x; c < L::kRows * (D / 8); c += L::kThreads) {
      const int row = c / (D / 8), chunk = c % (D / 8);
      if (chunk < 2 * pair_chunks) continue;
      const bf16* q = p.q.row(rows.row_of(row), rows.head(row)) + chunk * 8;
      *chunk_at(row, chunk) = row < rows.valid ? *reinterpret_cast<const uint4*>(q) : uint4{};
    }
  for (int c = threadIdx.x; c < L::kRows * pair_chunks; c += L::kThreads) {
    const int row = c / pair_chunks, chunk = c % pair_chunks;
    uint32_t low[4] = {}, high[4] = {};
    if (row < rows.valid) {
      const bf16* q = p.q.row(rows.row_of(row), rows.head(row)) + chunk * 8;
      const uint4 x4 = *reinterpret_cast<const uint4*>(q);
      const uint4 y4 = *reinterpret_cast<const uint4*>(q + p.rotation.pairs);
      const uint32_t x2[4] = {x4.x, x4.y, x4.z, x4.w}, y2[4] = {y4.x, y4.y, y4.z, y4.w};
      const int32_t distance = row_table[row].x - shift;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = chunk * 8 + 2 * i;
        const float2 a = p.rotation.at(distance, pair), b = p.rotation.at(distance, pair + 1);
        const float2 x = unpack_bf16(x2[i]), y = unpack_bf16(y2[i]);
        low[i] = pack_bf16(a.x * x.x - a.y * y.x, b.x * x.y - b.y * y.y);
        high[i] = pack_bf16(a.y * x.x + a.x * y.x, b.y * x.y + b.x * y.y);
      }
    }
    *chunk_at(row, chunk) = {low[0], low[1], low[2], low[3]};
    *chunk_at(row, chunk + pair_chunks) = {high[0], high[1], high[2], high[3]};
  }
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

// Where a row's result goes or, where there are several splits, their part of it.
template <int D>
class RowWriter {
 public:
  __device__ RowWriter(const Params& p, const RowTile& rows, int row, float top, float divisor) {
    const int64_t r = rows.row_of(row), h = rows.head(row);
    if (p.splits == 1) {
      out_ = p.out.row(r, h);
      inverse_ = 1 / divisor;
    } else {
      const int64_t at = (int64_t{blockIdx.y} * p.rows + r) * (p.kv_heads * p.group) + h;
      p.part_sums[at] = {top, divisor};
      part_ = p.parts + at * D;
    }
  }
  __device__ void write(int d, float2 sums) const {  // dims d, d + 1
    if (out_)
      *reinterpret_cast<uint32_t*>(out_ + d) = pack_bf16(sums.x * inverse_, sums.y * inverse_);
    else
      *reinterpret_cast<float2*>(part_ + d) = sums;
  }

 private:
  bf16* out_ = nullptr;
  float* part_ = nullptr;
  float inverse_ = 0;
};

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

  auto& rows = *reinterpret_cast<RowTile*>(memory + L::kRowTile);
  auto* shared_cursor = reinterpret_cast<KeyCursor*>(memory + L::kCursor);
  if (warp == 0) {
    const RowTile found = row_tile(p, kRows, static_cast<int>(blockIdx.x));
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

  if constexpr (L::kBlock.key_warps == 1) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = (row_warp * M + m) * 16 + half * 8 + lane / 4;
        if (row >= rows.valid) continue;
        const RowWriter<D> to(p, rows, row, top[m][half], divisor[m][half]);
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
      RowWriter<D>(p, rows, row, all, weight).write(d, total);
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
  attention_mma_kernel<D, kRows><<<grid, L::kThreads, L::kBytes, stream>>>(p);
  check_launch("attention_mma");
  if (p.splits == 1) return;
  merge_kernel<D><<<static_cast<unsigned>(p.rows * p.kv_heads * p.group), kMergeThreads, 0, stream>>>(p);
  check_launch("attention_mma merge");
}

template <int D>
void launch(int tile_rows, const Params& p, cudaStream_t stream) {
  if (tile_rows == 16) return launch_tiles<D, 16>(p, stream);
  if constexpr (D > 128)
    if (tile_rows == 64) return launch_tiles<D, 64>(p, stream);
  HYPIC_CHECK(tile_rows == 128, "tiles of ", tile_rows, " rows for heads of ", D, " dims");
  launch_tiles<D, 128>(p, stream);
}

// bf16 whose last axis lies in pieces of 16 bytes.
bool in_pieces(const Tensor& t) {
  const int last = t.rank - 1;
  bool yes = t.dtype == DType::bf16 && t.stride[last] == 1 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  for (int axis = 0; axis < last; ++axis) yes = yes && t.stride[axis] % 8 == 0;
  return yes;
}

}  // namespace

bool attention_mma_takes(const AttentionArgs& a, const TableUpload& table) {
  if (a.q.rank != 3 || a.out.rank != 3 || a.k_pages.rank != 4 || a.v_pages.rank != 4) return false;
  const int64_t D = a.q[2];
  return (D == 64 || D == 128 || D == 256) && a.out[2] == D && a.k_pages[3] == D && a.v_pages[3] == D &&
         a.rotary_dim % 16 == 0 && (a.rotary_dim == 0 || table.max_position() <= kMaxRotation) && a.scale > 0 && in_pieces(a.q) && in_pieces(a.k_pages) && in_pieces(a.v_pages) &&
         in_pieces(a.out);
}

void attention_mma(const AttentionArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  HYPIC_CHECK(attention_mma_takes(a, table) && a.q[1] % a.k_pages[2] == 0);
  const AttentionShape shape = {.sms = sms,
                                .head_dim = static_cast<int>(a.q[2]),
                                .kv_heads = static_cast<int>(a.k_pages[2]),
                                .group = static_cast<int>(a.q[1] / a.k_pages[2]),
                                .max_keys = table.max_keys()};
  attention_mma_by(plan_attention(shape, table.chains()), a, table, stream);
}

void attention_mma_by(const AttentionPlan& plan, const AttentionArgs& a, const TableUpload& table,
                      cudaStream_t stream) {
  Shapes shapes("attention");
  shapes.bind(a.q, "q", {"R", "Hq", "D"}).bind(a.out, "out", {"R", "Hq", "D"})
      .bind(a.k_pages, "k_pages", {"P", "page", "Hkv", "D"}).bind(a.v_pages, "v_pages", {"P", "page", "Hkv", "D"});
  HYPIC_CHECK(attention_mma_takes(a, table) && shapes["R"] == table.rows() && shapes["page"] == table.page_size());
  HYPIC_CHECK(shapes["Hq"] % shapes["Hkv"] == 0 && a.rotary_dim <= shapes["D"]);
  HYPIC_CHECK(1 <= plan.splits && plan.splits <= kMaxAttentionSplits);
  if (shapes["R"] == 0) return;
  const int64_t R = shapes["R"], Hq = shapes["Hq"], D = shapes["D"];
  const int64_t part_rows = plan.splits > 1 ? plan.splits * R * Hq : 0;
  const Scratch scratch(part_rows * (D * sizeof(float) + sizeof(float2)), stream);
  const Params p = {.q = view<bf16>(a.q),
                    .k = KvPages(a.k_pages),
                    .v = KvPages(a.v_pages),
                    .out = view<bf16>(a.out),
                    .parts = scratch.as<float>(),
                    .part_sums = reinterpret_cast<float2*>(scratch.as<float>() + part_rows * D),
                    .rows = static_cast<int>(R),
                    .kv_heads = static_cast<int>(shapes["Hkv"]),
                    .group = static_cast<int>(Hq / shapes["Hkv"]),
                    .chains = static_cast<int>(table.chains().size()),
                    .tiles = plan.tiles,
                    .splits = plan.splits,
                    .chunk = plan.chunk,
                    .scale = static_cast<float>(a.scale * 1.4426950408889634),
                    .rotation = rotation_table(a.rotary_dim, a.theta),
                    .table = table.device()};
  if (D == 64) launch<64>(plan.rows, p, stream);
  if (D == 128) launch<128>(plan.rows, p, stream);
  if (D == 256) launch<256>(plan.rows, p, stream);
}

}  // namespace hypic::cuda
