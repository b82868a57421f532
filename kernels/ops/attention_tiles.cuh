// What the tensor-core kernels of attention share: tiles of rows, and where their results go.
#pragma once

#include "core/backend.h"
#include "kernels/common/device_table.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/rotation_table.cuh"
#include "kernels/common/scratch.cuh"
#include "kernels/common/view.cuh"
#include "kernels/ops/attention_plan.h"

namespace hypic::cuda {

using bf16 = __nv_bfloat16;
inline constexpr unsigned kAll = 0xffffffffu;  // lanes

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
  float* parts;       // [parts, D] sums of V, where the keys of a row lie in several parts
  float2* part_sums;  // [parts] largest exponent (base 2) and divisor
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
__device__ inline RowTile row_tile(const Params& p, int tile_rows, int tile, int kv) {
  RowTile rows;
  rows.kv = kv;
  rows.group = p.group;
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

// Puts Q of kRows rows into shared memory, its first dims rotated by distance(row), each chunk of 8 dims where
// chunk_at(row, chunk) points. q_at(row): where the row lies; null: there is none, and its Q is zero. `all`: also the
// dims without rotation. For kThreads threads, a multiple of which lie before them in their block.
template <int D, int kRows, int kThreads, class QAt, class Distance, class ChunkAt>
__device__ void stage_rotated(const RotationTable& rotation, bool all, const QAt& q_at, const Distance& distance,
                              const ChunkAt& chunk_at) {
  constexpr int kStep = kThreads / (D / 8), kBatch = kRows / kStep < 8 ? kRows / kStep : 8;  // loads under way at once
  static_assert(kThreads % (D / 8) == 0 && kRows % (kStep * kBatch) == 0);
  const int pair_chunks = rotation.pairs / 8, thread = threadIdx.x % kThreads;
  const int first = thread / (D / 8), chunk = thread % (D / 8);
  if (all && chunk >= 2 * pair_chunks) {
    for (int row = first; row < kRows; row += kStep * kBatch) {
      uint4 chunks[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const bf16* q = q_at(row + i * kStep);
        chunks[i] = q ? *reinterpret_cast<const uint4*>(q + chunk * 8) : uint4{};
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) *chunk_at(row + i * kStep, chunk) = chunks[i];
    }
  }
#pragma unroll 2
  for (int c = thread; c < kRows * pair_chunks; c += kThreads) {
    const int row = c / pair_chunks, chunk = c % pair_chunks;
    uint32_t low[4] = {}, high[4] = {};
    if (const bf16* q = q_at(row)) {
      const uint4 x4 = *reinterpret_cast<const uint4*>(q + chunk * 8);
      const uint4 y4 = *reinterpret_cast<const uint4*>(q + chunk * 8 + rotation.pairs);
      const uint32_t x2[4] = {x4.x, x4.y, x4.z, x4.w}, y2[4] = {y4.x, y4.y, y4.z, y4.w};
      const int32_t by = distance(row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = chunk * 8 + 2 * i;
        const float2 a = rotation.at(by, pair), b = rotation.at(by, pair + 1);
        const float2 x = unpack_bf16(x2[i]), y = unpack_bf16(y2[i]);
        low[i] = pack_bf16(a.x * x.x - a.y * y.x, b.x * x.y - b.y * y.y);
        high[i] = pack_bf16(a.y * x.x + a.x * y.x, b.y * x.y + b.x * y.y);
      }
    }
    *chunk_at(row, chunk) = {low[0], low[1], low[2], low[3]};
    *chunk_at(row, chunk + pair_chunks) = {high[0], high[1], high[2], high[3]};
  }
}

// Where a row's result goes or, where `part` is not kNone, that part of it.
template <int D>
class RowWriter {
 public:
  __device__ RowWriter(const Params& p, const RowTile& rows, int row, int64_t part, float top, float divisor) {
    if (part == kNone) {
      out_ = p.out.row(rows.row_of(row), rows.head(row));
      inverse_ = 1 / divisor;
    } else {
      p.part_sums[part] = {top, divisor};
      part_ = p.parts + part * D;
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

// bf16 whose last axis lies in pieces of 16 bytes.
inline bool in_pieces(const Tensor& t) {
  const int last = t.rank - 1;
  bool yes = t.dtype == DType::bf16 && t.stride[last] == 1 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  for (int axis = 0; axis < last; ++axis) yes = yes && t.stride[axis] % 8 == 0;
  return yes;
}

inline bool attention_tiles_takes(const AttentionArgs& a, const TableUpload& table) {
  if (a.q.rank != 3 || a.out.rank != 3 || a.k_pages.rank != 4 || a.v_pages.rank != 4) return false;
  const int64_t D = a.q[2];
  return (D == 64 || D == 128 || D == 256) && a.out[2] == D && a.k_pages[3] == D && a.v_pages[3] == D &&
         a.rotary_dim % 16 == 0 && (a.rotary_dim == 0 || table.max_position() <= kMaxRotation) && a.scale > 0 &&
         in_pieces(a.q) && in_pieces(a.k_pages) && in_pieces(a.v_pages) && in_pieces(a.out);
}

inline AttentionShape attention_shape(const AttentionArgs& a, const TableUpload& table, int sms) {
  return {.sms = sms,
          .head_dim = static_cast<int>(a.q[2]),
          .kv_heads = static_cast<int>(a.k_pages[2]),
          .group = static_cast<int>(a.q[1] / a.k_pages[2]),
          .max_keys = table.max_keys()};
}

inline void check_attention(const AttentionArgs& a, const TableUpload& table) {
  Shapes shapes("attention");
  shapes.bind(a.q, "q", {"R", "Hq", "D"}).bind(a.out, "out", {"R", "Hq", "D"})
      .bind(a.k_pages, "k_pages", {"P", "page", "Hkv", "D"}).bind(a.v_pages, "v_pages", {"P", "page", "Hkv", "D"});
  HYPIC_CHECK(shapes["R"] == table.rows() && shapes["page"] == table.page_size());
  HYPIC_CHECK(shapes["Hq"] % shapes["Hkv"] == 0 && a.rotary_dim <= shapes["D"]);
}

// Bytes of so many parts, and after them the rest of a scratch.
inline size_t part_bytes(int64_t parts, const AttentionArgs& a) {
  return parts * (a.q[2] * sizeof(float) + sizeof(float2));
}

// Splits, and their chunk, are left to be set.
inline Params attention_params(const AttentionArgs& a, const TableUpload& table, int tiles, int64_t parts,
                               const Scratch& scratch) {
  return {.q = view<bf16>(a.q),
          .k = KvPages(a.k_pages),
          .v = KvPages(a.v_pages),
          .out = view<bf16>(a.out),
          .parts = scratch.as<float>(),
          .part_sums = reinterpret_cast<float2*>(scratch.as<float>() + parts * a.q[2]),
          .rows = static_cast<int>(a.q[0]),
          .kv_heads = static_cast<int>(a.k_pages[2]),
          .group = static_cast<int>(a.q[1] / a.k_pages[2]),
          .chains = static_cast<int>(table.chains().size()),
          .tiles = tiles,
          .splits = 1,
          .chunk = 0,
          .scale = static_cast<float>(a.scale * 1.4426950408889634),
          .rotation = rotation_table(a.rotary_dim, a.theta),
          .table = table.device()};
}

}  // namespace hypic::cuda
