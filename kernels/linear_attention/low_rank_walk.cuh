// The state along spans of chains, and the operators of a level's steps, of low_rank.cuh: as in chunked_walk.cuh, a
// group of four warps holds 64 columns of S, transposed, in accumulators. One more warp fills the ring, whose stages
// are tiles as `prepare` has left them and rows of V, or the T of a jump.
//
// A jump is S ← T S + U by each warp on its own: S is split into a sum of two bf16, T as it is read, and three products
// of those add to what was U. That is as good as float32.
#pragma once

#include "kernels/linear_attention/chunked_walk.cuh"
#include "kernels/linear_attention/low_rank_args.cuh"

namespace hypic::cuda {

// Shared memory: stages of the ring, each a chunk, and their barriers.
template <int kDk, int kN>
struct LowRankRing {
  using Tile = LowRankTile<kDk>;
  // Two groups have their registers from a third, of which one warp works.
  static constexpr int kGroups = kN / kGroupColumns,
                       kThreads = kGroups * kGroupThreads + (kGroups == 1 ? 32 : kGroupThreads);
  static constexpr int kV = (Tile::kBytes + 1023) / 1024 * 1024, kPitch = kN * 2 + 16;  // rows apart by four banks
  static constexpr int kStage = (kV + kChunkRows * kPitch + 1023) / 1024 * 1024;
  static constexpr int kTPitch =
      (kDk + 8) * 4;  // of T's rows: four of them by four lanes' 8 bytes touch every bank once
  static constexpr int kFit = 225 * 1024 / kStage, kStages = kFit < 4 ? kFit : 4;
  static constexpr int kFull = kStages * kStage, kEmpty = kFull + 8 * kStages, kBytes = kEmpty + 8 * kStages;
  static_assert(kStages >= 2 && kBytes <= 227 * 1024 && kDk * kTPitch <= kStage);
};

__device__ inline bool has_T(const ChainItem& item) {
  return item.kind == ChainItem::Kind::jump && item.compose == Compose::transfer;
}

// The warp that copies: the chunks of steps, in order, work after work.
template <int kDk, int kN>
__device__ inline void fill_low_rank_ring(const LowRankArgs& p, const WalkGrid& grid, uint32_t ring) {
  using Ring = LowRankRing<kDk, kN>;
  using Tile = LowRankTile<kDk>;
  const int lane = threadIdx.x % 32;
  RingPlace<Ring::kStages> place;
  for (int32_t turn = 0; grid.work(turn) < grid.works; ++turn) {
    const WalkWork w = work_of<kDk, kN>(p, grid, grid.work(turn));
    const uint32_t v_bytes = w.role == Role::T ? 0 : static_cast<uint32_t>(min(kN, w.width - w.column) * 2);
    for (int32_t n = w.item_begin; n < w.item_end; ++n) {
      const ChainItem item = p.table.items[n];
      if (has_T(item)) {
        const int64_t slot = static_cast<int64_t>(item.op) * p.Hv + w.h;
        const float* const T = p.T + slot * kDk * kDk;
        const float* const U = p.U + slot * kDk * p.dv + w.column;
        for (int i = lane; i < kDk; i += 32)
          for (int c = 0; c < min(kN, w.width - w.column); c += 32) prefetch_l2(U + i * static_cast<int64_t>(p.dv) + c);
        const uint32_t stage = ring + place.at * Ring::kStage, full = ring + Ring::kFull + 8 * place.at;
        barrier_wait(ring + Ring::kEmpty + 8 * place.at, place.parity ^ 1);
        if (lane == 0) barrier_arrive_expect(full, kDk * kDk * 4);
        __syncwarp();
        for (int i = lane; i < kDk; i += 32) bulk_copy(stage + i * Ring::kTPitch, T + i * kDk, kDk * 4, full, 1);
        place.next();
        continue;
      }
      const int32_t begin = item.begin, end = item.end;
      if (item.kind == ChainItem::Kind::jump || begin == end) continue;
      const char* tile = tile_of<kDk>(p, first_chunk(p, begin), w.h);
      for (int32_t row = begin; row < end; row += kChunkRows, tile += int64_t{p.Hv} * Tile::kBytes) {
        const uint32_t stage = ring + place.at * Ring::kStage, full = ring + Ring::kFull + 8 * place.at;
        const int rows = min(kChunkRows, end - row);
        barrier_wait(ring + Ring::kEmpty + 8 * place.at, place.parity ^ 1);
        if (lane == 0) {
          constexpr uint32_t kTile = Tile::kParts * Tile::kPart;
          const uint32_t of_tile = w.role == Role::walk ? Tile::kBytes : (w.role == Role::U ? 3 : 2) * kTile + kDk * 4;
          barrier_arrive_expect(full, static_cast<int>(of_tile + rows * v_bytes));
          const auto copy = [&](uint32_t at, uint32_t bytes) { bulk_copy(stage + at, tile + at, bytes, full, 1); };
          if (w.role == Role::walk) {
            copy(0, Tile::kBytes);
          } else {
#pragma unroll
            for (int part = 0; part < Tile::kParts; ++part) copy(Tile::kB + part * Tile::kBQPart, Tile::kPart);
            copy(Tile::kZa, w.role == Role::U ? 2 * kTile : kTile);
            copy(Tile::kDecays, kDk * 4);
          }
        }
        __syncwarp();
        if (v_bytes > 0)
          for (int i = lane; i < rows; i += 32)
            bulk_copy(stage + Ring::kV + i * Ring::kPitch, p.v.row(row + i, w.h) + w.column, v_bytes, full, 1);
        place.next();
      }
    }
  }
}

// A warp of a group, and its way through works.
template <int kDk, int kN>
class LowRankWarps : WalkColumns<LowRankArgs, kDk> {
 public:
  __device__ LowRankWarps(const LowRankArgs& p, char* shared) : WalkColumns<LowRankArgs, kDk>(p, shared) {}

  __device__ void run(const WalkWork& w) {
    clear();
    if (w.role == Role::walk)
      run_span(w);
    else if (w.role == Role::U)
      run_operator<Role::U>(w);
    else
      run_operator<Role::T>(w);
  }

 private:
  using Ring = LowRankRing<kDk, kN>;
  using Tile = LowRankTile<kDk>;
  using Columns = WalkColumns<LowRankArgs, kDk>;
  using Columns::clear, Columns::column_, Columns::decay_dims, Columns::each, Columns::g_, Columns::identity,
      Columns::load, Columns::p_, Columns::S_, Columns::shared_, Columns::store, Columns::t_;

  __device__ void run_span(const WalkWork& w) {
    const auto slot = [&](int32_t s) {
      return p_.state + (static_cast<int64_t>(s) * p_.Hv + w.h) * kDk * p_.dv + w.column;
    };
    if (!w.fresh) load(slot(w.state), p_.dv, w.column);
    for (int32_t n = w.item_begin; n < w.item_end; ++n) {
      const ChainItem item = p_.table.items[n];
      if (item.kind == ChainItem::Kind::jump) {
        jump(w, item);
        if (item.save != kNone) store(slot(item.save), p_.dv, w.column);
        continue;
      }
      if (!item.keep) store(slot(w.state), p_.dv, w.column);  // aside, in the slot that is written at the end anyway
      for (int32_t begin = item.begin; begin < item.end; begin += kChunkRows)
        run_chunk<Role::walk>(w, begin, min(kChunkRows, item.end - begin));
      if (!item.keep) load(slot(w.state), p_.dv, w.column);
      if (item.save != kNone) store(slot(item.save), p_.dv, w.column);
    }
    store_O(w);
    store(slot(w.state), p_.dv, w.column);
  }

  __device__ void jump(const WalkWork& w, const ChainItem& item) {
    store_O(w);  // its stage is the last one but for T
    uint32_t lead[kDk / 16][4], rest[kDk / 16][4];
    if (has_T(item))
#pragma unroll
      for (int m = 0; m < kDk / 16; ++m) split_A(lead[m], rest[m], S_[2 * m], S_[2 * m + 1]);
    if (item.compose != Compose::add) clear();
    if (item.compose != Compose::zero)
      each(p_.U + (static_cast<int64_t>(item.op) * p_.Hv + w.h) * kDk * p_.dv + w.column, p_.dv, w.column,
           [](float& x, const float* at) { x += *at; });
    if (!has_T(item)) return;
    const uint32_t stage = place_.at * Ring::kStage;
    barrier_wait(shared_address(shared_) + Ring::kFull + 8 * place_.at, place_.parity);
    const char* const T = shared_ + stage + g_ * Ring::kTPitch + 8 * t_;
#pragma unroll
    for (int n = 0; n < kDk / 8; ++n)
#pragma unroll
      for (int m = 0; m < kDk / 16; ++m) {
        const char* const at = T + 8 * n * Ring::kTPitch + 64 * m;
        const float2 low = *reinterpret_cast<const float2*>(at), high = *reinterpret_cast<const float2*>(at + 32);
        uint32_t t_lead[2], t_rest[2];
        split_bf16(low.x, low.y, t_lead[0], t_rest[0]);
        split_bf16(high.x, high.y, t_lead[1], t_rest[1]);
        mma_split_bf16(S_[n], lead[m], rest[m], t_lead[0], t_lead[1], t_rest[0], t_rest[1]);
      }
    give_back(stage);
    place_.next();
  }

  // U or T of a step.
  template <Role kRole>
  __device__ void run_operator(const WalkWork& w) {
    const ChainItem item = p_.table.items[w.item_begin];
    const int64_t slot = static_cast<int64_t>(w.op) * p_.Hv + w.h;
    float* const out = (kRole == Role::U ? p_.U : p_.T) + slot * kDk * w.width + w.column;
    if (item.span > 0) {
      load(out, w.width, w.column);
    } else if (kRole == Role::T) {
      identity(w.column);
    }
    for (int32_t begin = item.begin; begin < item.end; begin += kChunkRows)
      run_chunk<kRole>(w, begin, min(kChunkRows, item.end - begin));
    store(out, w.width, w.column);
  }

  // S through a chunk. Of a walk O as well, which store_O has to store.
  template <Role kRole>
  __device__ void run_chunk(const WalkWork& w, int32_t begin, int rows) {
    constexpr bool kOutput = kRole == Role::walk, kHasV = kRole != Role::T;
    constexpr int kTiles = kChunkRows / 8;
    uint32_t s[kDk / 16][4];
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m) as_A(s[m], S_[2 * m], S_[2 * m + 1]);
    const uint32_t base = shared_address(shared_), stage = place_.at * Ring::kStage, at = base + stage;
    barrier_wait(base + Ring::kFull + 8 * place_.at, place_.parity);

    float x[kOutput ? 2 * kTiles : kTiles][4];  // (B S)ᵀ, (Q̂ S)ᵀ: columns by rows of the chunk; of the latter then Oᵀ
    const uint64_t BQ = wgmma_tile(at + Tile::kB);
    wgmma_operand(s);
    wgmma_begin();
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m)
      wgmma<sizeof(x) / 2>(x, s[m], matrix_at(BQ, m / 4 * Tile::kBQPart + m % 4 * 32), m > 0);
    wgmma_commit();
    if constexpr (kOutput) store_O(w);
    uint32_t v[kChunkRows / 16][4];
    if constexpr (kHasV) load_V(v, at, rows);
    if constexpr (kHasV) decay_dims(shared_ + stage + Tile::kDecays);
    wgmma_wait<0>();
    wgmma_operand(x);
    if constexpr (!kHasV)
      decay_dims(shared_ + stage + Tile::kDecays);  // before the wait ptxas would let no product overlap

    uint32_t y[kChunkRows / 16][4];  // (B S)ᵀ
#pragma unroll
    for (int b = 0; b < kChunkRows / 16; ++b) as_A(y[b], x[2 * b], x[2 * b + 1]);
    if constexpr (kOutput)
#pragma unroll
      for (int n = kTiles; n < 2 * kTiles; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[n][c] *= p_.scale;
    const uint64_t Za = matrix_in_shared(at + Tile::kZa, Tile::kPart, 1024), M = wgmma_tile(at + Tile::kM);
    const uint64_t Zk = matrix_in_shared(at + Tile::kZk, Tile::kPart, 1024);
    wgmma_operand(y);
    if constexpr (kHasV) wgmma_operand(v);
    wgmma_operand(S_);
    wgmma_begin();
    if constexpr (kHasV)
#pragma unroll
      for (int b = 0; b < kChunkRows / 16; ++b) wgmma_down<kDk>(S_, v[b], matrix_at(Zk, b * 2048));
#pragma unroll
    for (int b = 0; b < kChunkRows / 16; ++b) wgmma_down<kDk>(S_, y[b], matrix_at(Za, b * 2048));
    wgmma_commit();
    if constexpr (kOutput) {
      auto& o = reinterpret_cast<float(&)[kTiles][4]>(x[kTiles]);
      wgmma_operand(o);
      wgmma_begin();
#pragma unroll
      for (int b = 0; b < kChunkRows / 16; ++b) wgmma<kChunkRows>(o, v[b], matrix_at(M, b * 32), true);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_operand(o);
      put_O(at, o);
      O_begin_ = begin;
      O_rows_ = rows;
    } else {
      wgmma_wait<0>();
      give_back(stage);
    }
    wgmma_operand(S_);
    place_.next();
  }

  // V of this warp's columns; of rows that the chunk does not have zeros.
  __device__ void load_V(uint32_t (&v)[kChunkRows / 16][4], uint32_t stage, int rows) const {
#pragma unroll
    for (int b = 0; b < kChunkRows / 16; ++b) {
      ldmatrix_x4_trans(v[b], V_of_lane(stage, b));
      if (16 * (b + 1) > rows)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = 16 * b + i / 2 * 8 + 2 * t_;
          v[b][i] &= (row < rows ? 0xffffu : 0) | (row + 1 < rows ? 0xffff0000u : 0);
        }
    }
  }

  // O to V's place, whose columns no other warp reads.
  __device__ void put_O(uint32_t stage, const float (&o)[kChunkRows / 8][4]) {
#pragma unroll
    for (int b = 0; b < kChunkRows / 16; ++b) {
      uint32_t rounded[4];
      as_A(rounded, o[2 * b], o[2 * b + 1]);
      stmatrix_x4_trans(V_of_lane(stage, b), rounded);
    }
  }
  // O of the last chunk from there, in whole 16-byte pieces.
  __device__ void store_O(const WalkWork& w) {
    if (O_rows_ == 0) return;
    const uint32_t stage = (place_.at == 0 ? Ring::kStages - 1 : place_.at - 1) * Ring::kStage;
    const int lane = threadIdx.x % 32;
    __syncwarp();
    if (w.column + column_ < w.width) {
      const char* const from = shared_ + stage + Ring::kV + column_ * 2 + lane % 2 * 16;
#pragma unroll
      for (int i = 0; i < kChunkRows / 16; ++i) {
        const int row = 16 * i + lane / 2;
        if (row < O_rows_)
          *reinterpret_cast<uint4*>(p_.o.row(O_begin_ + row, w.h) + w.column + column_ + lane % 2 * 8) =
              *reinterpret_cast<const uint4*>(from + row * Ring::kPitch);
      }
    }
    give_back(stage);
    O_rows_ = 0;
  }

  // This warp has read what it reads of a stage, and what it wrote there stands before what is copied there next.
  __device__ void give_back(uint32_t stage) {
    shared_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(shared_) + Ring::kEmpty + stage / (Ring::kStage / 8));
  }

  // Of this warp's columns rows 16 b on, two times 8 by two halves: a row's piece for each lane of ldmatrix.
  __device__ uint32_t V_of_lane(uint32_t stage, int b) const {
    const int lane = threadIdx.x % 32;
    return stage + Ring::kV + (16 * b + lane / 16 * 8 + lane % 8) * Ring::kPitch + column_ * 2 + lane / 8 % 2 * 16;
  }

  int32_t O_begin_ = 0;  // of the last chunk's O, which is in shared memory
  int O_rows_ = 0;       // of it; none where it is stored
  RingPlace<Ring::kStages> place_;
};

// LowRankRing::kThreads threads, of which the last warp copies; no more blocks than works.
template <int kDk, int kN>
__global__ void __launch_bounds__(LowRankRing<kDk, kN>::kThreads, 1)
    walk_low_rank_kernel(LowRankArgs p, WalkGrid grid) {
  using Ring = LowRankRing<kDk, kN>;
  extern __shared__ __align__(1024) char low_rank_ring[];
  const uint32_t base = shared_address(low_rank_ring);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < Ring::kStages; ++i) {
      barrier_init(base + Ring::kFull + 8 * i, 1);
      barrier_init(base + Ring::kEmpty + 8 * i, Ring::kGroups * 4);
    }
    barrier_init_fence();
  }
  block_barrier();
  if (threadIdx.x >= Ring::kGroups * kGroupThreads) {
    if constexpr (Ring::kGroups == 2) give_registers<40>();
    if (threadIdx.x < Ring::kGroups * kGroupThreads + 32) fill_low_rank_ring<kDk, kN>(p, grid, base);
    return;
  }
  if constexpr (Ring::kGroups == 2) take_registers<232>();
  LowRankWarps<kDk, kN> warps(p, low_rank_ring);
  for (int32_t turn = 0; grid.work(turn) < grid.works; ++turn) warps.run(work_of<kDk, kN>(p, grid, grid.work(turn)));
}

}  // namespace hypic::cuda
