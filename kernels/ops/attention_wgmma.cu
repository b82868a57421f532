#include "kernels/ops/attention_wgmma.cuh"

#include <array>

#include "kernels/common/wgmma.cuh"
#include "kernels/ops/attention_shares.cuh"

// After FlashAttention-3 (arXiv 2407.08608). Warpgroups that multiply have 64 rows each, their Q rotated in shared
// memory; two warps of another one bring tiles of K and of V there, and a third one looks up the rows that come after.
// While the scores of a tile become weights, the products of the tile before it with V are under way. Q is rotated anew
// where a residue with another shift begins. Nothing is summed in an order that depends on time: a result is the same
// bits each run.
//
// K and V of a tile lie in groups of kGroupKeys keys, each [D / 64][keys][64], as one box of their tensor comes from a
// page: a group never lies in two pages, for tiles begin at multiples of kGroupKeys. Groups of which some keys are not
// there are copied by hand, for what is in their place may be NaN.

namespace hypic::cuda {
namespace {

constexpr int kGroupKeys = kAttentionGroupKeys;
constexpr int kWarpgroup = 128;  // threads

// A tile of keys that is on its way to shared memory or there.
struct KeyTile {
  int32_t from, until;  // keys [from, until) of its kKeys are there
  int32_t first_own;    // its first key among the chain's own; kNone: keys of a residue
  int32_t seen_from;    // residue: the position from which rows see it
  int32_t shift;
  int16_t piece;        // where its piece is described
  bool rotate;          // its shift is not that of the tile before
  bool masked;          // some row does not see some key
  bool last;            // of these rows
  bool none;            // there is none, nor any after it

  __device__ int seen_until(int32_t position, int32_t limit) const {  // the keys [from, this) are those a row sees
    if (first_own == kNone) return position >= seen_from ? until : 0;
    return limit + 1 - first_own;
  }
};

// Tiles that keys [first, last) of a residue, or of a chain's own, make.
template <int kKeys>
struct TilesOf {
  __device__ static int aligned(int first) { return first / kGroupKeys * kGroupKeys; }
  __device__ int operator()(int first, int last) const {
    return first < last ? (last - aligned(first) + kKeys - 1) / kKeys : 0;
  }
};

// Goes through the keys of a piece of a tile of rows: residues in order, then the chain's own. For a whole warp.
template <int kKeys>
struct KeyCursor {
  int part;  // residue of the chain; their number: own keys
  int left;  // tiles of this piece
  int32_t page_begin, token, first, end;  // at `token` of [first, end)
  int32_t there;  // up to which tokens exist: those after `end` are not seen, but may come in the same copy
  int32_t seen_from, shift;
  int32_t rotated;  // shift that Q has been rotated for

  __device__ void begin(const Params& p, const RowTile& rows, const Piece& piece) {
    const int residues = rows.chain.residue_end - rows.chain.residue_begin;
    int skip = piece.first;
    const auto tiles = [&](int i) {
      if (i == residues) return TilesOf<kKeys>()(0, rows.last_limit + 1);
      const ResidueRef& r = p.table.residues[rows.chain.residue_begin + i];
      return seen(rows, r) ? TilesOf<kKeys>()(r.first, r.last) : 0;
    };
    const int at = warp_find(residues + 1, tiles, &skip);
    left = piece.count;
    enter(p, rows, at);
    token += skip * kKeys;
    rotated = shift;
  }

  __device__ KeyTile tile(const RowTile& rows) const {
    const bool own = is_own(rows);
    const int32_t last = min(kKeys, end - token);
    return {.from = max(first - token, 0),
            .until = last,
            .first_own = own ? token : kNone,
            .seen_from = seen_from,
            .shift = shift,
            .rotate = shift != rotated,
            .masked = token < first || last < kKeys ||
                      (own ? rows.first_limit < token + kKeys - 1 : rows.first_position < seen_from),
            .last = left <= 1 || (own && token + kKeys >= end)};
  }

  __device__ void next(const Params& p, const RowTile& rows) {
    rotated = shift;
    token += kKeys;
    --left;
    while (token >= end && !is_own(rows)) enter(p, rows, part + 1);
  }

 private:
  __device__ static bool seen(const RowTile& rows, const ResidueRef& r) {
    return rows.last_position >= r.start + r.last;
  }
  __device__ bool is_own(const RowTile& rows) const {
    return part == rows.chain.residue_end - rows.chain.residue_begin;
  }

  __device__ void enter(const Params& p, const RowTile& rows, int to) {
    const int residues = rows.chain.residue_end - rows.chain.residue_begin;
    if (to < residues) {
      const ResidueRef r = p.table.residues[rows.chain.residue_begin + to];
      if (seen(rows, r)) {
        part = to;
        page_begin = r.page_begin;
        first = r.first;
        token = TilesOf<kKeys>::aligned(first);
        end = there = r.last;
        if (first >= end) token = end;
        seen_from = r.start + r.last;
        shift = r.shift;
        return;
      }
    }
    part = residues;  // the residues after one that is not seen are not seen
    page_begin = rows.chain.page_begin;
    token = first = 0;
    end = rows.last_limit + 1;
    there = rows.chain.kv_begin + rows.chain.row_end - rows.chain.row_begin;
    seen_from = shift = 0;
  }
};

// A piece of a tile of rows, and where its keys begin.
template <int kKeys>
struct PieceStart : RowTile {
  int slot;   // where its part goes; kNone: it is the whole
  bool none;  // there is no piece, nor any after it
  KeyCursor<kKeys> cursor;
};

// What the warps that multiply know of a row. Places in units of 8 elements.
struct Row {
  int32_t position, limit;
  uint32_t q, out;
};

template <int D>
struct Layout {
  static constexpr int kRows = kAttentionWgmmaRows, kWarpgroups = kRows / 64;  // that multiply
  static constexpr int kThreads = (kWarpgroups + 1) * kWarpgroup;
  static constexpr int kKeys = attention_wgmma_keys(D);
  static constexpr int kStages = D * kKeys > 8192 ? 2 : 4, kDescriptions = 2 * kStages;
  static constexpr int kPieces = 2;  // the one at work and the next
  static constexpr int kSlabs = D / 64, kSlabBytes = kGroupKeys * 128, kGroupBytes = kSlabs * kSlabBytes;
  static constexpr int kTileBytes = kKeys / kGroupKeys * kGroupBytes;
  static constexpr int kQBytes = 64 * D * 2;  // of a warpgroup: [D / 64][64 rows][64]

  // Q · ring of K · ring of V · barriers · descriptions of key tiles · pieces · rows.
  static constexpr int kK = kWarpgroups * kQBytes;
  static constexpr int kV = kK + kStages * kTileBytes;
  static constexpr int kBarriers = kV + kStages * kTileBytes;
  static constexpr int kKeyTiles = kBarriers + (4 * kStages + kDescriptions + 2 * kPieces) * 8;
  static constexpr int kPieceStarts = kKeyTiles + kDescriptions * static_cast<int>(sizeof(KeyTile));
  static constexpr int kRowTable = (kPieceStarts + kPieces * static_cast<int>(sizeof(PieceStart<kKeys>)) + 7) / 8 * 8;
  static constexpr int kBytes = kRowTable + kRows * static_cast<int>(sizeof(Row));
  static_assert(kBytes <= 227 * 1024);

  // Registers a thread: the warps that copy give of theirs to those that multiply.
  static constexpr int kCopyRegisters = 56, kMultiplyRegisters = 224;
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;  // of each thread until then
  static_assert(kWarpgroup * kCopyRegisters + kWarpgroups * kWarpgroup * kMultiplyRegisters <=
                kThreads * kLaunchRegisters);
};

// The barriers of a block: for tile j there is K, or V; its place is free again; its description is there. Piece i is
// there; its place is free again.
template <class L>
struct Barriers {
  uint32_t at;
  __device__ uint32_t k(unsigned j) const { return at + j % L::kStages * 8; }
  __device__ uint32_t v(unsigned j) const { return at + (L::kStages + j % L::kStages) * 8; }
  __device__ uint32_t k_free(unsigned j) const { return at + (2 * L::kStages + j % L::kStages) * 8; }
  __device__ uint32_t v_free(unsigned j) const { return at + (3 * L::kStages + j % L::kStages) * 8; }
  __device__ uint32_t described(unsigned j) const { return at + (4 * L::kStages + j % L::kDescriptions) * 8; }
  __device__ uint32_t piece(unsigned i) const { return first_piece() + i % L::kPieces * 8; }
  __device__ uint32_t piece_free(unsigned i) const { return first_piece() + (L::kPieces + i % L::kPieces) * 8; }
  // The parity of the phase in which a stage holds tile j.
  __device__ static uint32_t parity(unsigned j) { return j / L::kStages % 2; }
  __device__ static uint32_t description_parity(unsigned j) { return j / L::kDescriptions % 2; }
  __device__ static uint32_t piece_parity(unsigned i) { return i / L::kPieces % 2; }

 private:
  __device__ uint32_t first_piece() const { return at + (4 * L::kStages + L::kDescriptions) * 8; }
};

// Starts the copy of a tile of keys, or of their values, once free() returns; it has arrived when the barrier's phase
// ends. Zeros stand where there is no key. For a whole warp.
template <class L, int D, class Free>
__device__ void copy_tile(const Params& p, const KvPages& pages, const CUtensorMap& tensor, int page_count, int kv,
                          const KeyCursor<L::kKeys>& cursor, unsigned char* to, uint32_t barrier, const Free& free) {
  const int lane = threadIdx.x % 32;
  const int32_t token = cursor.token + lane * kGroupKeys;
  const bool mine = lane < L::kKeys / kGroupKeys;
  const bool some = mine && token < cursor.end && token + kGroupKeys > cursor.first;
  const bool all = token >= cursor.first && token + kGroupKeys <= cursor.there;
  int page = page_count, at = 0;  // beyond the tensor: zeros
  if (some) {
    page = __ldg(p.table.pages + cursor.page_begin + token / p.table.page_size);
    at = token % p.table.page_size;
  }
  const unsigned parts = __ballot_sync(kAll, some && !all);
  free();
  if (parts != 0) {
    for (unsigned rest = parts; rest != 0; rest &= rest - 1) {
      const int group = __ffs(rest) - 1;
      const int32_t group_token = cursor.token + group * kGroupKeys;
      const char* from = pages.data + kv * pages.stride_h + __shfl_sync(kAll, page, group) * pages.stride_page +
                         __shfl_sync(kAll, at, group) * pages.stride_token;
#pragma unroll 1
      for (int c = lane; c < kGroupKeys * (D / 8); c += 32) {
        const int key = c / (D / 8), chunk = c % (D / 8);
        const bool there = group_token + key >= cursor.first && group_token + key < cursor.there;
        *reinterpret_cast<uint4*>(to + group * L::kGroupBytes + chunk / 8 * L::kSlabBytes + key * 128 +
                                  swizzle_128(key, chunk % 8) * 16) =
            there ? *reinterpret_cast<const uint4*>(from + key * pages.stride_token + chunk * 16) : uint4{};
      }
    }
    shared_fence();
    __syncwarp();
  }
  if (lane == 0) barrier_arrive_expect(barrier, (L::kKeys / kGroupKeys - __popc(parts)) * L::kGroupBytes);
  __syncwarp();
  if (mine && (parts >> lane & 1) == 0)
    copy_box(shared_address(to) + lane * L::kGroupBytes, &tensor, 0, at, 0, kv, page, barrier);
}

// What one warp does: finds the pieces of the block and where their keys begin.
template <class L, int D>
__device__ void find_pieces(const Params& p, const Shares& shares, const Barriers<L>& barriers, unsigned char* memory) {
  auto* const pieces = reinterpret_cast<PieceStart<L::kKeys>*>(memory + L::kPieceStarts);
  const int lane = threadIdx.x % 32;
  PieceWalk walk;
  walk.begin(p, shares);
  for (unsigned i = 0;; ++i) {
    barrier_wait(barriers.piece_free(i), barriers.piece_parity(i) ^ 1);
    const Piece piece = walk.next(p, shares);
    PieceStart<L::kKeys>& start = pieces[i % L::kPieces];
    if (piece.count > 0) {
      const RowTile rows = row_tile(p, L::kRows, piece.tile, piece.kv);
      KeyCursor<L::kKeys> cursor;
      cursor.begin(p, rows, piece);
      if (lane == 0) {
        static_cast<RowTile&>(start) = rows;
        start.slot = piece.slot;
        start.cursor = cursor;
      }
      for (int row = lane; row < rows.valid; row += 32) {
        const bf16* const q = p.q.row(rows.row_of(row), rows.head(row));
        for (int d = 0; d < D; d += 64) prefetch_l2(q + d);
      }
    }
    if (lane == 0) {
      start.none = piece.count == 0;
      barrier_arrive(barriers.piece(i));
    }
    if (piece.count == 0) return;
  }
}

// What one warp does: copies K, or V, of all tiles of the block's pieces, and describes the tiles.
template <class L, int D, bool kK>
__device__ void copy_tiles(const Params& p, const CUtensorMap& tensor, int pages, const Barriers<L>& barriers,
                           unsigned char* memory) {
  auto* const key_tiles = reinterpret_cast<KeyTile*>(memory + L::kKeyTiles);
  const auto* const pieces = reinterpret_cast<const PieceStart<L::kKeys>*>(memory + L::kPieceStarts);
  const int lane = threadIdx.x % 32;
  if (lane == 0) prefetch_tensor(&tensor);
  unsigned j = 0;
  for (unsigned i = 0;; ++i) {
    barrier_wait(barriers.piece(i), barriers.piece_parity(i));
    const PieceStart<L::kKeys>& rows = pieces[i % L::kPieces];
    if (rows.none) break;
    KeyCursor<L::kKeys> cursor = rows.cursor;
    for (bool last = false; !last; ++j) {
      KeyTile tile = cursor.tile(rows);
      last = tile.last;
      const auto free = [&] {
        barrier_wait(kK ? barriers.k_free(j) : barriers.v_free(j), barriers.parity(j) ^ 1);
        if (kK && lane == 0) {  // the description in this place has been read: the K of a later tile was
          tile.piece = static_cast<int16_t>(i % L::kPieces);
          key_tiles[j % L::kDescriptions] = tile;
          barrier_arrive(barriers.described(j));
        }
      };
      copy_tile<L, D>(p, kK ? p.k : p.v, tensor, pages, rows.kv, cursor,
                      memory + (kK ? L::kK : L::kV) + j % L::kStages * L::kTileBytes,
                      kK ? barriers.k(j) : barriers.v(j), free);
      cursor.next(p, rows);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(barriers.piece_free(i));
  }
  if (!kK) return;
  barrier_wait(barriers.k_free(j), barriers.parity(j) ^ 1);
  if (lane == 0) {
    key_tiles[j % L::kDescriptions].none = true;
    barrier_arrive(barriers.described(j));
  }
}

template <int D>
__global__ void __launch_bounds__(Layout<D>::kThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap k_tensor,
                           const __grid_constant__ CUtensorMap v_tensor, int page_count,
                           const __grid_constant__ Shares shares) {
  using L = Layout<D>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto* const key_tiles = reinterpret_cast<KeyTile*>(memory + L::kKeyTiles);
  const auto* const pieces = reinterpret_cast<const PieceStart<L::kKeys>*>(memory + L::kPieceStarts);
  const uint32_t shared = shared_address(memory);
  const Barriers<L> barriers{shared + L::kBarriers};
  const int warpgroup = __shfl_sync(kAll, threadIdx.x / kWarpgroup, 0);  // which keeps what depends on it uniform
  const int warp = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (unsigned j = 0; j < L::kStages; ++j) {
      barrier_init(barriers.k(j), 1);
      barrier_init(barriers.v(j), 1);
      barrier_init(barriers.k_free(j), 4 * L::kWarpgroups);
      barrier_init(barriers.v_free(j), 4 * L::kWarpgroups);
    }
    for (unsigned j = 0; j < L::kDescriptions; ++j) barrier_init(barriers.described(j), 1);
    for (unsigned i = 0; i < L::kPieces; ++i) {
      barrier_init(barriers.piece(i), 1);
      barrier_init(barriers.piece_free(i), 4 * L::kWarpgroups + 2);
    }
    barrier_init_fence();
  }
  __syncthreads();

  if (warpgroup == L::kWarpgroups) {
    give_registers<L::kCopyRegisters>();
    if (warp == 0) copy_tiles<L, D, true>(p, k_tensor, page_count, barriers, memory);
    if (warp == 1) copy_tiles<L, D, false>(p, v_tensor, page_count, barriers, memory);
    if (warp == 2) find_pieces<L, D>(p, shares, barriers, memory);
    return;
  }

  take_registers<L::kMultiplyRegisters>();
  auto* const row_table = reinterpret_cast<Row*>(memory + L::kRowTable);
  unsigned char* const q_memory = memory + warpgroup * L::kQBytes;
  const uint64_t q = matrix_in_shared(shared + warpgroup * L::kQBytes, 16, 1024);
  const int first_row = warpgroup * 64, lane_row = first_row + warp * 16 + lane / 4;
  const auto group_barrier = [&] { named_barrier(1 + warpgroup, kWarpgroup); };
  const auto q_chunk = [&](int row, int chunk) {
    return q_memory + chunk / 8 * 64 * 128 + row * 128 + swizzle_128(row, chunk % 8) * 16;
  };
  const auto stage_queries = [&](const RowTile& rows, int32_t shift, bool all) {
    group_barrier();  // nobody reads what was there
    stage_rotated<D, 64, kWarpgroup>(
        p.rotation, all,
        [&](int row) {
          return first_row + row < rows.valid ? p.q.data + int64_t{row_table[first_row + row].q} * 8 : nullptr;
        },
        [&](int row) { return row_table[first_row + row].position - shift; },
        [&](int row, int chunk) { return reinterpret_cast<uint4*>(q_chunk(row, chunk)); });
    shared_fence();
    group_barrier();
  };
  // Warpgroups take turns at beginning their products, so that one's softmax falls into the others' products.
  const auto begin_turn = [&] { named_barrier(1 + L::kWarpgroups + warpgroup, 2 * kWarpgroup); };
  const auto end_turn = [&] {
    named_barrier_arrive(1 + L::kWarpgroups + (warpgroup + 1) % L::kWarpgroups, 2 * kWarpgroup);
  };
  if (warpgroup == L::kWarpgroups - 1) end_turn();

  float scores[L::kKeys / 2], sums[D / 2];
  uint32_t weights[L::kKeys / 16][4];
  float top[2], divisor[2];  // of rows lane / 4 and lane / 4 + 8; the divisor is this lane's share
  unsigned j = 0;

  const auto begin_scores = [&] {
    const uint64_t k = matrix_in_shared(shared + L::kK + j % L::kStages * L::kTileBytes, 16, L::kGroupBytes);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < D / 16; ++i)
      wgmma_ss(scores, matrix_at(q, i / 4 * 64 * 128 + i % 4 * 32), matrix_at(k, i / 4 * L::kSlabBytes + i % 4 * 32),
               i > 0);
    wgmma_commit();
  };
  const auto begin_sums = [&](unsigned j) {
    const uint64_t v = matrix_in_shared(shared + L::kV + j % L::kStages * L::kTileBytes, L::kSlabBytes, L::kGroupBytes);
    wgmma_operand(sums);
    wgmma_operand(weights);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < L::kKeys / 16; ++i)
      wgmma_rs(sums, weights[i], matrix_at(v, i * 16 / kGroupKeys * L::kGroupBytes));
    wgmma_commit();
  };
  const auto release = [&](uint32_t barrier) {
    __syncwarp();  // all lanes have read what is given back
    if (lane == 0) barrier_arrive(barrier);
  };
  const auto mask = [&](const KeyTile& tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Row& row = row_table[lane_row + half * 8];
      const int from = tile.from - lane % 4 * 2, until = tile.seen_until(row.position, row.limit) - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < L::kKeys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (n * 8 + e < from || n * 8 + e >= until) scores[n * 4 + half * 2 + e] = -INFINITY;
    }
  };
  // Makes weights of scores; keep: what the sums so far are to be multiplied by.
  const auto soften = [&](float (&keep)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float raised = top[half];
#pragma unroll
      for (int n = 0; n < L::kKeys / 8; ++n)
        raised = fmaxf(raised, fmaxf(scores[n * 4 + half * 2], scores[n * 4 + half * 2 + 1]));
      raised = fmaxf(raised, __shfl_xor_sync(kAll, raised, 1));
      raised = fmaxf(raised, __shfl_xor_sync(kAll, raised, 2));
      const bool none = raised == -INFINITY;  // no key seen yet: all weights are 0
      const float base = none ? 0.0f : raised * p.scale;
      keep[half] = none ? 1.0f : exp2_approx((top[half] - raised) * p.scale);
      top[half] = raised;
      divisor[half] *= keep[half];
#pragma unroll
      for (int n = 0; n < L::kKeys / 8; ++n)
#pragma unroll
        for (int e = n * 4 + half * 2; e < n * 4 + half * 2 + 2; ++e) {
          scores[e] = exp2_approx(scores[e] * p.scale - base);
          divisor[half] += scores[e];
        }
    }
  };
  const auto pack_weights = [&] {
#pragma unroll
    for (int n = 0; n < L::kKeys / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        weights[n / 2][n % 2 * 2 + half] = pack_bf16(scores[n * 4 + half * 2], scores[n * 4 + half * 2 + 1]);
  };

  while (true) {
    barrier_wait(barriers.described(j), barriers.description_parity(j));
    if (key_tiles[j % L::kDescriptions].none) break;
    const int piece = key_tiles[j % L::kDescriptions].piece;
    const PieceStart<L::kKeys>& rows = pieces[piece];
    group_barrier();  // nobody reads the table of the rows before
    if (threadIdx.x % kWarpgroup < 64) {
      const int row = first_row + threadIdx.x % kWarpgroup;
      const int64_t r = rows.row_of(row), h = rows.head(row);
      row_table[row] = {p.table.positions[r], rows.chain.kv_begin + rows.token(row),
                        static_cast<uint32_t>((r * p.q.stride_r + h * p.q.stride_h) / 8),
                        static_cast<uint32_t>((r * p.out.stride_r + h * p.out.stride_h) / 8)};
    }
    stage_queries(rows, key_tiles[j % L::kDescriptions].shift, true);
#pragma unroll
    for (int i = 0; i < D / 2; ++i) sums[i] = 0;
    top[0] = top[1] = -INFINITY;
    divisor[0] = divisor[1] = 0;
    float keep[2];

    barrier_wait(barriers.k(j), barriers.parity(j));
    begin_turn();
    begin_scores();
    end_turn();
    wgmma_wait<0>();
    wgmma_operand(scores);
    release(barriers.k_free(j));
    if (key_tiles[j % L::kDescriptions].masked) mask(key_tiles[j % L::kDescriptions]);
    soften(keep);
    pack_weights();
    bool last = key_tiles[j % L::kDescriptions].last;
    ++j;
    while (!last) {
      barrier_wait(barriers.described(j), barriers.description_parity(j));
      const KeyTile& tile = key_tiles[j % L::kDescriptions];
      if (tile.rotate) stage_queries(rows, tile.shift, false);
      barrier_wait(barriers.k(j), barriers.parity(j));
      begin_turn();
      begin_scores();
      barrier_wait(barriers.v(j - 1), barriers.parity(j - 1));
      begin_sums(j - 1);
      end_turn();
      wgmma_wait<1>();
      wgmma_operand(scores);
      release(barriers.k_free(j));
      if (tile.masked) mask(tile);
      last = tile.last;
      soften(keep);
      wgmma_wait<0>();
      wgmma_operand(sums);
      release(barriers.v_free(j - 1));
      if (__any_sync(kAll, keep[0] != 1 || keep[1] != 1)) {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) sums[i] *= keep[i % 4 / 2];
      }
      pack_weights();
      ++j;
    }
    barrier_wait(barriers.v(j - 1), barriers.parity(j - 1));
    begin_sums(j - 1);
    wgmma_wait<0>();
    wgmma_operand(sums);
    release(barriers.v_free(j - 1));

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      divisor[half] += __shfl_xor_sync(kAll, divisor[half], 1);
      divisor[half] += __shfl_xor_sync(kAll, divisor[half], 2);
    }
    if (rows.slot == kNone) {
      group_barrier();  // nobody reads Q, in whose place the rows become whole
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float inverse = 1 / divisor[half];
        const int row = lane_row - first_row + half * 8;
#pragma unroll
        for (int d = 0; d < D / 8; ++d)
          *reinterpret_cast<uint32_t*>(q_chunk(row, d) + lane % 4 * 4) =
              pack_bf16(sums[d * 4 + half * 2] * inverse, sums[d * 4 + half * 2 + 1] * inverse);
      }
      __syncwarp();
      for (int c = lane; c < 16 * (D / 8); c += 32) {
        const int row = warp * 16 + c / (D / 8), chunk = c % (D / 8);
        if (first_row + row >= rows.valid) break;
        bf16* const out = p.out.data + int64_t{row_table[first_row + row].out} * 8;
        *reinterpret_cast<uint4*>(out + chunk * 8) = *reinterpret_cast<const uint4*>(q_chunk(row, chunk));
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane_row + half * 8;
        if (row >= rows.valid) continue;
        const RowWriter<D> to(p, rows, row, int64_t{rows.slot} * L::kRows + row, top[half] * p.scale, divisor[half]);
#pragma unroll
        for (int d = 0; d < D / 8; ++d)
          to.write(d * 8 + lane % 4 * 2, {sums[d * 4 + half * 2], sums[d * 4 + half * 2 + 1]});
      }
    }
    release(barriers.piece_free(piece));
  }
}

// Boxes of kGroupKeys tokens of one head: [D / 64][tokens][64].
CUtensorMap boxes_of(const Tensor& pages) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    HYPIC_CHECK(found == cudaDriverEntryPointSuccess);
    return reinterpret_cast<Encode>(function);
  }();
  const auto at = [](int64_t x) { return static_cast<cuuint64_t>(x); };
  const std::array<cuuint64_t, 5> sizes = {64, at(pages[1]), at(pages[3] / 64), at(pages[2]), at(pages[0])};
  const std::array<cuuint64_t, 4> strides = {at(pages.stride[1] * 2), 128, at(pages.stride[2] * 2),
                                             at(pages.stride[0] * 2)};
  const std::array<cuuint32_t, 5> box = {64, kGroupKeys, static_cast<cuuint32_t>(pages[3] / 64), 1, 1};
  const std::array<cuuint32_t, 5> steps = {1, 1, 1, 1, 1};
  CUtensorMap tensor;
  const CUresult result =
      encode(&tensor, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, pages.data, sizes.data(), strides.data(), box.data(),
             steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HYPIC_CHECK(result == CUDA_SUCCESS, "pages ", pages.shape_string(), " as a tensor of boxes: error ",
              static_cast<int>(result));
  return tensor;
}

template <int D>
void launch(const AttentionWgmmaPlan& plan, const Params& p, const AttentionArgs& a, int32_t* until, int32_t* taken,
            cudaStream_t stream) {
  using L = Layout<D>;
  check(cudaFuncSetAttribute(attention_wgmma_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kBytes),
        "shared memory");
  const Shares shares = {until, plan.gap, taken};
  if (until == nullptr) {
    check(cudaMemsetAsync(taken, 0, sizeof(int32_t), stream), "attention_wgmma");
  } else {
    count_kernel<<<1, kCountThreads, 0, stream>>>(p, L::kRows, TilesOf<L::kKeys>(), plan.gap, until);
    check_launch("attention_wgmma count");
  }
  attention_wgmma_kernel<D><<<static_cast<unsigned>(plan.blocks), L::kThreads, L::kBytes, stream>>>(
      p, boxes_of(a.k_pages), boxes_of(a.v_pages), static_cast<int>(a.k_pages[0]), shares);
  check_launch("attention_wgmma");
  if (until == nullptr) return;
  const dim3 grid(static_cast<unsigned>(p.tiles * p.kv_heads), L::kRows / (kJoinThreads / (D / 4)));
  join_kernel<D><<<grid, kJoinThreads, 0, stream>>>(p, L::kRows, shares, plan.blocks);
  check_launch("attention_wgmma join");
}

}  // namespace

bool attention_wgmma_takes(const AttentionArgs& a, const TableUpload& table) {
  return attention_tiles_takes(a, table) && a.k_pages[1] % kGroupKeys == 0;
}

bool attention_wgmma_suits(const AttentionArgs& a, const TableUpload& table) {
  return attention_wgmma_takes(a, table) && attention_wgmma_suits(attention_shape(a, table, 0), table.chains());
}

void attention_wgmma(const AttentionArgs& a, const TableUpload& table, int sms, cudaStream_t stream) {
  HYPIC_CHECK(attention_wgmma_takes(a, table) && a.q[1] % a.k_pages[2] == 0);
  attention_wgmma_by(plan_attention_wgmma(attention_shape(a, table, sms), table.chains()), a, table, stream);
}

void attention_wgmma_by(const AttentionWgmmaPlan& plan, const AttentionArgs& a, const TableUpload& table,
                        cudaStream_t stream) {
  HYPIC_CHECK(attention_wgmma_takes(a, table));
  check_attention(a, table);
  if (a.q[0] == 0) return;
  const int64_t parts = plan.shares ? int64_t{2} * plan.blocks * kAttentionWgmmaRows : 0;
  const Scratch scratch(part_bytes(parts, a) + (plan.shares ? plan.tiles : 1) * sizeof(int32_t), stream);
  const Params p = attention_params(a, table, plan.tiles, parts, scratch);
  auto* const counts = reinterpret_cast<int32_t*>(scratch.as<char>() + part_bytes(parts, a));
  int32_t* const until = plan.shares ? counts : nullptr;
  int32_t* const taken = plan.shares ? nullptr : counts;
  if (a.q[2] == 64) launch<64>(plan, p, a, until, taken, stream);
  if (a.q[2] == 128) launch<128>(plan, p, a, until, taken, stream);
  if (a.q[2] == 256) launch<256>(plan, p, a, until, taken, stream);
}

}  // namespace hypic::cuda
