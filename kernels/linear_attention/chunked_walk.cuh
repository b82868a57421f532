// The state along the items of every chain, and the operators of a level's steps: see chunked.cuh.
//
// Everything is transposed: a warp holds Sᵀ of 16 columns, [16, dk], in accumulators of m16n8k16. Rounded to bf16
// these are, as they lie, A of the next product, so that Sᵀ, Yᵀ and Oᵀ never leave a warp's registers, and the
// warps of a block share no more than the operands. Four more warps copy those, chunk by chunk, into a ring in
// shared memory; one barrier a chunk keeps the two kinds apart.
#pragma once

#include "kernels/linear_attention/chunked_args.cuh"
#include "kernels/linear_attention/chunked_plan.h"
#include "kernels/linear_attention/decaying.cuh"

namespace hypic::cuda {

inline constexpr int kWalkStages = 3;
inline constexpr int kCopyThreads = 128;
__host__ __device__ constexpr int walk_threads(int columns) {  // whole groups of four warps either side
  return columns < 64 ? 128 + kCopyThreads : columns / 16 * 32 + kCopyThreads;
}
inline constexpr int kSliceBytes = kChunkRows * 16 * 2;  // of V, a warp's columns
inline constexpr int kPart = kChunkRows;                 // rows of T and U a stage

// A stage of the ring: a chunk, or kPart rows of an operator's T and of its U.
template <bool kDelta, int kDk>
struct WalkStage {
  static constexpr int kTile = kChunkRows * kDk * 2;
  static constexpr int kK = 0, kQ = kTile, kZ = kDelta ? 2 * kTile : kK;
  static constexpr int kM = (kDelta ? 3 : 2) * kTile;
  static constexpr int kGates = kM + kChunkRows * kChunkRows * 2;
  static constexpr int kV = kGates + kChunkRows * static_cast<int>(sizeof(float4));
  static constexpr int kT = 0, kU = kPart * kDk * 4;
  __host__ __device__ static constexpr int bytes(int columns) { return kV + columns / 16 * kSliceBytes; }
  static_assert(!kDelta || kU + kPart * kChunkedColumns * 4 <= bytes(kChunkedColumns));
  static_assert(!kDelta || kU + kPart * 32 * 4 <= bytes(32));
};

// What a launch works on, as plan_walk says, for order[first, …) and op_steps[op_first, …).
struct WalkGrid {
  int32_t first, op_first;
  int32_t chain_works, works;
  int columns, v_parts, t_parts;

  // The works of a block one after another, forth and back along their list, which begins with the longest.
  __device__ int32_t work(int32_t turn) const {
    return static_cast<int32_t>(turn * gridDim.x + (turn % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x));
  }
};

enum class Role { walk, U, T };

// Some columns of a chain's S, or of an operator's U or T.
struct WalkWork {
  Role role;
  int h, column, width;  // columns [column, …) of `width`
  int32_t item_begin, item_end;
  int32_t chain;  // walk
  int32_t op;     // U, T
};

template <int kDk>
__device__ inline WalkWork work_of(const ChunkedArgs& p, const WalkGrid& grid, int32_t work) {
  WalkWork w{};
  if (work < grid.chain_works) {
    const int32_t head = work / grid.v_parts;
    w.role = Role::walk;
    w.h = head % p.Hv;
    w.column = work % grid.v_parts * grid.columns;
    w.width = p.dv;
    w.chain = p.table.order[grid.first + head / p.Hv];
    w.item_begin = p.table.chains[w.chain].item_begin;
    w.item_end = p.table.chains[w.chain].item_end;
    return w;
  }
  const int32_t parts = grid.v_parts + grid.t_parts, head = (work - grid.chain_works) / parts;
  const int32_t part = (work - grid.chain_works) % parts;
  const OpStep step = p.table.op_steps[grid.op_first + head / p.Hv];
  w.role = part < grid.v_parts ? Role::U : Role::T;
  w.h = head % p.Hv;
  w.column = (w.role == Role::U ? part : part - grid.v_parts) * grid.columns;
  w.width = w.role == Role::U ? p.dv : kDk;
  w.item_begin = step.item;
  w.item_end = step.item + 1;
  w.op = step.op;
  return w;
}

__device__ inline int padded_rows(int rows) { return rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

// 16 bytes of V, the half `half` of a row of a warp's slice; eight rows touch every bank once.
__device__ inline int slice_at(int row, int half) { return row * 32 + ((half ^ (row >> 2 & 1)) << 4); }

// ---- The warps that copy

template <bool kDelta, int kDk>
__device__ inline void copy_chunk(const ChunkedArgs& p, const WalkWork& w, int columns, uint32_t stage,
                                  int32_t begin, int rows) {
  using Stage = WalkStage<kDelta, kDk>;
  constexpr int kWarps = kCopyThreads / 32;
  const int thread = threadIdx.x % kCopyThreads, warp = thread / 32, padded = padded_rows(rows),
            kh = w.h / p.group;
  const int64_t at = static_cast<int64_t>(begin) * p.Hv + w.h;
  copy_tile<kDk>(stage + Stage::kK, p.k.row(begin, kh), p.k.stride_r, rows, padded, warp, kWarps);
  if (thread < padded)
    cp_async_16(stage + Stage::kGates + thread * 16, p.gates + w.h * p.rows + begin + (thread < rows ? thread : 0),
                thread < rows);
  if (w.role != Role::T) {
    const int chunks = columns / 8, valid = (w.width - w.column) / 8;
    for (int e = thread; e < padded * chunks; e += kCopyThreads) {
      const int row = e / chunks, chunk = e % chunks;
      if (chunk < valid)
        cp_async_16(stage + Stage::kV + chunk / 2 * kSliceBytes + slice_at(row, chunk % 2),
                    p.v.row(begin + (row < rows ? row : 0), w.h) + w.column + chunk * 8, row < rows);
    }
  }
  if (w.role == Role::walk) {
    copy_tile<kDk>(stage + Stage::kQ, p.q.row(begin, kh), p.q.stride_r, rows, padded, warp, kWarps);
    copy_tile<kChunkRows, true>(stage + Stage::kM, p.M + at * kChunkRows, static_cast<int64_t>(p.Hv) * kChunkRows,
                                rows, padded, warp, kWarps);
  }
  if constexpr (kDelta)
    copy_tile<kDk>(stage + Stage::kZ, p.Z + at * kDk, static_cast<int64_t>(p.Hv) * kDk, rows, padded, warp,
                   kWarps);
}

// 16 bytes of T: eight lanes' pairs of floats in four rows touch every bank once.
template <int kDk>
__device__ inline int part_at(int row, int chunk) {
  return row * kDk * 4 + chunk / 8 * 128 + ((chunk % 8 ^ 2 * (row % 4)) << 4);
}
// 16 bytes of U in the slice of a warp's columns.
__device__ inline int u_at(int row, int chunk) { return row * 64 + ((chunk ^ (row & 2)) << 4); }

template <bool kDelta, int kDk>
__device__ inline void copy_part(const ChunkedArgs& p, const WalkWork& w, int columns, uint32_t stage, int32_t op,
                                 int part) {
  using Stage = WalkStage<kDelta, kDk>;
  constexpr int kChunks = kDk / 4;
  const int64_t row = (static_cast<int64_t>(op) * p.Hv + w.h) * kDk + part;  // of all operators' and heads'
  const float *const T = p.T + row * kDk, *const U = p.U + row * p.dv + w.column;
#pragma unroll 4
  for (int e = threadIdx.x % kCopyThreads; e < kPart * kChunks; e += kCopyThreads)
    cp_async_16(stage + Stage::kT + part_at<kDk>(e / kChunks, e % kChunks), T + e * 4);
  const int chunks = columns / 4, valid = (w.width - w.column) / 4;
  for (int e = threadIdx.x % kCopyThreads; e < kPart * chunks; e += kCopyThreads) {
    const int i = e / chunks, chunk = e % chunks;
    if (chunk < valid)
      cp_async_16(stage + Stage::kU + chunk / 4 * kPart * 64 + u_at(i, chunk % 4),
                  U + i * static_cast<int64_t>(p.dv) + chunk * 4);
  }
}

// Copies what goes through the ring, in order, work after work: the chunks of steps, and of jumps that multiply by
// a dense T its parts.
template <bool kDelta, int kDk>
__device__ inline void fill_ring(const ChunkedArgs& p, const WalkGrid& grid, char* shared) {
  const int bytes = WalkStage<kDelta, kDk>::bytes(grid.columns);
  const uint32_t ring = shared_address(shared);
  int32_t turn = 0;
  WalkWork w = work_of<kDk>(p, grid, grid.work(turn));
  int32_t n = w.item_begin, at = 0;  // the next: rows `at` on of item n
  int ahead = 0, stage = 0;          // stages copied and not yet used; the next one
  bool done = false;
  const auto copy = [&] {
    while (!done) {
      if (n == w.item_end) {
        const int32_t work = grid.work(++turn);
        done = work >= grid.works;
        if (!done) w = work_of<kDk>(p, grid, work);
        n = w.item_begin;
        continue;
      }
      const ChainItem& item = p.table.items[n];
      const bool is_step = item.kind == ChainItem::Kind::step;
      const int32_t end = is_step ? item.end - item.begin : kDelta && item.compose == Compose::transfer ? kDk : 0;
      if (at >= end) {
        ++n;
        at = 0;
        continue;
      }
      if (is_step)
        copy_chunk<kDelta, kDk>(p, w, grid.columns, ring + stage * bytes, item.begin + at,
                                min(kChunkRows, end - at));
      else
        copy_part<kDelta, kDk>(p, w, grid.columns, ring + stage * bytes, item.op, at);
      at += kChunkRows;
      stage = stage + 1 == kWalkStages ? 0 : stage + 1;
      ++ahead;
      break;
    }
    cp_async_commit();
  };
  for (int i = 0; i + 1 < kWalkStages; ++i) copy();
  for (; ahead > 0; --ahead) {
    cp_async_wait<kWalkStages - 2>();
    block_barrier();  // the oldest of them is there, and the one before it has been read
    copy();
  }
}

// ---- The warps that compute

// The stages as they come; every warp takes every one.
struct WalkRing {
  char* shared;
  int bytes, stage;
  __device__ char* next() {
    block_barrier();
    char* const at = shared + stage * bytes;
    stage = stage + 1 == kWalkStages ? 0 : stage + 1;
    return at;
  }
};

// Sᵀ of a warp's 16 columns: x[n][c] is row 8 n + 2 t + c % 2, column g + c / 2 · 8.
template <int kTiles, class Visit>
__device__ inline void each_column(float (&x)[kTiles][4], float* at, int width, Visit visit) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  at += 2 * t * width + g;
#pragma unroll
  for (int n = 0; n < kTiles; ++n, at += 8 * width)
#pragma unroll
    for (int c = 0; c < 4; ++c) visit(x[n][c], at[c % 2 * width + c / 2 * 8]);
}
template <int kTiles>
__device__ inline void load_columns(float (&x)[kTiles][4], float* from, int width) {
  each_column(x, from, width, [](float& to, const float& at) { to = at; });
}
template <int kTiles>
__device__ inline void store_columns(float (&x)[kTiles][4], float* to, int width) {
  each_column(x, to, width, [](const float& from, float& at) { at = from; });
}

// y += Sᵀ rowsᵀ, the rows of a tile.
template <int kDk, int kBlocks>
__device__ inline void multiply_rows(float (&y)[2 * kBlocks][4], const float (&S)[kDk / 8][4], uint32_t tile,
                                     const TileLane<kDk>& lanes) {
#pragma unroll
  for (int m = 0; m < kDk / 16; ++m) {
    uint32_t s[4];
    as_A(s, S[2 * m], S[2 * m + 1]);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t f[4];
      lanes.n_by_k(f, tile, b, m);
      mma_bf16(y[2 * b], s, f[0], f[1]);
      mma_bf16(y[2 * b + 1], s, f[2], f[3]);
    }
  }
}

// S through a chunk of at most 16 kBlocks rows; with kOutput also its outputs, at o's columns from `column` on.
template <bool kDelta, int kDk, int kBlocks, bool kOutput>
__device__ inline void run_chunk(const ChunkedArgs& p, Role role, int h, int column, char* stage, int warp,
                                 int32_t begin, int rows, float (&S)[kDk / 8][4]) {
  using Stage = WalkStage<kDelta, kDk>;
  const int lane = threadIdx.x % 32, t = lane % 4;
  const uint32_t base = shared_address(stage);
  const float4* const gates = reinterpret_cast<const float4*>(stage + Stage::kGates);
  char* const slice = stage + Stage::kV + warp * kSliceBytes;
  const uint32_t slice_lane = shared_address(slice) + slice_at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const TileLane<kDk> lanes;
  const TileLane<kChunkRows> square;

  // Yᵀ, and decayed to the chunk's end; T: without decay.
  uint32_t y[kBlocks][4], y_end[kBlocks][4];
  {
    float sk[2 * kBlocks][4] = {};
    if constexpr (kDelta) multiply_rows<kDk, kBlocks>(sk, S, base + Stage::kK, lanes);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t v[4] = {};
      if (kOutput || role != Role::T) ldmatrix_x4_trans(v, slice_lane + b * 16 * 32);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int row = 16 * b + 8 * n + 2 * t;
        float4 low = gates[row], high = gates[row + 1];
        if (!kOutput && role == Role::T) low.y = low.z = high.y = high.z = 1;
#pragma unroll
        for (int c = 0; c < 2; ++c) {  // columns g, g + 8
          const float2 of = unpack_bf16(v[2 * n + c]);
          const float y0 = low.x * (of.x - low.y * sk[2 * b + n][2 * c]);
          const float y1 = high.x * (of.y - high.y * sk[2 * b + n][2 * c + 1]);
          y[b][2 * n + c] = pack_bf16(y0, y1);
          y_end[b][2 * n + c] = pack_bf16(low.z * y0, high.z * y1);
        }
      }
    }
  }

  if constexpr (kOutput) {
    __syncwarp();  // keeps the compiler from starting this before, for which there are no registers
    float sq[2 * kBlocks][4] = {};
    multiply_rows<kDk, kBlocks>(sq, S, base + Stage::kQ, lanes);
#pragma unroll
    for (int b = 0; b < 2 * kBlocks; ++b) {
      const float e0 = p.scale * gates[8 * b + 2 * t].y, e1 = p.scale * gates[8 * b + 2 * t + 1].y;
#pragma unroll
      for (int c = 0; c < 4; ++c) sq[b][c] *= c % 2 ? e1 : e0;
    }
#pragma unroll
    for (int k = 0; k < kBlocks; ++k)
#pragma unroll
      for (int b = k; b < kBlocks; ++b) {
        uint32_t f[4];
        square.n_by_k(f, base + Stage::kM, b, k);
        mma_bf16(sq[2 * b], y[k], f[0], f[1]);
        mma_bf16(sq[2 * b + 1], y[k], f[2], f[3]);
      }
    // By way of the slice, whose V no other warp reads, to whole rows.
    const float skip = p.skip ? p.skip[h] : 0.0f;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t o[4];
      if (p.skip) {
        ldmatrix_x4_trans(o, slice_lane + b * 16 * 32);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float2 of = unpack_bf16(o[2 * n + c / 2]);
            sq[2 * b + n][c] += skip * (c % 2 ? of.y : of.x);
          }
      }
      as_A(o, sq[2 * b], sq[2 * b + 1]);
      __syncwarp();
      stmatrix_x4_trans(slice_lane + b * 16 * 32, o);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int row = i * 16 + lane / 2, half = lane % 2;
      if (row < rows)
        *reinterpret_cast<uint4*>(p.o.row(begin + row, h) + column + half * 8) =
            *reinterpret_cast<const uint4*>(slice + slice_at(row, half));
    }
  }

  if (kOutput || role != Role::T) {
    const Decaying decay(gates[rows - 1].w);
#pragma unroll
    for (int n = 0; n < kDk / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) S[n][c] = decay(S[n][c], 0);
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m) {
      uint32_t f[4];
      lanes.k_by_n(f, base + Stage::kZ, b, m);
      mma_bf16(S[2 * m], y_end[b], f[0], f[1]);
      mma_bf16(S[2 * m + 1], y_end[b], f[2], f[3]);
    }
}

template <bool kDelta, int kDk, bool kOutput>
__device__ inline void run_step(const ChunkedArgs& p, const WalkWork& w, const ChainItem& item, int warp,
                                bool active, WalkRing& ring, float (&S)[kDk / 8][4], float& log_scale) {
  const int column = w.column + 16 * warp;
  const int32_t end = item.end;
  for (int32_t begin = item.begin; begin < end; begin += kChunkRows) {
    const int rows = min(kChunkRows, end - begin);
    char* const stage = ring.next();
    if (!active) continue;
    if (rows > 32)
      run_chunk<kDelta, kDk, 4, kOutput>(p, w.role, w.h, column, stage, warp, begin, rows, S);
    else if (rows > 16)
      run_chunk<kDelta, kDk, 2, kOutput>(p, w.role, w.h, column, stage, warp, begin, rows, S);
    else
      run_chunk<kDelta, kDk, 1, kOutput>(p, w.role, w.h, column, stage, warp, begin, rows, S);
    if (!kOutput) log_scale += reinterpret_cast<const float4*>(stage + WalkStage<kDelta, kDk>::kGates)[rows - 1].w;
  }
}

// Key dims (i, i + 8 kHalf) turned by shift.
template <int kHalf, int kTiles>
__device__ inline void turn_pairs(float (&x)[kTiles][4], const RotationTable& rotations, int32_t shift) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kHalf; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 r = rotations.at(shift, 8 * n + 2 * t + i);
#pragma unroll
      for (int c = i; c < 4; c += 2) {
        const float low = x[n][c], high = x[n + kHalf][c];
        x[n][c] = r.x * low - r.y * high;
        x[n + kHalf][c] = r.y * low + r.x * high;
      }
    }
}
// All key dims, or the first half of them: in registers, their places must be known.
template <int kTiles>
__device__ inline void turn_columns(float (&x)[kTiles][4], const RotationTable& rotations, int32_t shift) {
  if (rotations.pairs == 4 * kTiles)
    turn_pairs<kTiles / 2>(x, rotations, shift);
  else
    turn_pairs<kTiles / 4>(x, rotations, shift);
}

// Tiles [first, …) of (scale · T S + U)ᵀ from a part, T S as good as in float32 (three products of bf16).
template <bool kDelta, int kDk>
__device__ inline void multiply_part(float (&y)[kDk / 8][4], int first, const char* stage, int warp, float scale,
                                     const float (&S)[kDk / 8][4]) {
  using Stage = WalkStage<kDelta, kDk>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float ts[kPart / 8][4] = {};
#pragma unroll
  for (int m = 0; m < kDk / 16; ++m) {
    uint32_t s_lead[4], s_rest[4];
    split_A(s_lead, s_rest, S[2 * m], S[2 * m + 1]);
#pragma unroll
    for (int n = 0; n < kPart / 8; ++n) {
      uint32_t lead[2], rest[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 x = *reinterpret_cast<const float2*>(stage + Stage::kT + 8 * n * kDk * 4 + m / 2 * 128 +
                                                          part_at<kDk>(g, m % 2 * 4 + 2 * i + t / 2) + t % 2 * 8);
        split_bf16(x.x, x.y, lead[i], rest[i]);
      }
      mma_bf16(ts[n], s_lead, lead[0], lead[1]);
      mma_bf16(ts[n], s_rest, lead[0], lead[1]);
      mma_bf16(ts[n], s_lead, rest[0], rest[1]);
    }
  }
  const char* const U = stage + Stage::kU + warp * kPart * 64 + g % 4 * 4;
#pragma unroll
  for (int n = 0; n < kPart / 8; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      y[first + n][c] =
          scale * ts[n][c] + *reinterpret_cast<const float*>(U + u_at(8 * n + 2 * t + c % 2, g / 4 + c / 2 * 2));
}

template <bool kDelta, int kDk>
__device__ inline void run_jump(const ChunkedArgs& p, const WalkWork& w, const ChainItem& item, int warp,
                                bool active, WalkRing& ring, float (&S)[kDk / 8][4]) {
  constexpr int kTiles = kDk / 8, kParts = kDk / kPart;
  const bool transfer = item.compose == Compose::transfer, multiplies = kDelta && transfer;
  if (!active) {
    for (int part = 0; multiplies && part < kParts; ++part) ring.next();
    return;
  }
  if (item.compose == Compose::zero) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) S[n][c] = 0;
    return;
  }
  const int64_t slot = static_cast<int64_t>(item.op) * p.Hv + w.h;
  const float scale = transfer && p.log_scale ? expf(p.log_scale[slot]) : 1.0f;
  const bool turns = p.rotations.pairs > 0 && item.shift != 0;
  float y[kTiles][4];
  if (multiplies) {  // S ← R (scale · T R⁻¹ S + U)
    if (turns) turn_columns(S, p.rotations, -item.shift);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      multiply_part<kDelta, kDk>(y, part * (kPart / 8), ring.next(), warp, scale, S);
    if (turns) turn_columns(y, p.rotations, item.shift);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) S[n][c] = y[n][c];
    return;
  }
  load_columns(y, p.U + slot * kDk * p.dv + w.column + 16 * warp, p.dv);
  if (turns) turn_columns(y, p.rotations, item.shift);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) S[n][c] = item.compose == Compose::last ? y[n][c] : scale * S[n][c] + y[n][c];
}

template <bool kDelta, int kDk>
__device__ inline void run_chain(const ChunkedArgs& p, const WalkWork& w, int warp, bool active, WalkRing& ring,
                                 float (&S)[kDk / 8][4]) {
  const auto slot = [&](int32_t s) {
    return p.state + (static_cast<int64_t>(s) * p.Hv + w.h) * kDk * p.dv + w.column + 16 * warp;
  };
  const int32_t state = p.table.chains[w.chain].state;
  float unused = 0;
  if (active && !p.table.chains[w.chain].fresh) load_columns(S, slot(state), p.dv);
  for (int32_t n = w.item_begin; n < w.item_end; ++n) {
    const ChainItem& item = p.table.items[n];
    if (item.kind == ChainItem::Kind::jump) {
      run_jump<kDelta, kDk>(p, w, item, warp, active, ring, S);
    } else {
      const bool aside = active && !item.keep;  // in the slot that is written at the end anyway
      if (aside) store_columns(S, slot(state), p.dv);
      run_step<kDelta, kDk, true>(p, w, item, warp, active, ring, S, unused);
      if (aside) load_columns(S, slot(state), p.dv);
    }
    if (active && item.save != kNone) store_columns(S, slot(item.save), p.dv);
  }
  if (active) store_columns(S, slot(state), p.dv);
}

// U or T of a step.
template <bool kDelta, int kDk>
__device__ inline void run_operator(const ChunkedArgs& p, const WalkWork& w, int warp, bool active, WalkRing& ring,
                                    float (&S)[kDk / 8][4]) {
  const ChainItem& item = p.table.items[w.item_begin];
  const bool begins = item.span == 0;
  const int column = w.column + 16 * warp;
  const int64_t slot = static_cast<int64_t>(w.op) * p.Hv + w.h;
  float* const out = (w.role == Role::U ? p.U : p.T) + slot * kDk * w.width + column;
  float log_scale = 0;
  if (active) {
    if (!begins) {
      load_columns(S, out, w.width);
    } else if (w.role == Role::T) {
      const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
      for (int n = 0; n < kDk / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) S[n][c] = 8 * n + 2 * t + c % 2 == column + g + c / 2 * 8 ? 1.0f : 0.0f;
    }
  }
  run_step<kDelta, kDk, false>(p, w, item, warp, active, ring, S, log_scale);
  if (active) store_columns(S, out, w.width);
  if (p.log_scale && w.role == Role::U && w.column == 0 && threadIdx.x == 0)
    p.log_scale[slot] = (begins ? 0.0f : p.log_scale[slot]) + log_scale;
}

// walk_threads(grid.columns) threads, the last kCopyThreads of which copy; no more blocks than works.
template <bool kDelta, int kDk>
__global__ void __launch_bounds__(walk_threads(kChunkedColumns), 1) walk_kernel(ChunkedArgs p, WalkGrid grid) {
  extern __shared__ __align__(128) char shared[];
  if (threadIdx.x >= blockDim.x - kCopyThreads) {
    give_registers<56>();
    fill_ring<kDelta, kDk>(p, grid, shared);
    return;
  }
  take_registers<224>();
  const int warp = threadIdx.x / 32;
  WalkRing ring{shared, WalkStage<kDelta, kDk>::bytes(grid.columns), 0};
  for (int32_t turn = 0; grid.work(turn) < grid.works; ++turn) {
    const WalkWork w = work_of<kDk>(p, grid, grid.work(turn));
    const bool active = 16 * warp < grid.columns && w.column + 16 * warp < w.width;
    float S[kDk / 8][4] = {};
    if (w.role == Role::walk)
      run_chain<kDelta, kDk>(p, w, warp, active, ring, S);
    else
      run_operator<kDelta, kDk>(p, w, warp, active, ring, S);
  }
}

}  // namespace hypic::cuda
