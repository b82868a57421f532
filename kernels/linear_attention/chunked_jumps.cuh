// The state along spans of a chain that jump: see chunked.cuh. Such a span is a jump, then a few rows, then the next
// jump: what counts is how soon one product is followed by the next, and that T and U come as fast as memory gives
// them.
//
// A block holds 32 columns of S, a warp of it 16 rows, in accumulators of m16n8k16. Between two items S lies in
// shared memory as well, transposed, as a sum of two bf16: what the next product reads. Three kinds of warps:
//
//   state  S ← scale · T S + U, with T as A of wgmma, from float32 in shared memory by way of registers; S ← decay S
//          + Zᵀ Y. T of the next jump comes to registers while the rows before it are at work.
//   rows   Y and O of steps, eight rows at a time, 8 columns of S a warp; they hand over Zᵀ as well
//   copy   one warp T, the others U, into rings in shared memory. The blocks of a cluster have the same head: each
//          copies a part of T to all of them.
//
// State warps read no global memory: publishing S waits for all that they have under way.
#pragma once

#include "kernels/linear_attention/chunked_args.cuh"
#include "kernels/linear_attention/chunked_plan.h"
#include "kernels/linear_attention/decaying.cuh"
#include "kernels/linear_attention/hopper.cuh"

namespace hypic::cuda {

inline constexpr int kRowsWarps = kJumpsColumns / 8;
inline constexpr int kRowsThreads = kRowsWarps * 32;
inline constexpr int kCopyUThreads = 96;
inline constexpr int kItems = 128;  // that lie in shared memory at a time

template <bool kDelta, int kDk>
struct Jumps {
  static constexpr int kStateWarps = kDk / 16, kStateThreads = kStateWarps * 32;
  static constexpr int kThreads = kStateThreads + kRowsThreads + 32 + kCopyUThreads;  // whole groups of four warps
  static constexpr int kHalves = kDk / 64;                                            // of T, 64 rows: a group's
  static constexpr int kStepThreads = kStateThreads + kRowsThreads;

  // Shared memory. T: rows apart by 8 banks, so that pairs of floats of four rows touch every bank once.
  static constexpr int kSlots = kDelta ? 4 : 0, kPitch = kDk * 4 + 32, kSlot = 64 * kPitch;
  static constexpr int kStages = kDelta ? 2 : 6, kStage = kDk * kJumpsColumns * 4;  // of U
  static constexpr int kAtom = kJumpsColumns * 128, kTile = kHalves * kAtom;        // Sᵀ, [32][kDk] by 64 of them
  static constexpr int kYPitch = kChunkRows + 8;                                    // numbers
  static constexpr int kState = 0;                                                  // leading, remaining parts
  static constexpr int kZ = kState + (kDelta ? 2 : 1) * kTile;                      // [64][kDk]
  static constexpr int kU = kZ + kChunkRows * kDk * 2;
  static constexpr int kT = kU + kStages * kStage;
  static constexpr int kY = kT + kSlots * kSlot, kYEnd = kY + kJumpsColumns * kYPitch * 2;
  static constexpr int kFullT = kYEnd + kJumpsColumns * kYPitch * 2, kEmptyT = kFullT + kSlots * 8;
  static constexpr int kFullU = kEmptyT + kSlots * 8, kEmptyU = kFullU + kStages * 8;
  static constexpr int kScale = kEmptyU + kStages * 8, kDecay = kScale + kStages * 4;
  static constexpr int kItem = kDecay + 4, kBytes = kItem + kItems * static_cast<int>(sizeof(ChainItem));
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

// Runs visit(items, count) over the span, all threads of the block together, a part in shared memory at a time.
template <class Visit>
__device__ inline void each_part(const ChunkedArgs& p, const JumpsWork& w, char* shared, Visit visit) {
  static_assert(sizeof(ChainItem) % 4 == 0);
  constexpr int kWords = sizeof(ChainItem) / 4;
  for (int32_t begin = w.item_begin; begin < w.item_end; begin += kItems) {
    const int count = min(kItems, w.item_end - begin);
    block_barrier();
    for (int i = threadIdx.x; i < count * kWords; i += blockDim.x)
      reinterpret_cast<int32_t*>(shared)[i] = reinterpret_cast<const int32_t*>(p.table.items + begin)[i];
    block_barrier();
    visit(reinterpret_cast<const ChainItem*>(shared), count);
  }
}

// A place in a ring of kSize, and the parity of its round.
template <int kSize>
struct RingPlace {
  uint32_t at = 0, parity = 0;
  __device__ void next() {
    if (++at == kSize) {
      at = 0;
      parity ^= 1;
    }
  }
};

// ---- The warps that copy

template <bool kDelta, int kDk>
__device__ inline void copy_T(const ChunkedArgs& p, const JumpsWork& w, char* shared) {
  using L = Jumps<kDelta, kDk>;
  const uint32_t base = shared_address(shared), lane = threadIdx.x % 32;
  const uint32_t rank = cluster_rank(), blocks = cluster_size();
  RingPlace<kDelta ? L::kSlots : 1> slot;
  each_part(p, w, shared + L::kItem, [&](const ChainItem* items, int count) {
    for (int n = 0; kDelta && n < count; ++n) {
      if (!multiplies(items[n])) continue;
      const int64_t head = static_cast<int64_t>(items[n].op) * p.Hv + w.h;
      for (int half = 0; half < L::kHalves; ++half, slot.next()) {
        const uint32_t full = base + L::kFullT + slot.at * 8;
        mbarrier_wait(base + L::kEmptyT + slot.at * 8, slot.parity ^ 1);
        if (lane == 0) mbarrier_expect(full, 64 * kDk * 4);
        __syncwarp();
        for (uint32_t i = lane; i < 64 / blocks; i += 32) {
          const uint32_t row = rank * (64 / blocks) + i;
          bulk_copy(base + L::kT + slot.at * L::kSlot + row * L::kPitch, p.T + (head * kDk + 64 * half + row) * kDk,
                    kDk * 4, full, blocks);
        }
      }
    }
  });
}

// 16 bytes of U: eight lanes' pairs of floats in four rows touch every bank once.
__device__ inline int u_at(int row, int chunk) { return row * 128 + ((chunk ^ 2 * (row & 3)) << 4); }

template <bool kDelta, int kDk>
__device__ inline void copy_U(const ChunkedArgs& p, const JumpsWork& w, char* shared) {
  using L = Jumps<kDelta, kDk>;
  const uint32_t base = shared_address(shared);
  const int thread = threadIdx.x - (L::kThreads - kCopyUThreads), valid = (p.dv - w.column) / 4;
  RingPlace<L::kStages> stage;
  each_part(p, w, shared + L::kItem, [&](const ChainItem* items, int count) {
    for (int n = 0; n < count; ++n) {
      if (!applies(items[n])) continue;
      const int64_t head = static_cast<int64_t>(items[n].op) * p.Hv + w.h;
      const float* const from = p.U + head * kDk * p.dv + w.column;
      mbarrier_wait(base + L::kEmptyU + stage.at * 8, stage.parity ^ 1);
#pragma unroll 4
      for (int e = thread; e < kDk * 8; e += kCopyUThreads)
        if (e % 8 < valid)
          cp_async_16(base + L::kU + stage.at * L::kStage + u_at(e / 8, e % 8),
                      from + e / 8 * static_cast<int64_t>(p.dv) + e % 8 * 4);
      if (thread == 0 && p.log_scale) cp_async_4(base + L::kScale + stage.at * 4, p.log_scale + head);
      mbarrier_arrive_copied(base + L::kFullU + stage.at * 8);
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

template <bool kDelta, int kDk>
class StateWarps {
 public:
  __device__ StateWarps(const ChunkedArgs& p, const JumpsWork& w, char* shared) : p_(p), w_(w), shared_(shared) {}

  __device__ void run() {
    if (!w_.fresh) load(S_, slot(w_.state));
    publish();
    each_part(p_, w_, shared_ + L::kItem, [&](const ChainItem* items, int count) {
      fetch(items, 0, count);
      for (int n = 0; n < count; ++n) {
        const ChainItem& item = items[n];
        const bool rows_follow = n + 1 < count && has_rows(items[n + 1]);
        if (item.kind == ChainItem::Kind::jump)
          jump(item, rows_follow);
        else if (has_rows(item))
          step(item, rows_follow);
        if (applies(item)) fetch(items, n + 1, count);
        if (item.save != kNone) store(S_, slot(item.save));
      }
    });
    store(S_, slot(w_.state));
  }

 private:
  using L = Jumps<kDelta, kDk>;

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
  // S into shared memory.
  __device__ void publish() {
    const int lane = threadIdx.x % 32, chunk = 2 * warp_ + lane / 8 % 2;
    const uint32_t tile = shared_address(shared_) + L::kState + chunk / 8 * L::kAtom;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = 8 * (2 * j + lane / 16) + lane % 8;
      const uint32_t at = tile + column * 128 + (swizzle_128(column, chunk % 8) << 4);
      uint32_t lead[4], rest[4];
      split_A(lead, rest, S_[2 * j], S_[2 * j + 1]);
      stmatrix_x4_trans(at, lead);
      if constexpr (kDelta) stmatrix_x4_trans(at + L::kTile, rest);
    }
    if constexpr (kDelta) wgmma_publish();
  }

  // What can be had early of the first jump from item n on.
  __device__ void fetch(const ChainItem* items, int n, int count) {
    while (n < count && !applies(items[n])) ++n;
    if (n == count) return;
    if constexpr (kDelta) {
      if (multiplies(items[n])) fetch_T();
    } else {
      const int pairs = p_.rotations.pairs;  // a multiple of 16
      turns_ = pairs > 0 && items[n].shift != 0 && row_ - g_ < 2 * pairs;
      if (turns_)
#pragma unroll
        for (int half = 0; half < 2; ++half) turn_[half] = p_.rotations.at(items[n].shift, row_ % pairs + 8 * half);
    }
  }
  __device__ void fetch_T() {
    if (warp_ / 4 > 0) slot_.next();
    const uint32_t shared = shared_address(shared_);
    mbarrier_wait(shared + L::kFullT + slot_.at * 8, slot_.parity);
    const char* const T = shared_ + L::kT + slot_.at * L::kSlot + (warp_ % 4 * 16 + g_) * L::kPitch + t_ * 8;
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = *reinterpret_cast<const float2*>(T + i % 2 * 8 * L::kPitch + m * 64 + i / 2 * 32);
        split_bf16(x.x, x.y, T_lead_[m][i], T_rest_[m][i]);
      }
    __syncwarp();
    const uint32_t lane = threadIdx.x % 32;
    if (lane < cluster_size()) mbarrier_arrive(shared + L::kEmptyT + slot_.at * 8, lane);
    slot_.next();
    if (warp_ / 4 + 1 < L::kHalves) slot_.next();
  }

  __device__ void jump(const ChainItem& item, bool rows_follow) {
    if (item.compose == Compose::zero) {
#pragma unroll
      for (int i = 0; i < 16; ++i) S_[i / 4][i % 4] = 0;
    } else {
      if constexpr (kDelta)
        if (item.compose == Compose::transfer) multiply_T();
      add_U(item.compose);
    }
    publish();
    announced_ = false;
    if (rows_follow) announce();
  }
  // S ← T S, as good as in float32 (three products of bf16).
  __device__ void multiply_T() {
    named_sync<kStateEverywhere, L::kStateThreads>();
    const uint32_t tile = shared_address(shared_) + L::kState;
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m) {
      const uint32_t at = tile + m / 4 * L::kAtom + m % 4 * 32;
      const uint64_t lead = wgmma_tile(at), rest = wgmma_tile(at + L::kTile);
      wgmma<kJumpsColumns>(S_, T_lead_[m], lead, m > 0);
      wgmma<kJumpsColumns>(S_, T_rest_[m], lead, true);
      wgmma<kJumpsColumns>(S_, T_lead_[m], rest, true);
    }
    wgmma_commit();
    wgmma_wait();
    named_sync<kStateEverywhere, L::kStateThreads>();  // before S is published in the same place
  }
  __device__ void add_U(Compose compose) {
    const uint32_t shared = shared_address(shared_);
    mbarrier_wait(shared + L::kFullU + stage_.at * 8, stage_.parity);
    const char* const U = shared_ + L::kU + stage_.at * L::kStage + t_ % 2 * 8;
    const float scale = compose == Compose::transfer && p_.log_scale
                            ? expf(*reinterpret_cast<const float*>(shared_ + L::kScale + stage_.at * 4))
                            : 1.0f;
    const int other = turns_ ? row_ < p_.rotations.pairs ? p_.rotations.pairs : -p_.rotations.pairs : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto pair = [&](int row) { return *reinterpret_cast<const float2*>(U + u_at(row, 2 * j + t_ / 2)); };
        float2 u = pair(row_ + 8 * half);
        if constexpr (!kDelta)
          if (turns_) {  // key dims (i, i + pairs)
            const float2 v = pair(row_ + other + 8 * half), r = turn_[half];
            const float sine = other > 0 ? -r.y : r.y;
            u = {r.x * u.x + sine * v.x, r.x * u.y + sine * v.y};
          }
        float &s0 = S_[j][2 * half], &s1 = S_[j][2 * half + 1];
        s0 = compose == Compose::last ? u.x : scale * s0 + u.x;
        s1 = compose == Compose::last ? u.y : scale * s1 + u.y;
      }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(shared + L::kEmptyU + stage_.at * 8);
    stage_.next();
  }

  __device__ void step(const ChainItem& item, bool rows_follow) {
    announce();
    named_sync<kRowsThere, L::kStepThreads>();
    announced_ = false;
    if (item.keep) {
      add_rows(item.end - item.begin);
      publish();
    }
    if (rows_follow) announce();
  }
  // S ← decay S + Zᵀ Y.
  __device__ void add_rows(int rows) {
    const Decaying decay(*reinterpret_cast<const float*>(shared_ + L::kDecay));
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) S_[j][c] = decay(S_[j][c], 0);
    const int lane = threadIdx.x % 32, z_row = lane / 16 * 8 + lane % 8;
    const uint32_t Z =
        shared_address(shared_) + L::kZ + z_row * kDk * 2 + (swizzle_128(z_row, 2 * warp_ + lane / 8 % 2) << 4);
    const char* const Y = shared_ + L::kYEnd + (g_ * L::kYPitch + 2 * t_) * 2;
#pragma unroll
    for (int b = 0; b < kChunkRows / 16; ++b) {
      if (16 * b >= rows) break;
      uint32_t z[4];
      ldmatrix_x4_trans(z, Z + b * 16 * kDk * 2);
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
  bool announced_ = false;  // to the warps of rows
  RingPlace<L::kStages> stage_;
  RingPlace<kDelta ? L::kSlots : 1> slot_;
  // Of the next jump.
  uint32_t T_lead_[kDelta ? kDk / 16 : 1][4], T_rest_[kDelta ? kDk / 16 : 1][4];
  float2 turn_[2] = {};
  bool turns_ = false;
};

// ---- The warps of rows

template <bool kDelta, int kDk>
class RowsWarps {
 public:
  __device__ RowsWarps(const ChunkedArgs& p, const JumpsWork& w, char* shared)
      : p_(p), w_(w), shared_(shared), warp_(threadIdx.x / 32 - L::kStateWarps), column_(w.column + 8 * warp_) {}

  __device__ void run() {
    each_part(p_, w_, shared_ + L::kItem, [&](const ChainItem* items, int count) {
      const auto next = [&](int n) {
        while (n < count && !has_rows(items[n])) ++n;
        return n;
      };
      uint32_t S[kDk / 32][4];
      int n = next(0);
      if (n < count) fetch(items[n], 0);
      for (; n < count; n = next(n + 1)) {
        const int rows = items[n].end - items[n].begin;
        named_sync<kStateThere, L::kStepThreads>();
        load_state(S);
        for (int row = 0; row < rows; row += 8) {
          const bool more = row + 8 < rows;
          const int after = more ? n : next(n + 1);
          run_rows(items[n], row, S, [&] {
            if (after < count) fetch(items[after], more ? row + 8 : 0);
          });
        }
      }
    });
  }

 private:
  using L = Jumps<kDelta, kDk>;

  // What a thread needs of eight rows of a step, row g of them; past the end zeros.
  __device__ void fetch(const ChainItem& item, int row) {
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
    gates_ = valid ? p_.gates[w_.h * p_.rows + r] : float4{0, 0, 0, 0};
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
  // The 16 bytes of Zᵀ that a thread hands over.
  __device__ int z_row() const { return (threadIdx.x - L::kStateThreads) / (kDk / 8); }
  __device__ int z_chunk() const { return threadIdx.x % (kDk / 8); }

  __device__ void load_state(uint32_t (&S)[kDk / 32][4]) const {
    const int lane = threadIdx.x % 32, column = 8 * warp_ + lane % 8;
    const uint32_t at = shared_address(shared_) + L::kState + column * 128;
#pragma unroll
    for (int j = 0; j < kDk / 32; ++j) {
      const int chunk = 4 * j + lane / 8;
      ldmatrix_x4(S[j], at + chunk / 8 * L::kAtom + (swizzle_128(column, chunk % 8) << 4));
    }
  }

  // The eight rows from `row` on of a step, which were fetched; fetches the next.
  template <class FetchNext>
  __device__ void run_rows(const ChainItem& item, int row, const uint32_t (&S)[kDk / 32][4], FetchNext fetch_next) {
    const int rows = item.end - item.begin;
    float s[2][4] = {};  // K S and Q S
#pragma unroll
    for (int m = 0; m < kDk / 16; ++m) mma_bf16(s[m % 2], kq_[m], S[m / 2][m % 2 * 2], S[m / 2][m % 2 * 2 + 1]);
    if (z_row() < 8)
      *reinterpret_cast<uint4*>(shared_ + L::kZ + (row + z_row()) * kDk * 2 + (swizzle_128(z_row(), z_chunk()) << 4)) =
          z_;
    const float4 gates = gates_;
    const float2 v = unpack_bf16(v_);
    const float y0 = gates.x * (v.x - gates.y * (s[0][0] + s[1][0]));
    const float y1 = gates.x * (v.y - gates.y * (s[0][1] + s[1][1]));
    put(L::kY, row, y0, y1);
    put(L::kYEnd, row, gates.z * y0, gates.z * y1);
    if (row + 8 >= rows) {
      if (warp_ == 0 && t_ == 0 && row + g_ == rows - 1) *reinterpret_cast<float*>(shared_ + L::kDecay) = gates.w;
      named_arrive<kRowsThere, L::kStepThreads>();
    }
    const uint32_t last[4] = {m_[0], 0, m_[1], 0};
    fetch_next();

    // O of row g is in the lower half of C. Right of these rows there is no Y yet.
    __syncwarp();
    const bool valid = row + g_ < rows;
    const int32_t r = item.begin + (valid ? row + g_ : row);
    const float out = p_.scale * gates.y;
    float o[4] = {out * (s[0][2] + s[1][2]), out * (s[0][3] + s[1][3]), 0, 0};
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
  // Row `row` + g of this warp's Y, in shared memory transposed.
  __device__ void put(int tile, int row, float y0, float y1) const {
    __nv_bfloat16* const to =
        reinterpret_cast<__nv_bfloat16*>(shared_ + tile) + (8 * warp_ + 2 * t_) * L::kYPitch + row + g_;
    to[0] = __float2bfloat16(y0);
    to[L::kYPitch] = __float2bfloat16(y1);
  }

  const ChunkedArgs& p_;
  const JumpsWork& w_;
  char* const shared_;
  const int warp_, column_, g_ = threadIdx.x % 32 / 4, t_ = threadIdx.x % 4;
  // Of the next rows: A of [K; Q], v, gates, M of the last 16 columns that they have, Z.
  uint32_t kq_[kDk / 16][4] = {}, v_ = 0, m_[2] = {};
  float4 gates_{};
  uint4 z_{};
};

// Block x: columns x % parts of head x / parts % Hv of spans[first + …], whose steps are at most a chunk long; a
// cluster's blocks have the same head.
template <bool kDelta, int kDk>
__global__ void __launch_bounds__(Jumps<kDelta, kDk>::kThreads, 1)
    jumps_kernel(ChunkedArgs p, int32_t first, int parts) {
  using L = Jumps<kDelta, kDk>;
  extern __shared__ __align__(1024) char jumps_shared[];
  const uint32_t base = shared_address(jumps_shared);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < L::kSlots; ++slot) {
      mbarrier_init(base + L::kFullT + slot * 8, 1);
      mbarrier_init(base + L::kEmptyT + slot * 8, 4 * cluster_size());
    }
    for (int stage = 0; stage < L::kStages; ++stage) {
      mbarrier_init(base + L::kFullU + stage * 8, kCopyUThreads);
      mbarrier_init(base + L::kEmptyU + stage * 8, L::kStateWarps);
    }
    mbarrier_init_fence();
  }
  cluster_barrier();
  const int32_t head = static_cast<int32_t>(blockIdx.x) / parts;
  const ChainSpan& span = p.table.spans[first + head / p.Hv];
  const JumpsWork w{head % p.Hv,     static_cast<int>(blockIdx.x) % parts * kJumpsColumns,
                    span.item_begin, span.item_end,
                    span.state,      span.fresh};
  if (warp < L::kStateWarps) {
    take_registers<168>();
    StateWarps<kDelta, kDk>(p, w, jumps_shared).run();
  } else if (warp < L::kStateWarps + kRowsWarps) {
    give_registers<112>();
    RowsWarps<kDelta, kDk>(p, w, jumps_shared).run();
  } else {
    give_registers<56>();
    if (warp == L::kStateWarps + kRowsWarps)
      copy_T<kDelta, kDk>(p, w, jumps_shared);
    else
      copy_U<kDelta, kDk>(p, w, jumps_shared);
    __syncwarp();
  }
  cluster_barrier();  // nobody copies or arrives here any more
}

}  // namespace hypic::cuda
