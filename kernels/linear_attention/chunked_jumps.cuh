// The state along spans of a chain that jump: see chunked.cuh. Such a span is a jump, then a few rows, then the next
// jump: what counts is how soon one product is followed by the next, and that T and U come as fast as memory gives
// them.
//
// A block holds 32 columns of S, a warp of it 16 rows, in accumulators of m16n8k16. Between two items S lies in
// shared memory as well, transposed, as a sum of two bf16: what the next product reads. Three kinds of warps:
//
//   state  S ← scale · T S + U, with T as A of wgmma, from float32 in shared memory by way of registers; S ← decay S
//          + Zᵀ Y. T of the next jump takes the place of this one's in registers as the product is done with it.
//   rows   Y and O of steps, eight rows at a time, 8 columns of S a warp; they hand over Zᵀ as well
//   copy   T and U, into rings in shared memory. The blocks of a cluster have the same head: each copies a part of T
//          to all of them.
//
// State warps read no global memory: publishing S waits for all that they have under way.
#pragma once

#include "kernels/linear_attention/chunked_args.cuh"
#include "kernels/linear_attention/chunked_plan.h"
#include "kernels/linear_attention/hopper.cuh"

namespace hypic::cuda {

inline constexpr int kRowsWarps = kJumpsColumns / 8;
inline constexpr int kRowsThreads = kRowsWarps * 32;
inline constexpr int kJumpsCopyThreads = 128;
inline constexpr int kItems = 128;  // that lie in shared memory at a time

// What the state warps ask of an item, in one word, so that they have it before they need it.
enum ItemBits : uint32_t {
  kHasRows = 1,     // a step
  kKeeps = 2,       // and it changes the state
  kApplies = 4,     // a jump that reads an operator
  kMultiplies = 8,  // by its T
  kLasts = 16,      // Compose::last
  kSaves = 32,
  kRowsFollow = 64,       // in the next item
  kNextMultiplies = 128,  // the next jump that applies
  kNextApplies = 256,
  kJumps = 512,           // neither this nor kHasRows: a step without rows
  kRowsShift = 16,
};
struct JumpsPart {
  ChainItem items[kItems];
  uint32_t bits[kItems + 1];
};

template <bool kDelta, int kDk, bool kDiagonal = false>
struct Jumps {
  static constexpr int kStateWarps = kDk / 16, kStateThreads = kStateWarps * 32;
  static constexpr int kThreads = kStateThreads + kRowsThreads + kJumpsCopyThreads;  // whole groups of four warps
  static constexpr int kHalves = kDk / 64;                                           // of T, 64 rows: a group's
  static constexpr int kStepThreads = kStateThreads + kRowsThreads;

  // Shared memory. T: rows apart by 8 banks, so that pairs of floats of four rows touch every bank once.
  static constexpr int kSlots = kDelta ? 4 : 0, kPitch = kDk * 4 + 32, kSlot = 64 * kPitch;
  static constexpr int kStages = kDelta ? 2 : 6, kStage = kDk * kJumpsColumns * 4;  // of U
  static constexpr int kAtom = kJumpsColumns * 128,
                       kHalf = (kDelta ? 2 : 1) * kAtom;  // Sᵀ, [32][64]: leading, remaining
  static constexpr int kYPitch = kChunkRows + 8;          // numbers
  static constexpr int kState = 0;
  static constexpr int kZ = kState + kHalves * kHalf;  // [64][kDk]
  static constexpr int kU = kZ + kChunkRows * kDk * 2;
  static constexpr int kT = kU + kStages * kStage;
  static constexpr int kY = kT + kSlots * kSlot, kYEnd = kY + kJumpsColumns * kYPitch * 2;
  static constexpr int kFullT = kYEnd + kJumpsColumns * kYPitch * 2, kEmptyT = kFullT + kSlots * 8;
  static constexpr int kFullU = kEmptyT + kSlots * 8, kEmptyU = kFullU + kStages * 8;
  // What a jump scales S by, and the decay of a step: of all rows of S, or of each; 16-byte pieces where of each.
  static constexpr int kScales = kDiagonal && !kDelta ? kDk : 1;  // of a stage
  static constexpr int kScale = (kEmptyU + kStages * 8 + 15) / 16 * 16;
  static constexpr int kDecay = kScale + (kStages * kScales * 4 + 15) / 16 * 16;
  static constexpr int kPart = kDecay + (kDiagonal ? kDk * 4 : 8), kBytes = kPart + static_cast<int>(sizeof(JumpsPart));
};

// Some columns of one head along a span of items.
struct JumpsWork {
  int h, column;
  int32_t item_begin, item_end, state;
  bool fresh;
};
enum JumpsBarrier { kStateThere = 1, kRowsThere, kStateEverywhere };

__device__ inline bool applies(const ChainItem& item) {
  return item.kind == ChainItem::Kind::jump && item.compose != Compose::zero;
}
__device__ inline bool multiplies(const ChainItem& item) { return item.compose == Compose::transfer && applies(item); }
__device__ inline bool has_rows(const ChainItem& item) {
  return item.kind == ChainItem::Kind::step && item.begin < item.end;
}
__device__ inline uint32_t bits_of(const ChainItem& item) {
  if (has_rows(item))
    return kHasRows | (item.keep ? kKeeps : 0) | static_cast<uint32_t>(item.end - item.begin) << kRowsShift;
  return (item.kind == ChainItem::Kind::jump ? kJumps : 0) | (applies(item) ? kApplies : 0) |
         (multiplies(item) ? kMultiplies : 0) | (applies(item) && item.compose == Compose::last ? kLasts : 0);
}

// Runs visit(items, count, begin) over the span, all threads of the block together, a part in shared memory at a time;
// items[0] is item `begin`.
template <class Visit>
__device__ inline void each_part(const ChunkedArgs& p, const JumpsWork& w, char* shared, Visit visit) {
  JumpsPart& part = *reinterpret_cast<JumpsPart*>(shared);
  static_assert(sizeof(ChainItem) % 4 == 0);
  constexpr int kWords = sizeof(ChainItem) / 4;
  for (int32_t begin = w.item_begin; begin < w.item_end; begin += kItems) {
    const int count = min(kItems, w.item_end - begin), thread = threadIdx.x;
    block_barrier();
    for (int i = thread; i < count * kWords; i += blockDim.x)
      reinterpret_cast<int32_t*>(part.items)[i] = reinterpret_cast<const int32_t*>(p.table.items + begin)[i];
    block_barrier();
    if (thread <= count) {
      uint32_t bits = 0;
      if (thread < count) {
        bits = bits_of(part.items[thread]) | (part.items[thread].save != kNone ? kSaves : 0);
        if (thread + 1 < count && has_rows(part.items[thread + 1])) bits |= kRowsFollow;
        int n = thread + 1;
        while (n < count && !applies(part.items[n])) ++n;
        if (n < count) bits |= kNextApplies | (multiplies(part.items[n]) ? kNextMultiplies : 0);
      }
      part.bits[thread] = bits;
    }
    block_barrier();
    visit(part.items, count, begin);
  }
}

// ---- The warps that copy

// 16 bytes of U: eight lanes' pairs of floats in four rows touch every bank once.
__device__ inline int u_at(int row, int chunk) { return row * 128 + ((chunk ^ 2 * (row & 3)) << 4); }

// T and U of the jumps. A warp makes one bulk copy after another, some 50 cycles each, so all take part.
template <bool kDelta, int kDk, bool kDiagonal>
__device__ inline void copy_operators(const ChunkedArgs& p, const JumpsWork& w, char* shared) {
  using L = Jumps<kDelta, kDk, kDiagonal>;
  constexpr int kWarps = kJumpsCopyThreads / 32, kRows = kJumpsCopyThreads / 8;  // of U at a time: a multiple of 4
  const uint32_t base = shared_address(shared), thread = threadIdx.x - (L::kThreads - kJumpsCopyThreads);
  const uint32_t lane = thread % 32, blocks = cluster_size(), rows = 64 / kWarps / blocks;
  const uint32_t T_row = (cluster_rank() * kWarps + thread / 32) * rows + lane;        // of a half, for lane < rows
  const int row = static_cast<int>(thread) / 8, chunk = static_cast<int>(thread) % 8;  // of U
  const bool valid = chunk < (p.dv - w.column) / 4;
  RingPlace<kDelta ? L::kSlots : 1> slot;
  RingPlace<L::kStages> stage;
  each_part(p, w, shared + L::kPart, [&](const ChainItem* items, int count, int32_t) {
    for (int n = 0; n < count; ++n) {
      if (!applies(items[n])) continue;
      const int64_t head = static_cast<int64_t>(items[n].op) * p.Hv + w.h;
      if (kDelta && multiplies(items[n]))
        for (int half = 0; half < L::kHalves; ++half, slot.next()) {
          const uint32_t full = base + L::kFullT + slot.at * 8;
          barrier_wait(base + L::kEmptyT + slot.at * 8, slot.parity ^ 1);
          if (thread == 0) barrier_arrive_expect(full, 64 * kDk * 4);
          if (lane < rows)
            bulk_copy(base + L::kT + slot.at * L::kSlot + T_row * L::kPitch,
                      p.T + (head * kDk + 64 * half + T_row) * kDk, kDk * 4, full, blocks);
          __syncwarp();
        }
      const float* from = p.U + (head * kDk + row) * p.dv + w.column + chunk * 4;
      const uint32_t to = base + L::kU + stage.at * L::kStage + u_at(row, chunk);
      barrier_wait(base + L::kEmptyU + stage.at * 8, stage.parity ^ 1);
      if (valid)
#pragma unroll
        for (int i = 0; i < kDk / kRows; ++i, from += kRows * p.dv) cp_async_16(to + i * kRows * 128, from);
      if constexpr (L::kScales > 1) {
        if (thread < kDk / 4 && multiplies(items[n]))
          cp_async_16(base + L::kScale + (stage.at * kDk + thread * 4) * 4, p.T + head * kDk + thread * 4);
      } else if (thread == 0 && p.log_scale) {
        cp_async_4(base + L::kScale + stage.at * 4, p.log_scale + head);
      }
      barrier_arrive_copied(base + L::kFullU + stage.at * 8);
      stage.next();
    }
  });
}

// ---- The warps of the state

// S of a warp's 16 rows: x[n][c] is row g + c / 2 · 8, column 8 n + 2 t + c % 2; of columns beyond dv nothing.
template <class Visit>
__device__ inline void each_pair(float (&x)[4][4], float* at, int dv, int valid, Visit visit) {
#pragma unroll
  for (int n = 0; n < 4; ++n)
    if (8 * n < valid)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        visit(x[n][2 * half], x[n][2 * half + 1],
              reinterpret_cast<float2*>(at + half * 8 * static_cast<int64_t>(dv) + 8 * n));
}

template <bool kDelta, int kDk, bool kDiagonal>
class StateWarps {
 public:
  __device__ StateWarps(const ChunkedArgs& p, const JumpsWork& w, char* shared) : p_(p), w_(w), shared_(shared) {}

  __device__ void run() {
    if (!w_.fresh) load(S_, slot(w_.state));
    each_part(p_, w_, shared_ + L::kPart, [&](const ChainItem* items, int count, int32_t) {
      const uint32_t* const all = reinterpret_cast<const JumpsPart*>(shared_ + L::kPart)->bits;
      publish(true);
      int n = 0;
      while (n < count && !applies(items[n])) ++n;
      if (n < count) fetch(items, -1, count, multiplies(items[n]));
      uint32_t next = all[0];
      for (n = 0; n < count; ++n) {
        const uint32_t bits = next;
        next = all[n + 1];
        if (bits & kHasRows)
          step(bits, next);
        else if (bits & kJumps)
          jump(items, n, count, bits, next);
        if (bits & kSaves) store(S_, slot(items[n].save));
      }
    });
    store(S_, slot(w_.state));
  }

 private:
  using L = Jumps<kDelta, kDk, kDiagonal>;

  __device__ float* slot(int32_t s) const {  // this thread's first pair
    return p_.state + ((static_cast<int64_t>(s) * p_.Hv + w_.h) * kDk + row_) * p_.dv + w_.column + 2 * t_;
  }
  __device__ void load(float (&x)[4][4], float* from) const {
    each_pair(x, from, p_.dv, p_.dv - w_.column, [](float& x0, float& x1, const float2* at) {
      x0 = at->x;
      x1 = at->y;
    });
  }
  __device__ void store(float (&x)[4][4], float* to) const {
    each_pair(x, to, p_.dv, p_.dv - w_.column, [](float x0, float x1, float2* at) { *at = {x0, x1}; });
  }

  __device__ void announce() {
    if (!announced_) named_arrive<kStateThere, L::kStepThreads>();
    announced_ = true;
  }
  // S into shared memory; for a product by T as well, not only by rows.
  __device__ void publish(bool whole) {
    const int lane = threadIdx.x % 32, chunk = 2 * warp_ + lane / 8 % 2;
    const uint32_t tile = shared_address(shared_) + L::kState + chunk / 8 * L::kHalf;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = 8 * (2 * j + lane / 16) + lane % 8;
      const uint32_t at = tile + column * 128 + (swizzle_128(column, chunk % 8) << 4);
      uint32_t lead[4], rest[4];
      split_A(lead, rest, S_[2 * j], S_[2 * j + 1]);
      stmatrix_x4_trans(at, lead);
      if constexpr (kDelta)
        if (whole) stmatrix_x4_trans(at + L::kAtom, rest);
    }
    if constexpr (kDelta)
      if (whole) shared_fence();
  }
  // What follows needs the whole of S: anything but a step that changes it.
  __device__ static bool needs_whole(uint32_t next) { return (next & (kHasRows | kKeeps)) != (kHasRows | kKeeps); }

  // What can be had early of the first jump after item n that reads an operator.
  __device__ void fetch(const ChainItem* items, int n, int count, bool transfer) {
    if constexpr (kDelta) {
      if (transfer) {
        begin_T();
        fetch_T<0>();
        fetch_T<1>();
        fetch_T<2>();
        fetch_T<3>();
        end_T();
      }
    } else {
      const int pairs = p_.rotations.pairs;  // a multiple of 16
      if (pairs == 0) return;
      do ++n;
      while (n < count && !applies(items[n]));
      turns_ = n < count && items[n].shift != 0 && row_ - g_ < 2 * pairs;
      if (turns_)
#pragma unroll
        for (int half = 0; half < 2; ++half) turn_[half] = p_.rotations.at(items[n].shift, row_ % pairs + 8 * half);
    }
  }
  __device__ void begin_T() {
    if (warp_ / 4 > 0) slot_.next();
    barrier_wait(shared_address(shared_) + L::kFullT + slot_.at * 8, slot_.parity);
  }
  // A quarter of T's columns.
  template <int kQuarter>
  __device__ void fetch_T() {
    const char* const T = shared_ + L::kT + slot_.at * L::kSlot + (warp_ % 4 * 16 + g_) * L::kPitch + t_ * 8;
#pragma unroll
    for (int m = kQuarter * kDk / 64; m < (kQuarter + 1) * kDk / 64; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = *reinterpret_cast<const float2*>(T + i % 2 * 8 * L::kPitch + m * 64 + i / 2 * 32);
        split_bf16(x.x, x.y, T_lead_[m][i], T_rest_[m][i]);
      }
  }
  __device__ void end_T() {
    __syncwarp();
    const uint32_t lane = threadIdx.x % 32;
    if (lane < cluster_size()) barrier_arrive_at(shared_address(shared_) + L::kEmptyT + slot_.at * 8, lane);
    slot_.next();
    if (warp_ / 4 + 1 < L::kHalves) slot_.next();
  }

  __device__ void jump(const ChainItem* items, int n, int count, uint32_t bits, uint32_t next) {
    float u[4][4] = {};
    float2 scale{};
    const bool again = bits & kNextMultiplies;
    if constexpr (kDelta) {
      if (bits & kMultiplies) {
        multiply_T();
        load_U(u, scale, bits & kMultiplies);
        if (again) begin_T();
        wgmma_wait<3>();
        if (again) fetch_T<0>();
        wgmma_wait<2>();
        if (again) fetch_T<1>();
        wgmma_wait<1>();
        if (again) fetch_T<2>();
        wgmma_wait<0>();
        wgmma_operand(product_);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) S_[j][c] = product_[j][c] + product_[4 + j][c];
        named_sync<kStateEverywhere, L::kStateThreads>();  // before S is published in the same place
      }
    }
    if ((bits & kApplies) && !(kDelta && (bits & kMultiplies))) load_U(u, scale, bits & kMultiplies);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        S_[j][c] = (bits & kLasts) || !(bits & kApplies) ? u[j][c] : (c < 2 ? scale.x : scale.y) * S_[j][c] + u[j][c];
    publish(needs_whole(next));
    announced_ = false;
    if (bits & kRowsFollow) announce();
    if (!(bits & kApplies)) return;
    if (kDelta && (bits & kMultiplies) && again) {
      fetch_T<3>();
      end_T();
    } else if (bits & kNextApplies) {
      fetch(items, n, count, again);
    }
  }
  // T S and what is to be added, as good as in float32 (three products of bf16, two of them at once: the fewer the
  // sooner, for each takes as long as A comes from registers).
  __device__ void multiply_T() {
    named_sync<kStateEverywhere, L::kStateThreads>();
    const uint64_t S = wgmma_tile(shared_address(shared_) + L::kState);
    wgmma_begin();
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m) {
      const uint64_t at = matrix_at(S, m / 4 * L::kHalf + m % 4 * 32);
      wgmma<2 * kJumpsColumns>(product_, T_lead_[m], at, m > 0);
      wgmma<kJumpsColumns>(reinterpret_cast<float(&)[4][4]>(product_), T_rest_[m], at, true);
      if ((m + 1) % (kDk / 64) == 0) wgmma_commit();
    }
  }
  // The next U, turned, and what this thread's two rows of S are scaled by.
  __device__ void load_U(float (&u)[4][4], float2& scale, bool transfer) {
    const uint32_t shared = shared_address(shared_);
    barrier_wait(shared + L::kFullU + stage_.at * 8, stage_.parity);
    const char* const U = shared_ + L::kU + stage_.at * L::kStage + t_ % 2 * 8;
    const float* const scales = reinterpret_cast<const float*>(shared_ + L::kScale) + stage_.at * L::kScales;
    scale = {1, 1};
    if constexpr (L::kScales > 1) {
      if (transfer) scale = {scales[row_], scales[row_ + 8]};
    } else if (transfer && p_.log_scale) {
      scale.x = scale.y = expf(*scales);
    }
    const int other = turns_ ? row_ < p_.rotations.pairs ? p_.rotations.pairs : -p_.rotations.pairs : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto pair = [&](int row) { return *reinterpret_cast<const float2*>(U + u_at(row, 2 * j + t_ / 2)); };
        float2 x = pair(row_ + 8 * half);
        if constexpr (!kDelta)
          if (turns_) {  // key dims (i, i + pairs)
            const float2 y = pair(row_ + other + 8 * half), r = turn_[half];
            const float sine = other > 0 ? -r.y : r.y;
            x = {r.x * x.x + sine * y.x, r.x * x.y + sine * y.y};
          }
        u[j][2 * half] = x.x;
        u[j][2 * half + 1] = x.y;
      }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared + L::kEmptyU + stage_.at * 8);
    stage_.next();
  }

  __device__ void step(uint32_t bits, uint32_t next) {
    announce();
    named_sync<kRowsThere, L::kStepThreads>();
    announced_ = false;
    if (bits & kKeeps) {
      add_rows(static_cast<int>(bits >> kRowsShift));
      publish(needs_whole(next));
    }
    if (bits & kRowsFollow) announce();
  }
  // S ← decay S + Zᵀ Y.
  __device__ void add_rows(int rows) {
    const int lane = threadIdx.x % 32, z_row = lane / 16 * 8 + lane % 8;
    const uint32_t Z =
        shared_address(shared_) + L::kZ + z_row * kDk * 2 + (swizzle_128(z_row, 2 * warp_ + lane / 8 % 2) << 4);
    const char* const Y = shared_ + L::kYEnd + (g_ * L::kYPitch + 2 * t_) * 2;
    const float* const decays = reinterpret_cast<const float*>(shared_ + L::kDecay);
    float2 decay;
    if constexpr (kDiagonal)
      decay = {decays[row_], decays[row_ + 8]};  // of rows; see decay_by
    else
      decay = *reinterpret_cast<const float2*>(decays);  // S ← x S + y S
#pragma unroll
    for (int b = 0; b < kChunkRows / 16; ++b) {
      if (16 * b >= rows) break;
      uint32_t z[4];
      ldmatrix_x4_trans(z, Z + b * 16 * kDk * 2);
      if (b == 0)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            S_[j][c] =
                kDiagonal ? decay_by(c < 2 ? decay.x : decay.y, S_[j][c]) : decay.x * S_[j][c] + decay.y * S_[j][c];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (16 * b + 8 * i < rows)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            mma_bf16_k8(S_[j], {z[2 * i], z[2 * i + 1]},
                        *reinterpret_cast<const uint32_t*>(Y + (8 * j * L::kYPitch + 16 * b + 8 * i) * 2));
    }
  }

  const ChunkedArgs& p_;
  const JumpsWork& w_;
  char* const shared_;
  const int warp_ = threadIdx.x / 32, g_ = threadIdx.x % 32 / 4, t_ = threadIdx.x % 4, row_ = 16 * warp_ + g_;
  float S_[4][4] = {};
  float product_[kDelta ? 8 : 1][4];  // T S
  bool announced_ = false;            // to the warps of rows
  RingPlace<L::kStages> stage_;
  RingPlace<kDelta ? L::kSlots : 1> slot_;
  // Of the next jump.
  uint32_t T_lead_[kDelta ? kDk / 16 : 1][4], T_rest_[kDelta ? kDk / 16 : 1][4];
  float2 turn_[2] = {};
  bool turns_ = false;
};

// ---- The warps of rows

// With a decay a key dim, K and Q have it, Z has β, and rows have no gates: see chunked_diagonal.cuh.
template <bool kDelta, int kDk, bool kDiagonal>
class RowsWarps {
 public:
  __device__ RowsWarps(const ChunkedArgs& p, const JumpsWork& w, char* shared)
      : p_(p), w_(w), shared_(shared), warp_(threadIdx.x / 32 - L::kStateWarps), column_(w.column + 8 * warp_) {}

  __device__ void run() {
    each_part(p_, w_, shared_ + L::kPart, [&](const ChainItem* items, int count, int32_t begin) {
      const auto next = [&](int n) {
        while (n < count && !has_rows(items[n])) ++n;
        return n;
      };
      uint32_t S[kDk / 32][4];
      int n = next(0);
      if (n < count) fetch(items[n], begin + n, 0);
      for (; n < count; n = next(n + 1)) {
        const int rows = items[n].end - items[n].begin;
        make_ready(rows, 0);
        named_sync<kStateThere, L::kStepThreads>();
        load_state(S);
        for (int row = 0; row < rows; row += 8) {
          const bool more = row + 8 < rows;
          run_rows(items[n], row, S, [&] {
            const int after = more ? n : next(n + 1);
            if (after < count) fetch(items[after], begin + after, more ? row + 8 : 0);
          });
          if (more) make_ready(rows, row + 8);
        }
      }
    });
  }

 private:
  using L = Jumps<kDelta, kDk, kDiagonal>;

  // What a thread needs of eight rows of a step, item `number`, row g of them; past the end zeros.
  __device__ void fetch(const ChainItem& item, int32_t number, int row) {
    const int rows = item.end - item.begin, kh = w_.h / p_.group;
    const bool valid = row + g_ < rows;
    const int32_t r = item.begin + (valid ? row + g_ : row);
    const auto pair = [&](const __nv_bfloat16* from) { return valid ? *reinterpret_cast<const uint32_t*>(from) : 0u; };
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kDelta) kq_[m][2 * i] = pair(p_.k.row(r, kh) + 16 * m + 8 * i + 2 * t_);
        kq_[m][2 * i + 1] = pair(p_.q.row(r, kh) + 16 * m + 8 * i + 2 * t_);
      }
    v_ = column_ < p_.dv ? pair(p_.v.row(r, w_.h) + column_ + 2 * t_) : 0u;
    if constexpr (kDiagonal) {
      gates_ = valid ? float4{1, 1, 1, 0} : float4{0, 0, 0, 0};
      if (dim() < kDk) decay_.x = decays_of<kDk>(p_, number, item.begin, w_.h)[dim()];
    } else {
      gates_ = valid ? p_.gates[w_.h * p_.rows + r] : float4{0, 0, 0, 0};
    }
    const __nv_bfloat16* const M =
        p_.M + (r * static_cast<int64_t>(p_.Hv) + w_.h) * kChunkRows + row / 16 * 16 + 2 * t_;
    m_[0] = pair(M);
    m_[1] = row % 16 > 0 ? pair(M + 8) : 0u;
    if (z_row() < 8) {
      const bool z_valid = row + z_row() < rows;
      const int32_t zr = item.begin + (z_valid ? row + z_row() : row);
      const __nv_bfloat16* Z;
      if constexpr (kDelta)
        Z = p_.Z + (zr * static_cast<int64_t>(p_.Hv) + w_.h) * kDk;
      else
        Z = p_.k.row(zr, kh);
      z_ = z_valid ? *reinterpret_cast<const uint4*>(Z + z_chunk() * 8) : uint4{0, 0, 0, 0};
    }
  }
  // What can be had of the fetched rows before S is there.
  __device__ void make_ready(int rows, int row) {
    const float2 v = unpack_bf16(v_);
    beta_v_[0] = gates_.x * v.x;
    beta_v_[1] = gates_.x * v.y;
    beta_decay_ = gates_.x * gates_.y;
    if (!kDiagonal && row + g_ == rows - 1)  // as Decaying
      decay_ = gates_.w > -0.5f ? float2{1, expm1f(gates_.w)} : float2{expf(gates_.w), 0};
    asm volatile("" : "+f"(beta_v_[0]), "+f"(beta_v_[1]), "+f"(beta_decay_), "+f"(decay_.x), "+f"(decay_.y));
  }
  // The key dim whose decay a thread hands over.
  __device__ int dim() const { return static_cast<int>(threadIdx.x) - L::kStateThreads; }
  // The 16 bytes of Zᵀ that it hands over.
  __device__ int z_row() const { return (threadIdx.x - L::kStateThreads) / (kDk / 8); }
  __device__ int z_chunk() const { return threadIdx.x % (kDk / 8); }

  __device__ void load_state(uint32_t (&S)[kDk / 32][4]) const {
    const int lane = threadIdx.x % 32, column = 8 * warp_ + lane % 8;
    const uint32_t at = shared_address(shared_) + L::kState + column * 128;
#pragma unroll
    for (int j = 0; j < kDk / 32; ++j) {
      const int chunk = 4 * j + lane / 8;
      ldmatrix_x4(S[j], at + chunk / 8 * L::kHalf + (swizzle_128(column, chunk % 8) << 4));
    }
  }

  // The eight rows from `row` on of a step, which were fetched; fetches the next.
  template <class FetchNext>
  __device__ void run_rows(const ChainItem& item, int row, const uint32_t (&S)[kDk / 32][4], FetchNext fetch_next) {
    const int rows = item.end - item.begin;
    if (z_row() < 8)
      *reinterpret_cast<uint4*>(shared_ + L::kZ + (row + z_row()) * kDk * 2 + (swizzle_128(z_row(), z_chunk()) << 4)) =
          z_;
    float s[4][4] = {};  // K S and Q S
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m) mma_bf16(s[m % 4], kq_[m], S[m / 2][m % 2 * 2], S[m / 2][m % 2 * 2 + 1]);
#pragma unroll
    for (int c = 0; c < 4; ++c) s[0][c] = (s[0][c] + s[1][c]) + (s[2][c] + s[3][c]);
    const float4 gates = gates_;
    const float2 v = unpack_bf16(v_);
    const float y0 = beta_v_[0] - beta_decay_ * s[0][0], y1 = beta_v_[1] - beta_decay_ * s[0][1];
    put(row, pack_bf16(y0, y1), pack_bf16(gates.z * y0, gates.z * y1));
    if (row + 8 >= rows) {
      if constexpr (kDiagonal) {
        if (dim() < kDk) reinterpret_cast<float*>(shared_ + L::kDecay)[dim()] = decay_.x;
      } else if (warp_ == 0 && t_ == 0 && row + g_ == rows - 1) {
        *reinterpret_cast<float2*>(shared_ + L::kDecay) = decay_;
      }
      named_arrive<kRowsThere, L::kStepThreads>();
    }
    const uint32_t last[4] = {m_[0], 0, m_[1], 0};
    fetch_next();

    // O of row g is in the lower half of C. Right of these rows there is no Y yet.
    __syncwarp();
    const bool valid = row + g_ < rows;
    const int32_t r = item.begin + (valid ? row + g_ : row);
    const float out = p_.scale * gates.y;
    float o[4] = {out * s[0][2], out * s[0][3], 0, 0};
    const char* const Y = shared_ + L::kY + ((8 * warp_ + g_) * L::kYPitch + 2 * t_) * 2;
    const auto y = [&](int at) { return *reinterpret_cast<const uint32_t*>(Y + at * 2); };
    for (int k = 0; k < row / 16 * 16; k += 16) {
      const __nv_bfloat16* const M = p_.M + (r * static_cast<int64_t>(p_.Hv) + w_.h) * kChunkRows + k + 2 * t_;
      const auto pair = [&](int at) { return valid ? *reinterpret_cast<const uint32_t*>(M + at) : 0u; };
      mma_bf16(o, {pair(0), 0, pair(8), 0}, y(k), y(k + 8));
    }
    const int k = row / 16 * 16;
    mma_bf16(o, last, y(k), row > k ? y(k + 8) : 0u);
    if (valid && column_ < p_.dv) {
      const float skip = p_.skip ? p_.skip[w_.h] : 0.0f;
      *reinterpret_cast<uint32_t*>(p_.o.row(r, w_.h) + column_ + 2 * t_) =
          pack_bf16(o[0] + skip * v.x, o[1] + skip * v.y);
    }
    __syncwarp();
  }
  // Rows `row` + g of this warp's Y, and of Y at the end of the step, in shared memory transposed.
  __device__ void put(int row, uint32_t y, uint32_t y_end) const {
    const int lane = threadIdx.x % 32;
    stmatrix_x2_trans(
        shared_address(shared_) + (lane / 8 % 2 ? L::kYEnd : L::kY) + ((8 * warp_ + lane % 8) * L::kYPitch + row) * 2,
        y, y_end);
  }

  const ChunkedArgs& p_;
  const JumpsWork& w_;
  char* const shared_;
  const int warp_, column_, g_ = threadIdx.x % 32 / 4, t_ = threadIdx.x % 4;
  // Of the next rows: A of [K; Q], v, gates, M of the last 16 columns that they have, Z.
  uint32_t kq_[kDk / 16][4] = {}, v_ = 0, m_[2] = {};
  float4 gates_{};
  uint4 z_{};
  float beta_v_[2] = {}, beta_decay_ = 0;
  float2 decay_{};
};

// Block x: columns x % parts of head x / parts % Hv of spans[first + …], whose steps are at most a chunk long; a
// cluster's blocks have the same head.
template <bool kDelta, int kDk, bool kDiagonal>
__global__ void __launch_bounds__(Jumps<kDelta, kDk, kDiagonal>::kThreads, 1)
    jumps_kernel(ChunkedArgs p, int32_t first, int parts) {
  using L = Jumps<kDelta, kDk, kDiagonal>;
  extern __shared__ __align__(1024) char jumps_shared[];
  const uint32_t base = shared_address(jumps_shared);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < L::kSlots; ++slot) {
      barrier_init(base + L::kFullT + slot * 8, 1);
      barrier_init(base + L::kEmptyT + slot * 8, 4 * cluster_size());
    }
    for (int stage = 0; stage < L::kStages; ++stage) {
      barrier_init(base + L::kFullU + stage * 8, kJumpsCopyThreads);
      barrier_init(base + L::kEmptyU + stage * 8, L::kStateWarps);
    }
    barrier_init_fence();
  }
  cluster_barrier();
  const int32_t head = static_cast<int32_t>(blockIdx.x) / parts;
  const ChainSpan& span = p.table.spans[first + head / p.Hv];
  const JumpsWork w{head % p.Hv,     static_cast<int>(blockIdx.x) % parts * kJumpsColumns,
                    span.item_begin, span.item_end,
                    span.state,      span.fresh};
  if (warp < L::kStateWarps) {
    take_registers<160>();
    StateWarps<kDelta, kDk, kDiagonal>(p, w, jumps_shared).run();
  } else if (warp < L::kStateWarps + kRowsWarps) {
    RowsWarps<kDelta, kDk, kDiagonal>(p, w, jumps_shared).run();
  } else {
    give_registers<64>();
    copy_operators<kDelta, kDk, kDiagonal>(p, w, jumps_shared);
    __syncwarp();
  }
  cluster_barrier();  // nobody copies or arrives here any more
}

}  // namespace hypic::cuda
