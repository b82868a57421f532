// Elementwise decay along chains: steps of any length, their operators, and jumps.
//
// A block has kEntryChannels channels of a chain's head and goes along its rows, 32 at a time, whichever items they are
// of; a thread has kKeys entries of one channel in registers. What comes in is read one tile ahead, and lies in shared
// memory as float, by channels and key dims, so that a thread reads four rows at once. Products with q wait there too
// and are summed over key dims when the tile is done. Of a step with an operator, U goes along with S: it shares the
// decays and what is written, and T is the decay of the sum of Δ. What jumps read comes eight jumps ahead.
#pragma once

#include "kernels/common/mma.cuh"
#include "kernels/linear_attention/elementwise_args.cuh"

namespace hypic::cuda {

inline constexpr int kEntryTile = 32;
inline constexpr int kEntryJumps = 8;    // under way
inline constexpr int kEntryItems = 128;  // that lie in shared memory at a time

template <int kKeys>
struct EntryShared {
  static constexpr int kThreads = kEntryChannels * kEntryKeys / kKeys;
  static constexpr int kLanes = kEntryKeys / kKeys;  // of a channel
  static constexpr int kPitch = kEntryTile + 4;      // rows; a multiple of 4 that spreads columns over banks
  struct Tile {
    float delta[kEntryChannels][kPitch], d[kEntryChannels][kPitch];  // d = beta · v
    float k[kEntryKeys][kPitch], q[kEntryKeys][kPitch];
  };
  alignas(16) Tile tiles[2];
  float parts[kEntryChannels][kLanes][kPitch];  // of outputs
  float out[2][kEntryTile][kEntryChannels + 1];
  float jumps[kEntryJumps][2][kKeys][kThreads];  // T and U
  ChainItem items[kEntryItems];
};

template <class Element, int kKeys>
class EntryWalk {
  using Shared = EntryShared<kKeys>;
  static constexpr int kThreads = Shared::kThreads, kLanes = Shared::kLanes;
  static constexpr int kLoads = kEntryTile * kEntryChannels / kThreads;  // of a thread, of each array of a tile
  static constexpr int kRowsApart = kThreads / kEntryChannels;

 public:
  __device__ EntryWalk(const EntryArgs<Element>& p, Shared& shared, const Chain& chain, int h, int begin)
      : p_(p),
        shared_(shared),
        chain_(chain),
        h_(h),
        kh_(h / p.group),
        begin_(begin),
        channel_(threadIdx.x / kLanes),
        lane_(threadIdx.x % kLanes),
        g_at_(p.g, first_row(), h, first_column()),
        beta_at_(p.beta, first_row(), 0, h),
        v_at_(p.v, first_row(), h, first_column()),
        k_at_(p.k, first_row(), kh_, threadIdx.x % kEntryChannels),
        q_at_(p.q, first_row(), kh_, threadIdx.x % kEntryChannels),
        o_at_(p.o, first_row(), h, first_column()),
        fetched_(first_row()),
        tile_(chain.row_begin) {
#pragma unroll
    for (int s = 0; s < kKeys; ++s) {
      A_[s] = active(s) ? p.A[p.at(0, h) + entry(s)] : 0.0f;
      x_[s] = active(s) && !chain.fresh ? p.state[p.at(chain.state, h) + entry(s)] : 0.0f;
    }
  }

  __device__ void run() {
    int32_t r = chain_.row_begin, ahead = chain_.item_begin;
    if (r < chain_.row_end) begin_tiles();
    int jumps = 0;
    for (int32_t n = chain_.item_begin; n < chain_.item_end; ++n) {
      if (n >= items_end_) load_items(n);
      if (n == chain_.item_begin)
        for (int i = 0; i < kEntryJumps - 1; ++i) fetch_jump(ahead, i);
      const ChainItem item = item_at(n);
      if (item.kind == ChainItem::Kind::jump) {
        fetch_jump(ahead, (jumps + kEntryJumps - 1) % kEntryJumps);
        jump(item, jumps++ % kEntryJumps);
      } else if (item.op != kNone) {
        step<true>(item, r);
      } else {
        step<false>(item, r);
      }
      if (item.save != kNone) write(p_.state, item.save, x_);
    }
    if (chain_.row_begin < chain_.row_end) {
      sum_parts();
      __syncthreads();
      write_outputs();
    }
    write(p_.state, chain_.state, x_);
  }

 private:
  __device__ int32_t first_row() const { return chain_.row_begin + static_cast<int32_t>(threadIdx.x) / kEntryChannels; }
  __device__ int first_column() const { return begin_ + static_cast<int>(threadIdx.x) % kEntryChannels; }
  __device__ int key(int s) const { return lane_ + s * kLanes; }
  __device__ bool active(int s) const { return key(s) < p_.dk && begin_ + channel_ < p_.dv; }
  __device__ int entry(int s) const { return key(s) * p_.dv + begin_ + channel_; }
  __device__ void write(float* pool, int32_t slot, const float (&x)[kKeys]) const {
#pragma unroll
    for (int s = 0; s < kKeys; ++s)
      if (active(s)) pool[p_.at(slot, h_) + entry(s)] = x[s];
  }

  // Items from `begin` on into shared memory.
  __device__ void load_items(int32_t begin) {
    static_assert(sizeof(ChainItem) % 4 == 0);
    const int32_t end = min(begin + kEntryItems, chain_.item_end);
    const auto* from = reinterpret_cast<const int32_t*>(p_.table.items + begin);
    auto* to = reinterpret_cast<int32_t*>(shared_.items);
    __syncthreads();
    for (int i = threadIdx.x; i < (end - begin) * static_cast<int>(sizeof(ChainItem) / 4); i += kThreads)
      to[i] = from[i];
    __syncthreads();
    items_begin_ = begin;
    items_end_ = end;
  }
  __device__ const ChainItem& item_at(int32_t n) const {
    return n < items_end_ ? shared_.items[n - items_begin_] : p_.table.items[n];
  }

  // What a thread reads of tiles and writes: one column of every kRowsApart-th row.
  template <class X>
  struct Column {
    X* at;
    int64_t step;
    __device__ Column(const View<X>& view, int32_t r, int h, int j)
        : at(view ? view.row(r, h) + j : nullptr), step(kRowsApart * view.stride_r) {}
    // The next row's, and that of a tile later on its way to the L2 cache.
    __device__ X next(bool valid, bool more) {
      X x{};
      if (valid) x = *at;
      if (more) asm volatile("prefetch.global.L2 [%0];" ::"l"(at + kLoads * step));
      at += step;
      return x;
    }
  };
  // The rows of the next tile into registers, as they are, for to convert them would be to wait; zeros beyond the
  // chain, d_k and d_v.
  __device__ void fetch() {
    const int column = threadIdx.x % kEntryChannels;
    const bool channel = begin_ + column < p_.dv, key = column < p_.dk;
#pragma unroll
    for (int i = 0; i < kLoads; ++i, fetched_ += kRowsApart) {
      const bool row = fetched_ < chain_.row_end, more = fetched_ + kEntryTile < chain_.row_end;
      delta_[i] = g_at_.next(row && channel, more && channel);
      v_[i] = v_at_.next(row && channel, more && channel);
      k_[i] = k_at_.next(row && key, more && key);
      q_[i] = q_at_.next(row && key, more && key);
      if (p_.beta) beta_[i] = beta_at_.next(row, more);
    }
  }
  __device__ void place(int b) const {
    const int column = threadIdx.x % kEntryChannels;
    typename Shared::Tile& tile = shared_.tiles[b];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = threadIdx.x / kEntryChannels + i * kRowsApart;
      const float v = load(&v_[i]);
      tile.delta[column][row] = delta_[i];
      tile.d[column][row] = p_.beta ? beta_[i] * v : v;
      tile.k[column][row] = load(&k_[i]);
      tile.q[column][row] = load(&q_[i]);
    }
  }

  __device__ void begin_tiles() {
    fetch();
    place(0);
    __syncthreads();
    fetch();
  }
  // One barrier a tile: each buffer is written again only beyond the barrier after all have read it.
  __device__ void next_tile() {
    sum_parts();
    place(b_ ^ 1);
    __syncthreads();
    fetch();
    write_outputs();
    b_ ^= 1;
    tile_ += kEntryTile;
  }

  // Of the channels of this warp, in an order that does not depend on kKeys; a thread some rows of its channel.
  __device__ void sum_parts() const {
    constexpr int kRows = kEntryTile / kLanes;
    __syncwarp();
    const auto& parts = shared_.parts[channel_];
    float sum[kRows] = {};
#pragma unroll
    for (int i = 0; i < kEntryKeys / 2; ++i)
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        float part = parts[i][lane_ * kRows + m];
        if constexpr (kKeys == 1) part = __fadd_rn(part, parts[i + kEntryKeys / 2][lane_ * kRows + m]);
        sum[m] += part;
      }
#pragma unroll
    for (int m = 0; m < kRows; ++m) shared_.out[b_][lane_ * kRows + m][channel_] = sum[m];
  }
  __device__ void write_outputs() {
    const int column = threadIdx.x % kEntryChannels, j = begin_ + column;
#pragma unroll
    for (int i = 0; i < kLoads; ++i, o_at_.at += o_at_.step) {
      const int row = threadIdx.x / kEntryChannels + i * kRowsApart;
      const int32_t r = tile_ + row;
      if (j >= p_.dv || r >= chain_.row_end) continue;
      float o = p_.scale * shared_.out[b_][row][column];
      if (p_.skip) o += p_.skip[h_] * load(p_.v.row(r, h_) + j);
      store(o_at_.at, o);
    }
  }

  template <int kRows>
  struct Rows {
    float delta[kRows], d[kRows], k[kKeys][kRows], q[kKeys][kRows];
  };
  template <int kRows>
  __device__ static void copy(float (&to)[kRows], const float* from) {
    if constexpr (kRows == 4) {
      const float4 all = *reinterpret_cast<const float4*>(from);
      to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
    } else {
      to[0] = *from;
    }
  }
  template <int kRows>
  __device__ Rows<kRows> rows_of(int row) const {
    const typename Shared::Tile& tile = shared_.tiles[b_];
    Rows<kRows> rows;
    copy(rows.delta, &tile.delta[channel_][row]);
    copy(rows.d, &tile.d[channel_][row]);
#pragma unroll
    for (int s = 0; s < kKeys; ++s) {
      copy(rows.k[s], &tile.k[key(s)][row]);
      copy(rows.q[s], &tile.q[key(s)][row]);
    }
    return rows;
  }
  // S, and of an operator U and the sum of Δ, through rows of the tile from `row` on.
  template <bool kOperator, int kRows>
  __device__ void advance(const Rows<kRows>& rows, int row) {
    float part[kRows] = {};
#pragma unroll
    for (int s = 0; s < kKeys; ++s)
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        const EntryDecay decay(rows.delta[m] * A_[s]);
        const float change = __fmul_rn(rows.k[s][m], rows.d[m]);
        x_[s] = decay(x_[s], change);
        if constexpr (kOperator) u_[s] = decay(u_[s], change);
        const float product = __fmul_rn(rows.q[s][m], x_[s]);
        part[m] = s == 0 ? product : __fadd_rn(part[m], product);
      }
    if constexpr (kOperator)
#pragma unroll
      for (int m = 0; m < kRows; ++m) some_ += rows.delta[m];
    float* to = &shared_.parts[channel_][lane_][row];
    if constexpr (kRows == 4)
      *reinterpret_cast<float4*>(to) = {part[0], part[1], part[2], part[3]};
    else
      *to = part[0];
  }
  template <bool kOperator>
  __device__ void advance(int row, int end) {
    const auto one = [&](int last) {
      for (; row < last; ++row) advance<kOperator, 1>(rows_of<1>(row), row);
    };
    one(min(end, (row + 3) / 4 * 4));
    if (row + 4 <= end) {
      Rows<4> rows = rows_of<4>(row);
#pragma unroll 2
      for (; row + 4 <= end; row += 4) {
        const Rows<4> next = rows_of<4>(row + 4);  // at most the pitch's rest
        advance<kOperator, 4>(rows, row);
        rows = next;
      }
    }
    one(end);
  }

  template <bool kOperator>
  __device__ void step(const ChainItem& item, int32_t& r) {
    float aside[kKeys], sum = 0;
#pragma unroll
    for (int s = 0; s < kKeys; ++s) {
      aside[s] = x_[s];
      if constexpr (kOperator) u_[s] = active(s) && item.span > 0 ? p_.U[p_.at(item.op, h_) + entry(s)] : 0.0f;
    }
    while (r < item.end) {
      if (r == tile_ + kEntryTile) next_tile();
      const int32_t end = min(item.end, tile_ + kEntryTile);
      some_ = 0;  // sums of a tile first: they round less
      advance<kOperator>(r - tile_, end - tile_);
      sum += some_;
      r = end;
    }
    if constexpr (kOperator) {
      float t[kKeys];
#pragma unroll
      for (int s = 0; s < kKeys; ++s) {
        t[s] = expf(sum * A_[s]);
        if (active(s) && item.span > 0) t[s] *= p_.T[p_.at(item.op, h_) + entry(s)];
      }
      write(p_.T, item.op, t);
      write(p_.U, item.op, u_);
    }
    if (item.keep) return;
#pragma unroll
    for (int s = 0; s < kKeys; ++s) x_[s] = aside[s];
  }

  // Begins to copy what this thread needs for the next jump at or beyond item `ahead`.
  __device__ void fetch_jump(int32_t& ahead, int i) {
    while (ahead < chain_.item_end && item_at(ahead).kind != ChainItem::Kind::jump) ++ahead;
    if (ahead < chain_.item_end) {
      const ChainItem& item = item_at(ahead++);
      const int64_t at = p_.at(item.op, h_);
#pragma unroll
      for (int s = 0; s < kKeys; ++s)
        if (active(s)) {
          if (item.compose == Compose::transfer)
            cp_async_4(shared_address(&shared_.jumps[i][0][s][threadIdx.x]), p_.T + at + entry(s));
          if (item.compose != Compose::zero)
            cp_async_4(shared_address(&shared_.jumps[i][1][s][threadIdx.x]), p_.U + at + entry(s));
        }
    }
    cp_async_commit();
  }
  __device__ void jump(const ChainItem& item, int i) {
    cp_async_wait<kEntryJumps - 1>();
#pragma unroll
    for (int s = 0; s < kKeys; ++s) {
      if (!active(s)) continue;
      const float t = shared_.jumps[i][0][s][threadIdx.x], u = shared_.jumps[i][1][s][threadIdx.x];
      switch (item.compose) {
        case Compose::transfer:
          x_[s] = fmaf(t, x_[s], u);
          break;
        case Compose::add:
          x_[s] += u;
          break;
        case Compose::last:
          x_[s] = u;
          break;
        case Compose::zero:
          x_[s] = 0;
          break;
      }
    }
  }

  const EntryArgs<Element>& p_;
  Shared& shared_;
  const Chain& chain_;
  const int h_, kh_, begin_, channel_, lane_;
  float A_[kKeys], x_[kKeys], u_[kKeys], some_ = 0;
  // Of the next tile, and where what follows it comes from.
  float delta_[kLoads], beta_[kLoads];
  Element v_[kLoads], k_[kLoads], q_[kLoads];
  Column<float> g_at_, beta_at_;
  Column<Element> v_at_, k_at_, q_at_, o_at_;
  int32_t fetched_;                          // the row that this thread fetches next
  int32_t tile_;                             // first row of the tile
  int32_t items_begin_ = 0, items_end_ = 0;  // of the items in shared memory
  int b_ = 0;
};

// Block x: chain of order[first, …) and head; y: channels.
template <class Element, int kKeys>
__global__ void __launch_bounds__(EntryShared<kKeys>::kThreads, kKeys + 1)
    elementwise_walk_kernel(EntryArgs<Element> p, int32_t first) {
  extern __shared__ __align__(16) char shared[];
  const Chain chain = p.table.chains[p.table.order[first + blockIdx.x / p.Hv]];
  EntryWalk<Element, kKeys>(p, *reinterpret_cast<EntryShared<kKeys>*>(shared), chain,
                            static_cast<int>(blockIdx.x % p.Hv), static_cast<int>(blockIdx.y) * kEntryChannels)
      .run();
}

}  // namespace hypic::cuda
