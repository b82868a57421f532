// The state along spans of chains without jumps, and the operators of a level's steps: see chunked.cuh.
//
// A group of four warps holds 64 columns of S, transposed, in accumulators: all that it multiplies by K, Q, M and Z it
// has in registers, as the A of products whose B are the tiles as they were copied. No group waits for another. K Sᵀ,
// Y and the sum into S follow one upon the other; O of a chunk is made beside them and stored during the next. Four
// more warps copy the chunks into a ring in shared memory.
#pragma once

#include "kernels/linear_attention/chunked_args.cuh"
#include "kernels/linear_attention/chunked_plan.h"
#include "kernels/linear_attention/decaying.cuh"
#include "kernels/linear_attention/hopper.cuh"

namespace hypic::cuda {

inline constexpr int kGroupColumns = 64, kGroupThreads = 128;  // of S; warps that compute
inline constexpr int kSliceBytes = kChunkRows * 16 * 2;        // of V, 16 columns: a warp's

// Shared memory: stages of the ring, each a chunk, and their barriers. K, Q, Z are parts of 64 key dims each, [64][64];
// a part of Q follows that of K, so that both are one B.
template <bool kDelta, int kDk, int kN>
struct WalkShared {
  static constexpr int kGroups = kN / kGroupColumns, kThreads = kGroups * kGroupThreads + kCopyThreads;
  static constexpr int kPart = kChunkRows * 128, kTile = kDk / 64 * kPart;
  static constexpr int kK = 0, kQ = kPart, kKQPart = 2 * kPart;  // from a part to the next
  static constexpr int kZ = kDelta ? 2 * kTile : kK, kZPart = kDelta ? kPart : kKQPart;
  static constexpr int kM = (kDelta ? 3 : 2) * kTile;
  static constexpr int kGates = kM + kPart;  // of rows; with a decay a key dim the chunk's decays
  static constexpr int kV = kGates + kChunkRows * static_cast<int>(sizeof(float4));
  static constexpr int kStage = kV + kN / 16 * kSliceBytes;
  static constexpr int kStages = kStage * 4 + 64 <= 227 * 1024 ? 4 : 3;
  static constexpr int kFull = kStages * kStage, kEmpty = kFull + 8 * kStages, kBytes = kEmpty + 8 * kStages;
  static_assert(kStage % 1024 == 0 && kBytes <= 227 * 1024);
};

// What a launch works on, as plan_walk says, for spans[first, first + chains) and op_steps[op_first, op_first + ops).
// Its works, of one head each: a chain's beside those of the op step with the same number, which most often are the
// same rows, so that what one has read the others find in the L2 cache.
struct WalkGrid {
  int32_t first, op_first, chains, ops;
  int32_t works;
  int v_parts, t_parts;

  // The works of a block one after another, forth and back along their list, which begins with the
  // longest.
  __device__ int32_t work(int32_t turn) const {
    return static_cast<int32_t>(turn * gridDim.x + (turn % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x));
  }
};

enum class Role { walk, U, T };

// Some columns of S along a span, or of an operator's U or T.
struct WalkWork {
  Role role;
  int h, column, width;  // columns [column, …) of `width`
  int32_t item_begin, item_end;
  int32_t state;  // walk
  bool fresh;
  int32_t op;  // U, T
};

template <int kDk, int kN>
__device__ inline WalkWork work_of(const ChunkedArgs& p, const WalkGrid& grid, int32_t work) {
  WalkWork w{};
  const int32_t pairs = min(grid.chains, grid.ops);
  int chain_parts = grid.v_parts, parts = 2 * grid.v_parts + grid.t_parts;
  int32_t number = 0;  // of the chain or op step
  if (work >= pairs * p.Hv * parts) {
    work -= pairs * p.Hv * parts;
    number = pairs;
    chain_parts = grid.chains > pairs ? grid.v_parts : 0;
    parts = grid.chains > pairs ? grid.v_parts : grid.v_parts + grid.t_parts;
  }
  int part = work % parts;
  w.h = work / parts % p.Hv;
  number += work / parts / p.Hv;
  if (part < chain_parts) {
    const ChainSpan& span = p.table.spans[grid.first + number];
    w.role = Role::walk;
    w.column = part * kN;
    w.width = p.dv;
    w.item_begin = span.item_begin;
    w.item_end = span.item_end;
    w.state = span.state;
    w.fresh = span.fresh;
    return w;
  }
  part -= chain_parts;
  const OpStep step = p.table.op_steps[grid.op_first + number];
  w.role = part < grid.v_parts ? Role::U : Role::T;
  w.column = (w.role == Role::U ? part : part - grid.v_parts) * kN;
  w.width = w.role == Role::U ? p.dv : kDk;
  w.item_begin = step.item;
  w.item_end = step.item + 1;
  w.op = step.op;
  return w;
}

// 16 bytes of V, the half `half` of a row of a slice; eight rows touch every bank once.
__device__ inline int slice_at(int row, int half) { return row * 32 + ((half ^ (row >> 2 & 1)) << 4); }

// ---- The warps that copy

template <bool kDelta, int kDk, int kN, bool kDiagonal>
__device__ inline void copy_chunk(const ChunkedArgs& p, const WalkWork& w, uint32_t stage, int32_t item, int32_t begin,
                                  int rows) {
  using Shared = WalkShared<kDelta, kDk, kN>;
  const int thread = threadIdx.x % kCopyThreads, kh = w.h / p.group;
  const int64_t at = static_cast<int64_t>(begin) * p.Hv + w.h;
  const auto copy = [&](int tile, int part, const __nv_bfloat16* from, int64_t stride) {
    copy_rows<8, kDk / 64>(from, stride, rows, 8, part, [=](int row, int chunk) {
      return stage + tile + row * 128 + (swizzle_128(row, chunk) << 4);
    });
  };
  copy(Shared::kK, Shared::kKQPart, p.k.row(begin, kh), p.k.stride_r);
  if (w.role == Role::walk) copy(Shared::kQ, Shared::kKQPart, p.q.row(begin, kh), p.q.stride_r);
  if (w.role != Role::T)
    copy_rows<kN / 8>(
        p.v.row(begin, w.h) + w.column, p.v.stride_r, rows, (w.width - w.column) / 8, 0,
        [=](int row, int chunk) { return stage + Shared::kV + chunk / 2 * kSliceBytes + slice_at(row, chunk % 2); });
  if constexpr (kDiagonal) {
    if (thread < kDk / 4)
      cp_async_16(stage + Shared::kGates + thread * 16, decays_of<kDk>(p, item, begin, w.h) + thread * 4);
  } else if (thread < kChunkRows) {
    cp_async_16(stage + Shared::kGates + thread * 16, p.gates + w.h * p.rows + begin + (thread < rows ? thread : 0),
                thread < rows);
  }
  if (w.role == Role::walk)
    copy_rows<8, 1, true>(
        p.M + at * kChunkRows, static_cast<int64_t>(p.Hv) * kChunkRows, rows, 8, 0,
        [=](int row, int chunk) { return stage + Shared::kM + row * 128 + (swizzle_128(row, chunk) << 4); });
  if constexpr (kDelta) copy(Shared::kZ, Shared::kZPart, p.Z + at * kDk, static_cast<int64_t>(p.Hv) * kDk);
}

// What `prepare`, which runs beside this kernel, has left of a step so far: see ChunkedArgs::ready. A warp asks for
// 32 chunks at once.
class ReadyChunks {
 public:
  __device__ ReadyChunks(const ChunkedArgs& p, int32_t item, int32_t begin, int32_t end, int kh)
      : first_(p.ready ? p.ready + decays_slot(item, begin) * (p.Hv / p.group) + kh : nullptr),
        heads_(p.Hv / p.group),
        count_((end - begin + kChunkRows - 1) / kChunkRows) {}

  __device__ void wait(int32_t chunk) {
    if (!first_) return;
    const int32_t at = chunk + static_cast<int32_t>(threadIdx.x) % 32;
    while (chunk >= ready_) {
      const uint32_t missing =
          __ballot_sync(0xffffffffu, at < count_ && !load_acquire(first_ + static_cast<int64_t>(at) * heads_));
      ready_ = chunk + (missing == 0 ? 32 : __ffs(static_cast<int>(missing)) - 1);
    }
    __syncwarp();
  }

 private:
  __device__ static int32_t load_acquire(const int32_t* p) {
    int32_t x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
  }
  const int32_t* const first_;
  const int heads_;
  const int32_t count_;
  int32_t ready_ = 0;
};

// Copies the chunks of steps, in order, work after work.
template <bool kDelta, int kDk, int kN, bool kDiagonal>
__device__ inline void fill_ring(const ChunkedArgs& p, const WalkGrid& grid, char* shared) {
  using Shared = WalkShared<kDelta, kDk, kN>;
  const uint32_t ring = shared_address(shared);
  RingPlace<Shared::kStages> place;
  for (int32_t turn = 0; grid.work(turn) < grid.works; ++turn) {
    const WalkWork w = work_of<kDk, kN>(p, grid, grid.work(turn));
    for (int32_t n = w.item_begin; n < w.item_end; ++n) {
      const int32_t first = p.table.items[n].begin, end = p.table.items[n].end;
      ReadyChunks ready(p, n, first, end, w.h / p.group);
      for (int32_t begin = first; begin < end; begin += kChunkRows) {
        ready.wait((begin - first) / kChunkRows);
        barrier_wait(ring + Shared::kEmpty + 8 * place.at, place.parity ^ 1);
        copy_chunk<kDelta, kDk, kN, kDiagonal>(p, w, ring + place.at * Shared::kStage, n, begin,
                                               min(kChunkRows, end - begin));
        barrier_arrive_copied(ring + Shared::kFull + 8 * place.at);
        place.next();
      }
    }
  }
}

// ---- The warps that compute

// What a warp that computes holds of Sᵀ: 16 columns of S, as fragments of 16 × 8, S_[n][c] is column g + c / 2 · 8, key
// dim 8 n + 2 t + c % 2.
template <class Args, int kDk>
class WalkColumns {
 protected:
  __device__ WalkColumns(const Args& p, char* shared) : p_(p), shared_(shared) {}

  // Of columns beyond the width nothing is read or written: a warp has all of its 16 or none.
  template <class Visit>
  __device__ void each(float* at, int width, int column, Visit visit) {
    if (column + column_ >= width) return;
    at += column_ + g_ + 2 * t_ * static_cast<int64_t>(width);
#pragma unroll
    for (int n = 0; n < kDk / 8; ++n, at += 8 * static_cast<int64_t>(width)) {
      asm volatile("" : "+l"(at));  // not 32 addresses in registers all along
#pragma unroll
      for (int c = 0; c < 4; ++c) visit(S_[n][c], at + c % 2 * static_cast<int64_t>(width) + c / 2 * 8);
    }
  }
  __device__ void load(float* from, int width, int column) {
    each(from, width, column, [](float& x, const float* at) { x = *at; });
  }
  __device__ void store(float* to, int width, int column) {
    each(to, width, column, [](float x, float* at) { *at = x; });
  }
  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < kDk / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) S_[n][c] = 0;
  }
  // Columns [column, …) of the identity.
  __device__ void identity(int column) {
#pragma unroll
    for (int n = 0; n < kDk / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) S_[n][c] = column + column_ + g_ + c / 2 * 8 == 8 * n + 2 * t_ + c % 2 ? 1.0f : 0.0f;
  }
  // S by the decays of a chunk, one a key dim, in shared memory.
  __device__ void decay_dims(const char* decays) {
#pragma unroll
    for (int n = 0; n < kDk / 8; ++n) {
      const float2 factor = *reinterpret_cast<const float2*>(decays + (8 * n + 2 * t_) * 4);
#pragma unroll
      for (int c = 0; c < 4; ++c) S_[n][c] = decay_by(c % 2 ? factor.y : factor.x, S_[n][c]);
    }
  }

  const Args& p_;
  char* const shared_;
  const int column_ = static_cast<int>(threadIdx.x) / 32 * 16;  // of the block's, this warp's first
  const int g_ = threadIdx.x % 32 / 4, t_ = threadIdx.x % 4;
  float S_[kDk / 8][4];
};

// A warp of a group, and its way through works.
template <bool kDelta, int kDk, int kN, bool kDiagonal>
class WalkWarps : WalkColumns<ChunkedArgs, kDk> {
 public:
  __device__ WalkWarps(const ChunkedArgs& p, char* shared) : WalkColumns<ChunkedArgs, kDk>(p, shared) {}

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
  using Shared = WalkShared<kDelta, kDk, kN>;
  using Columns = WalkColumns<ChunkedArgs, kDk>;
  using Columns::clear, Columns::column_, Columns::decay_dims, Columns::g_, Columns::identity, Columns::load,
      Columns::p_, Columns::S_, Columns::shared_, Columns::store, Columns::t_;

  __device__ void run_span(const WalkWork& w) {
    const auto slot = [&](int32_t s) {
      return p_.state + (static_cast<int64_t>(s) * p_.Hv + w.h) * kDk * p_.dv + w.column;
    };
    if (!w.fresh) load(slot(w.state), p_.dv, w.column);
    for (int32_t n = w.item_begin; n < w.item_end; ++n) {
      const ChainItem item = p_.table.items[n];
      if (!item.keep) store(slot(w.state), p_.dv, w.column);  // aside, in the slot that is written at the end anyway
      for (int32_t begin = item.begin; begin < item.end; begin += kChunkRows)
        run_chunk<Role::walk>(w, begin, min(kChunkRows, item.end - begin));
      if (!item.keep) load(slot(w.state), p_.dv, w.column);
      if (item.save != kNone) store(slot(item.save), p_.dv, w.column);
    }
    store_O(w);
    store(slot(w.state), p_.dv, w.column);
  }

  // U or T of a step.
  template <Role kRole>
  __device__ void run_operator(const WalkWork& w) {
    const ChainItem item = p_.table.items[w.item_begin];
    const bool begins = item.span == 0;
    const int64_t slot = static_cast<int64_t>(w.op) * p_.Hv + w.h;
    float* const out = (kRole == Role::U ? p_.U : p_.T) + slot * kDk * w.width + w.column;
    float log_scale = 0;
    if (!begins) {
      load(out, w.width, w.column);
    } else if (kRole == Role::T) {
      identity(w.column);
    }
    for (int32_t begin = item.begin; begin < item.end; begin += kChunkRows)
      log_scale += run_chunk<kRole>(w, begin, min(kChunkRows, item.end - begin));
    store(out, w.width, w.column);
    if constexpr (kDiagonal && !kDelta)
      if (w.column == 0) scale_T(item, w, begins);
    if (kRole == Role::U && p_.log_scale && w.column == 0 && threadIdx.x == 0)
      p_.log_scale[slot] = (begins ? 0.0f : p_.log_scale[slot]) + log_scale;
  }

  // T of a decay a key dim without the delta rule, which is a diagonal: a thread a key dim.
  __device__ void scale_T(const ChainItem& item, const WalkWork& w, bool begins) {
    const int c = static_cast<int>(threadIdx.x);
    if (c >= kDk) return;
    float* const to = p_.T + (static_cast<int64_t>(w.op) * p_.Hv + w.h) * kDk + c;
    float x = begins ? 1.0f : *to;
    for (int32_t begin = item.begin; begin < item.end; begin += kChunkRows)
      x = decay_by(decays_of<kDk>(p_, w.item_begin, begin, w.h)[c], x);
    *to = x;
  }

  // S through a chunk; its log decay, where that is one of all key dims. Of a walk O as well, which store_O has to
  // store.
  template <Role kRole>
  __device__ float run_chunk(const WalkWork& w, int32_t begin, int rows) {
    constexpr bool kOutput = kRole == Role::walk, kHasV = kRole != Role::T, kMultiplies = kDelta || kOutput;
    constexpr int kTiles = kChunkRows / 8, kO = kDelta ? kTiles : 0;  // K S, then Q S
    uint32_t s[kDk / 16][4];
    if constexpr (kMultiplies)
#pragma unroll
      for (int m = 0; m < kDk / 16; ++m) as_A(s[m], S_[2 * m], S_[2 * m + 1]);
    barrier_wait(base() + Shared::kFull + 8 * place_.at, place_.parity);
    shared_fence();  // before products what the copying threads wrote
    const uint32_t stage = place_.at * Shared::kStage, at = base() + stage;

    float x[kMultiplies ? kO + (kOutput ? kTiles : 0) : kTiles]
           [4];  // (K S)ᵀ, (Q S)ᵀ: columns by rows of the chunk; then Yᵀ, Oᵀ
    if constexpr (kMultiplies) {
      const uint64_t tile = wgmma_tile(at + (kDelta ? Shared::kK : Shared::kQ));
      wgmma_operand(s);
      wgmma_begin();
#pragma unroll
      for (int m = 0; m < kDk / 16; ++m)
        wgmma<sizeof(x) / 2>(x, s[m], matrix_at(tile, m / 4 * Shared::kKQPart + m % 4 * 32), m > 0);
      wgmma_commit();
    }
    if constexpr (kOutput) store_O(w);
    [[maybe_unused]] const float4* const gates = reinterpret_cast<const float4*>(shared_ + stage + Shared::kGates);
    float log_decay = 0;
    if constexpr (!kDiagonal) log_decay = gates[rows - 1].w;
    if constexpr (kDiagonal && kHasV) {
      decay_dims(shared_ + stage + Shared::kGates);
    } else if constexpr (kHasV) {
      const Decaying decay(log_decay);
      const float whole = decay.complement ? 1.0f : 0.0f;  // in place, without a branch
#pragma unroll
      for (int n = 0; n < kDk / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) S_[n][c] = fmaf(decay.factor, S_[n][c], whole * S_[n][c]);
    }
    if constexpr (kMultiplies) {
      wgmma_wait<0>();
      wgmma_operand(x);
    }
    if constexpr (kDiagonal && !kHasV)
      decay_dims(shared_ + stage + Shared::kGates);  // before the wait ptxas would let no product overlap

    uint32_t y[kChunkRows / 16][4], y_end[kChunkRows / 16][4];  // Yᵀ, and decayed to the chunk's end
#pragma unroll
    for (int b = 0; b < kChunkRows / 16; ++b) {
      uint32_t v[4] = {};
      if constexpr (kHasV) ldmatrix_x4_trans(v, slice_of_lane(at, b));
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // i / 2: of the two times 8 rows; i % 2: of the columns
        const int n = 2 * b + i / 2, row = 8 * n + 2 * t_, c = i % 2 * 2;
        float4 first{1, 1, 1, 0}, second{1, 1, 1, 0};
        if constexpr (!kDiagonal) {
          first = gates[row];
          second = gates[row + 1];
          if constexpr (!kHasV) first.y = first.z = second.y = second.z = 1;
        }
        float2 of = unpack_bf16(v[i]);
        if constexpr (kDelta) of = {of.x - first.y * x[n][c], of.y - second.y * x[n][c + 1]};
        of = {first.x * of.x, second.x * of.y};
        if constexpr (kOutput) {
          y[b][i] = pack_bf16(of.x, of.y);
          x[kO + n][c] *= p_.scale * first.y;
          x[kO + n][c + 1] *= p_.scale * second.y;
        }
        y_end[b][i] = pack_bf16(of.x * first.z, of.y * second.z);
      }
    }
    const uint64_t Z = matrix_in_shared(at + Shared::kZ, Shared::kZPart, 1024), M = wgmma_tile(at + Shared::kM);
    wgmma_operand(y_end);
    wgmma_operand(S_);
    wgmma_begin();
#pragma unroll
    for (int b = 0; b < kChunkRows / 16; ++b) wgmma_down<kDk>(S_, y_end[b], matrix_at(Z, b * 2048));
    wgmma_commit();
    if constexpr (kOutput) {
      auto& o = reinterpret_cast<float(&)[kTiles][4]>(x[kO]);
      wgmma_operand(y);
      wgmma_operand(o);
      wgmma_begin();
#pragma unroll
      for (int b = 0; b < kChunkRows / 16; ++b) wgmma<kChunkRows>(o, y[b], matrix_at(M, b * 32), true);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_operand(o);
      put_O(w, at, o);
      O_begin_ = begin;
      O_rows_ = rows;
    } else {
      wgmma_wait<0>();
      give_back(stage);
    }
    wgmma_operand(S_);
    place_.next();
    return log_decay;
  }

  // O to V's place, whose slice no other warp reads.
  __device__ void put_O(const WalkWork& w, uint32_t stage, const float (&o)[kChunkRows / 8][4]) {
    const float skip = p_.skip ? p_.skip[w.h] : 0.0f;
#pragma unroll
    for (int b = 0; b < kChunkRows / 16; ++b) {
      const uint32_t at = slice_of_lane(stage, b);
      uint32_t rounded[4];
      as_A(rounded, o[2 * b], o[2 * b + 1]);
      if (p_.skip) {
        uint32_t v[4];
        ldmatrix_x4_trans(v, at);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 of = unpack_bf16(v[i]);
          const float(&x)[4] = o[2 * b + i / 2];
          rounded[i] = pack_bf16(x[i % 2 * 2] + skip * of.x, x[i % 2 * 2 + 1] + skip * of.y);
        }
      }
      __syncwarp();
      stmatrix_x4_trans(at, rounded);
    }
  }
  // O of the last chunk from there, in whole 16-byte pieces.
  __device__ void store_O(const WalkWork& w) {
    if (O_rows_ == 0) return;
    const uint32_t stage = (place_.at == 0 ? Shared::kStages - 1 : place_.at - 1) * Shared::kStage;
    const int lane = threadIdx.x % 32;
    __syncwarp();
    if (w.column + column_ < w.width) {
      const char* const slice = shared_ + stage + Shared::kV + column_ / 16 * kSliceBytes;
#pragma unroll
      for (int i = 0; i < kChunkRows / 16; ++i) {
        const int row = 16 * i + lane / 2;
        if (row < O_rows_)
          *reinterpret_cast<uint4*>(p_.o.row(O_begin_ + row, w.h) + w.column + column_ + lane % 2 * 8) =
              *reinterpret_cast<const uint4*>(slice + slice_at(row, lane % 2));
      }
    }
    give_back(stage);
    O_rows_ = 0;
  }

  // This warp has read what it reads of a stage.
  __device__ void give_back(uint32_t stage) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(base() + Shared::kEmpty + stage / (Shared::kStage / 8));
  }

  // Of this warp's slice of V rows 16 b on, two times 8 by two halves: a row's piece for each lane of ldmatrix.
  __device__ uint32_t slice_of_lane(uint32_t stage, int b) const {
    const int lane = threadIdx.x % 32;
    return stage + Shared::kV + column_ / 16 * kSliceBytes + slice_at(16 * b + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }
  __device__ uint32_t base() const { return shared_address(shared_); }

  int32_t O_begin_ = 0;  // of the last chunk's O, which is in shared memory
  int O_rows_ = 0;       // of it; none where it is stored
  RingPlace<Shared::kStages> place_;
};

// WalkShared::kThreads threads, the last kCopyThreads of which copy; no more blocks than works.
template <bool kDelta, int kDk, int kN, bool kDiagonal = false>
__global__ void __launch_bounds__(WalkShared<kDelta, kDk, kN>::kThreads, 1) walk_kernel(ChunkedArgs p, WalkGrid grid) {
  using Shared = WalkShared<kDelta, kDk, kN>;
  extern __shared__ __align__(1024) char walk_shared[];
  if (threadIdx.x == 0) {
    const uint32_t base = shared_address(walk_shared);
#pragma unroll
    for (int i = 0; i < Shared::kStages; ++i) {
      barrier_init(base + Shared::kFull + 8 * i, kCopyThreads);
      barrier_init(base + Shared::kEmpty + 8 * i, Shared::kGroups * 4);
    }
    barrier_init_fence();
  }
  block_barrier();
  if (threadIdx.x >= Shared::kGroups * kGroupThreads) {
    if constexpr (Shared::kGroups == 2) give_registers<40>();
    fill_ring<kDelta, kDk, kN, kDiagonal>(p, grid, walk_shared);
    if (p.ready) cudaGridDependencySynchronize();  // what follows `walk` follows `prepare`
    return;
  }
  if constexpr (Shared::kGroups == 2) take_registers<232>();
  WalkWarps<kDelta, kDk, kN, kDiagonal> warps(p, walk_shared);
  for (int32_t turn = 0; grid.work(turn) < grid.works; ++turn) warps.run(work_of<kDk, kN>(p, grid, grid.work(turn)));
}

}  // namespace hypic::cuda
