// The state along spans of chains without jumps, and the operators of a level's steps: see chunked.cuh.
//
// A block holds S of kN columns, a warp 16 rows of it, in accumulators; between two chunks S lies in shared memory as
// well, transposed and rounded to bf16. Of the two groups of four warps, one makes K S and from it Y, the other Q S and
// from it O: products of 64 rows by kN columns, whose latency is what a chunk takes. Four more warps copy the chunks
// into a ring in shared memory; one barrier a chunk keeps the two kinds apart.
#pragma once

#include "kernels/linear_attention/chunked_args.cuh"
#include "kernels/linear_attention/chunked_plan.h"
#include "kernels/linear_attention/decaying.cuh"
#include "kernels/linear_attention/hopper.cuh"

namespace hypic::cuda {

inline constexpr int kWalkThreads = 256, kCopyThreads = 128;
inline constexpr int kSliceBytes = kChunkRows * 16 * 2;  // of V, 16 columns

// Shared memory: stages of the ring, each a chunk; S; Y, and Y decayed to the chunk's end. K, Q, Z
// are parts of 64 key dims each, [64][64]; S and Y are transposed.
template <bool kDelta, int kDk, int kN>
struct WalkShared {
  static constexpr int kPart = kChunkRows * 128, kTile = kDk / 64 * kPart;
  static constexpr int kK = 0, kQ = kTile, kZ = kDelta ? 2 * kTile : kK;
  static constexpr int kM = (kDelta ? 3 : 2) * kTile;
  static constexpr int kGates = kM + kPart;
  static constexpr int kV = kGates + kChunkRows * static_cast<int>(sizeof(float4));
  static constexpr int kStage = kV + kN / 16 * kSliceBytes, kStages = kN > 64 ? 2 : 3;
  static constexpr int kAtom = kN * 128;  // kN columns by 64 rows
  static constexpr int kState = kStages * kStage;
  static constexpr int kY = kState + kDk / 64 * kAtom, kYEnd = kY + kAtom;
  static constexpr int kBytes = kYEnd + kAtom;
  static_assert(kStage % 1024 == 0 && kBytes <= 227 * 1024);
};

// What a launch works on, as plan_walk says, for spans[first, …) and op_steps[op_first, …).
struct WalkGrid {
  int32_t first, op_first;
  int32_t chain_works, works;
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
  if (work < grid.chain_works) {
    const int32_t head = work / grid.v_parts;
    w.role = Role::walk;
    w.h = head % p.Hv;
    w.column = work % grid.v_parts * kN;
    w.width = p.dv;
    const ChainSpan& span = p.table.spans[grid.first + head / p.Hv];
    w.item_begin = span.item_begin;
    w.item_end = span.item_end;
    w.state = span.state;
    w.fresh = span.fresh;
    return w;
  }
  const int32_t parts = grid.v_parts + grid.t_parts, head = (work - grid.chain_works) / parts;
  const int32_t part = (work - grid.chain_works) % parts;
  const OpStep step = p.table.op_steps[grid.op_first + head / p.Hv];
  w.role = part < grid.v_parts ? Role::U : Role::T;
  w.h = head % p.Hv;
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

// `rows` rows of kParts · kChunks 16-byte pieces and zeros up to a chunk, by all threads that copy; `at` has the place
// of a row's piece, the same for rows apart by as many as are copied at a time.
template <int kChunks, int kParts = 1, bool kLower = false, class At>
__device__ inline void copy_rows(const __nv_bfloat16* from, int64_t stride, int rows, int valid, int part, At at) {
  constexpr int kRows = kCopyThreads / kChunks;
  const int thread = threadIdx.x % kCopyThreads, first = thread / kChunks, chunk = thread % kChunks;
  if (chunk >= valid) return;
  const uint32_t to = at(first, chunk);
  const uint32_t step = at(kRows, 0) - at(0, 0);
  from += first * stride + chunk * 8;
#pragma unroll
  for (int i = 0; i < kChunkRows / kRows; ++i, from += kRows * stride)
#pragma unroll
    for (int j = 0; j < kParts; ++j)
      cp_async_16(to + i * step + j * part, from + j * kChunks * 8,
                  first + i * kRows < rows && (!kLower || chunk / 2 <= i * kRows / 16));
}

template <bool kDelta, int kDk, int kN>
__device__ inline void copy_chunk(const ChunkedArgs& p, const WalkWork& w, uint32_t stage, int32_t begin, int rows) {
  using Shared = WalkShared<kDelta, kDk, kN>;
  const int thread = threadIdx.x % kCopyThreads, kh = w.h / p.group;
  const int64_t at = static_cast<int64_t>(begin) * p.Hv + w.h;
  const auto copy = [&](int tile, const __nv_bfloat16* from, int64_t stride) {
    copy_rows<8, kDk / 64>(from, stride, rows, 8, Shared::kPart, [=](int row, int chunk) {
      return stage + tile + row * 128 + (swizzle_128(row, chunk) << 4);
    });
  };
  copy(Shared::kK, p.k.row(begin, kh), p.k.stride_r);
  if (thread < kChunkRows)
    cp_async_16(stage + Shared::kGates + thread * 16, p.gates + w.h * p.rows + begin + (thread < rows ? thread : 0),
                thread < rows);
  if (w.role != Role::T)
    copy_rows<kN / 8>(
        p.v.row(begin, w.h) + w.column, p.v.stride_r, rows, (w.width - w.column) / 8, 0,
        [=](int row, int chunk) { return stage + Shared::kV + chunk / 2 * kSliceBytes + slice_at(row, chunk % 2); });
  if (w.role == Role::walk) {
    copy(Shared::kQ, p.q.row(begin, kh), p.q.stride_r);
    copy_rows<8, 1, true>(
        p.M + at * kChunkRows, static_cast<int64_t>(p.Hv) * kChunkRows, rows, 8, 0,
        [=](int row, int chunk) { return stage + Shared::kM + row * 128 + (swizzle_128(row, chunk) << 4); });
  }
  if constexpr (kDelta) copy(Shared::kZ, p.Z + at * kDk, static_cast<int64_t>(p.Hv) * kDk);
}

// Copies the chunks of steps, in order, work after work.
template <bool kDelta, int kDk, int kN>
__device__ inline void fill_ring(const ChunkedArgs& p, const WalkGrid& grid, char* shared) {
  using Shared = WalkShared<kDelta, kDk, kN>;
  const uint32_t ring = shared_address(shared);
  int32_t turn = 0;
  WalkWork w = work_of<kDk, kN>(p, grid, grid.work(turn));
  int32_t n = w.item_begin, at = 0;  // the next: rows `at` on of item n
  int ahead = 0, stage = 0;          // stages copied and not yet used; the next one
  bool done = false;
  const auto copy = [&] {
    while (!done) {
      if (n == w.item_end) {
        const int32_t work = grid.work(++turn);
        done = work >= grid.works;
        if (!done) w = work_of<kDk, kN>(p, grid, work);
        n = w.item_begin;
        continue;
      }
      const int32_t rows = p.table.items[n].end - p.table.items[n].begin;
      if (at >= rows) {
        ++n;
        at = 0;
        continue;
      }
      copy_chunk<kDelta, kDk, kN>(p, w, ring + stage * Shared::kStage, p.table.items[n].begin + at,
                                  min(kChunkRows, rows - at));
      at += kChunkRows;
      stage = stage + 1 == Shared::kStages ? 0 : stage + 1;
      ++ahead;
      break;
    }
    cp_async_commit();
  };
  for (int i = 0; i + 1 < Shared::kStages; ++i) copy();
  for (; ahead > 0; --ahead) {
    cp_async_wait<Shared::kStages - 2>();
    block_barrier();  // the oldest of them is there, and the one before it has been read
    copy();
  }
}

// ---- The warps that compute

// The group kGroup of four warps, and what a warp of it holds of S: 16 rows, as fragments of 16 ×
// 8, x[n][c] is row g + c / 2 · 8, column 8 n + 2 t + c % 2. With d_k = 64 the second group has
// none.
template <bool kDelta, int kDk, int kN, int kGroup>
class WalkWarps {
 public:
  __device__ WalkWarps(const ChunkedArgs& p, char* shared) : p_(p), shared_(shared) {}

  __device__ void run(const WalkWork& w) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) S_[i / 4][i % 4] = 0;
    if (w.role == Role::walk)
      run_span(w);
    else
      run_operator(w);
  }

 private:
  using Shared = WalkShared<kDelta, kDk, kN>;

  static constexpr bool kHasState = kGroup < kDk / 64;

  // Of columns beyond the width nothing is read or written.
  template <class Visit>
  __device__ void each_pair(float* at, int width, int valid, Visit visit) {
    if constexpr (!kHasState) return;
    at += (16 * warp_ + g_) * static_cast<int64_t>(width) + 2 * t_;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n)
      if (8 * n < valid)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          visit(S_[n][2 * half], S_[n][2 * half + 1],
                reinterpret_cast<float2*>(at + half * 8 * static_cast<int64_t>(width) + 8 * n));
  }
  __device__ void load(float* from, int width, int valid) {
    each_pair(from, width, valid, [](float& x0, float& x1, const float2* at) {
      x0 = at->x;
      x1 = at->y;
    });
  }
  __device__ void store(float* to, int width, int valid) {
    each_pair(to, width, valid, [](float x0, float x1, float2* at) { *at = {x0, x1}; });
  }

  // 16 rows, from 16 `block` on, of fragments into a tile [n][k], transposed and rounded.
  template <int kTiles>
  __device__ static void put(uint32_t tile, int block, const float (&x)[kTiles][4]) {
    const int lane = threadIdx.x % 32, chunk = 2 * block + lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < kTiles / 2; ++j) {
      const int column = 8 * (2 * j + lane / 16) + lane % 8;
      uint32_t rounded[4];
      as_A(rounded, x[2 * j], x[2 * j + 1]);
      stmatrix_x4_trans(tile + column * 128 + (swizzle_128(column, chunk) << 4), rounded);
    }
  }
  __device__ void publish() {
    if constexpr (kHasState) put(base() + Shared::kState + kGroup * Shared::kAtom, warp_ % 4, S_);
    shared_fence();
  }

  __device__ void run_span(const WalkWork& w) {
    const int valid = w.width - w.column;
    const auto slot = [&](int32_t s) {
      return p_.state + (static_cast<int64_t>(s) * p_.Hv + w.h) * kDk * p_.dv + w.column;
    };
    if (!w.fresh) load(slot(w.state), p_.dv, valid);
    for (int32_t n = w.item_begin; n < w.item_end; ++n) {
      const ChainItem item = p_.table.items[n];
      if (!item.keep) store(slot(w.state), p_.dv, valid);  // aside, in the slot that is written at the end anyway
      for (int32_t begin = item.begin; begin < item.end; begin += kChunkRows)
        run_chunk<true>(w, begin, min(kChunkRows, item.end - begin));
      if (!item.keep) load(slot(w.state), p_.dv, valid);
      if (item.save != kNone) store(slot(item.save), p_.dv, valid);
    }
    store(slot(w.state), p_.dv, valid);
  }

  // U or T of a step.
  __device__ void run_operator(const WalkWork& w) {
    const ChainItem item = p_.table.items[w.item_begin];
    const bool begins = item.span == 0;
    const int64_t slot = static_cast<int64_t>(w.op) * p_.Hv + w.h;
    float* const out = (w.role == Role::U ? p_.U : p_.T) + slot * kDk * w.width + w.column;
    float log_scale = 0;
    if (!begins) {
      load(out, w.width, w.width - w.column);
    } else if (w.role == Role::T) {
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          S_[n][c] = 16 * warp_ + g_ + c / 2 * 8 == w.column + 8 * n + 2 * t_ + c % 2 ? 1.0f : 0.0f;
    }
    for (int32_t begin = item.begin; begin < item.end; begin += kChunkRows)
      log_scale += run_chunk<false>(w, begin, min(kChunkRows, item.end - begin));
    store(out, w.width, w.width - w.column);
    if (p_.log_scale && w.role == Role::U && w.column == 0 && threadIdx.x == 0)
      p_.log_scale[slot] = (begins ? 0.0f : p_.log_scale[slot]) + log_scale;
  }

  // S through a chunk; its log decay. kOutput: the first group makes Y, the other O; else each Y of
  // half the columns.
  template <bool kOutput>
  __device__ float run_chunk(const WalkWork& w, int32_t begin, int rows) {
    constexpr int kWidth = kOutput ? kN : kN / 2;
    publish();
    block_barrier();
    char* const stage = shared_ + stage_ * Shared::kStage;
    const uint32_t at = shared_address(stage);
    stage_ = stage_ + 1 == Shared::kStages ? 0 : stage_ + 1;
    constexpr bool kMakesO = kOutput && kGroup == 1;
    constexpr int kColumn = kOutput || kGroup == 0 ? 0 : kWidth;

    // K S, or Q S.
    float x[kWidth / 8][4];
    constexpr bool kMultiplies = kDelta || kMakesO;
    if constexpr (kMultiplies) {
      uint32_t a[kDk / 16][4];
#pragma unroll
      for (int m = 0; m < kDk / 16; ++m)
        tile_.m_by_k(a[m], at + (kMakesO ? Shared::kQ : Shared::kK) + m / 4 * Shared::kPart, warp_ % 4, m % 4);
      const uint32_t s = base() + Shared::kState + kColumn * 128;
      wgmma_begin();
#pragma unroll
      for (int m = 0; m < kDk / 16; ++m)
        wgmma<kWidth>(x, a[m], wgmma_tile(s + m / 4 * Shared::kAtom + m % 4 * 32), m > 0);
      wgmma_commit();
    }
    const float4* const gates = reinterpret_cast<const float4*>(stage + Shared::kGates);
    const float log_decay = gates[rows - 1].w;
    const int row = warp_ % 4 * 16 + g_;  // of the chunk
    float4 low = gates[row], high = gates[row + 8];
    if (!kOutput && w.role == Role::T) low.y = low.z = high.y = high.z = 1;
    const char* const V = stage + Shared::kV + kColumn / 16 * kSliceBytes + 4 * t_;
    const auto v = [&](int n, int half) {
      return unpack_bf16(*reinterpret_cast<const uint32_t*>(V + n / 2 * kSliceBytes + slice_at(row + 8 * half, n % 2)));
    };
    if constexpr (kMultiplies) wgmma_wait<0>();
    if (kOutput || w.role != Role::T) {
      const Decaying decay(log_decay);
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) S_[n][c] = decay(S_[n][c], 0);
    }

    if constexpr (!kMakesO) {
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 gate = half ? high : low;
          const float2 of = !kOutput && w.role == Role::T ? float2{0, 0} : v(n, half);
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& y = x[n][2 * half + c];
            y = gate.x * ((c ? of.y : of.x) - (kDelta ? gate.y * y : 0.0f));
          }
        }
      if constexpr (kOutput) put(base() + Shared::kY, warp_ % 4, x);
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[n][c] *= c < 2 ? low.z : high.z;
      put(base() + Shared::kYEnd + kColumn * 128, warp_ % 4, x);
      shared_fence();
    } else {
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[n][c] *= p_.scale * (c < 2 ? low.y : high.y);
    }
    uint32_t z[kChunkRows / 16][4], M[kChunkRows / 16][4];
    if constexpr (kHasState)
#pragma unroll
      for (int b = 0; b < kChunkRows / 16; ++b)
        tile_.k_by_m(z[b], at + Shared::kZ + kGroup * Shared::kPart, b, warp_ % 4);
    if constexpr (kMakesO)
#pragma unroll
      for (int b = 0; b < kChunkRows / 16; ++b) tile_.m_by_k(M[b], at + Shared::kM, warp_ % 4, b);
    named_sync<1, kWalkThreads>();

    wgmma_begin();
    if constexpr (kHasState) {
#pragma unroll
      for (int b = 0; b < kChunkRows / 16; ++b) wgmma<kN>(S_, z[b], wgmma_tile(base() + Shared::kYEnd + b * 32), true);
      wgmma_commit();
    }
    if constexpr (kMakesO) {
#pragma unroll
      for (int b = 0; b < kChunkRows / 16; ++b) wgmma<kN>(x, M[b], wgmma_tile(base() + Shared::kY + b * 32), true);
      wgmma_commit();
    }
    wgmma_wait<0>();
    if constexpr (kMakesO) {
      // By way of V's place, whose rows no other warp reads any more: whole 16-byte pieces.
      const float skip = p_.skip ? p_.skip[w.h] : 0.0f;
      char* const O = stage + Shared::kV;
#pragma unroll
      for (int n = 0; n < kN / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float2 o{x[n][2 * half], x[n][2 * half + 1]};
          if (p_.skip) {
            const float2 of = v(n, half);
            o = {o.x + skip * of.x, o.y + skip * of.y};
          }
          *reinterpret_cast<uint32_t*>(O + n / 2 * kSliceBytes + slice_at(row + 8 * half, n % 2) + 4 * t_) =
              pack_bf16(o.x, o.y);
        }
      __syncwarp();
      const int lane = threadIdx.x % 32, valid = (w.width - w.column) / 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = warp_ % 4 * 16 + 8 * i + lane % 8;
        if (r >= rows) continue;
        __nv_bfloat16* const to = p_.o.row(begin + r, w.h) + w.column;
#pragma unroll
        for (int chunk = lane / 8; chunk < kN / 8; chunk += 4)
          if (chunk < valid)
            *reinterpret_cast<uint4*>(to + chunk * 8) =
                *reinterpret_cast<const uint4*>(O + chunk / 2 * kSliceBytes + slice_at(r, chunk % 2));
      }
    }
    return log_decay;
  }

  __device__ uint32_t base() const { return shared_address(shared_); }

  const ChunkedArgs& p_;
  char* const shared_;
  const int warp_ = threadIdx.x / 32, g_ = threadIdx.x % 32 / 4, t_ = threadIdx.x % 4;
  const TileLane<64> tile_;
  float S_[kN / 8][4];
  int stage_ = 0;
};

template <bool kDelta, int kDk, int kN, int kGroup>
__device__ inline void walk(const ChunkedArgs& p, const WalkGrid& grid, char* shared) {
  WalkWarps<kDelta, kDk, kN, kGroup> warps(p, shared);
  for (int32_t turn = 0; grid.work(turn) < grid.works; ++turn) warps.run(work_of<kDk, kN>(p, grid, grid.work(turn)));
}

// kWalkThreads + kCopyThreads threads, the last of which copy; no more blocks than works.
template <bool kDelta, int kDk, int kN>
__global__ void __launch_bounds__(kWalkThreads + kCopyThreads, 1) walk_kernel(ChunkedArgs p, WalkGrid grid) {
  extern __shared__ __align__(1024) char walk_shared[];
  if (threadIdx.x >= kWalkThreads) {
    give_registers<56>();
    return fill_ring<kDelta, kDk, kN>(p, grid, walk_shared);
  }
  take_registers<224>();
  if (threadIdx.x < kWalkThreads / 2)
    walk<kDelta, kDk, kN, 0>(p, grid, walk_shared);
  else
    walk<kDelta, kDk, kN, 1>(p, grid, walk_shared);
}

}  // namespace hypic::cuda
