#include "reference/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/ops/dot.h"
#include "reference/ops/rope.h"
#include "reference/ops/threads.h"

namespace hypic::reference {
namespace {

// The vectors of token i of a page list, one per KV head: [H, D] in pages [P, page size, H, D].
template <class T>
T* token(const Tensor& pages, const ChainTable& table, int32_t page_begin, int32_t i) {
  const int32_t page = table.pages[page_begin + i / table.page_size];
  return pages.as<T>() + page * pages.stride[0] + (i % table.page_size) * pages.stride[1];
}

// One row: scores over every key it sees, in prompt order within each part, then one softmax.
template <class T>
class RowAttention {
 public:
  RowAttention(const AttentionArgs& args, const ChainTable& table, int32_t row)
      : args_(args), table_(table), row_(row), D_(args.q[2]), Dv_(args.out[2]), group_(args.q[1] / args.k_pages[2]),
        rotated_(args.q[1] * D_) {}

  void run() {
    const Chain& chain = table_.chains[table_.chain_of[row_]];
    const int32_t position = table_.positions[row_];
    for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i) {
      const ResidueRef& residue = table_.residues[i];
      if (position < residue.start + residue.last) break;
      score(residue.page_begin, residue.first, residue.last, position - residue.shift);
    }
    score(chain.page_begin, 0, chain.kv_begin + (row_ - chain.row_begin) + 1, position);
    for (int64_t h = 0; h < args_.q[1]; ++h) combine(h);
  }

 private:
  void score(int32_t page_begin, int32_t first, int32_t last, int64_t distance) {
    const int64_t heads = args_.q[1];
    const T* q = args_.q.as<T>() + row_ * args_.q.stride[0];
    const Rotation<T> rotation(distance, args_.rotary_dim, args_.theta);
    for (int64_t h = 0; h < heads; ++h) {
      T* out = rotated_.data() + h * D_;
      std::copy_n(q + h * args_.q.stride[1], D_, out);
      rotation.rotate(out, out);
    }
    for (int32_t i = first; i < last; ++i) {
      const T* k = token<T>(args_.k_pages, table_, page_begin, i);
      values_.push_back(token<T>(args_.v_pages, table_, page_begin, i));
      for (int64_t h = 0; h < heads; ++h)
        scores_.push_back(static_cast<T>(args_.scale) *
                          dot(rotated_.data() + h * D_, k + (h / group_) * args_.k_pages.stride[2], D_));
    }
  }

  void combine(int64_t h) {
    const int64_t heads = args_.q[1];
    T* out = args_.out.as<T>() + row_ * args_.out.stride[0] + h * args_.out.stride[1];
    T top = -INFINITY;
    for (size_t i = 0; i < values_.size(); ++i) top = std::max(top, scores_[i * heads + h]);
    T sum = 0;
    std::fill(out, out + Dv_, T{0});
    for (size_t i = 0; i < values_.size(); ++i) {
      const T p = std::exp(scores_[i * heads + h] - top);
      const T* v = values_[i] + (h / group_) * args_.v_pages.stride[2];
      sum += p;
      for (int64_t d = 0; d < Dv_; ++d) out[d] += p * v[d];
    }
    for (int64_t d = 0; d < Dv_; ++d) out[d] /= sum;
  }

  const AttentionArgs& args_;
  const ChainTable& table_;
  const int32_t row_;
  const int64_t D_, Dv_, group_;
  std::vector<T> rotated_, scores_;
  std::vector<const T*> values_;
};

}  // namespace

template <class T>
void append_kv(const AppendKvArgs& args, const ChainTable& table) {
  HYPIC_CHECK(static_cast<bool>(args.v) == static_cast<bool>(args.v_pages));
  const auto append = [&](const Tensor& x, const Tensor& pages) {
    Shapes("append_kv").bind(x, "x", {"R", "H", "D"}).bind(pages, "pages", {"P", "page", "H", "D"});
    check_dtype<T>(x, pages);
    HYPIC_CHECK(x[0] == table.row_count() && pages[1] == table.page_size);
    if (table.row_count() == 0) return;
    HYPIC_CHECK(x.at(0).contiguous() && pages.contiguous());
    for (const Chain& chain : table.chains)
      for (int32_t r = chain.row_begin; r < chain.row_end; ++r)
        std::copy_n(x.as<T>() + r * x.stride[0], x[1] * x[2],
                    token<T>(pages, table, chain.page_begin, chain.kv_begin + (r - chain.row_begin)));
  };
  append(args.k, args.k_pages);
  if (args.v) append(args.v, args.v_pages);
}

template <class T>
void attention(const AttentionArgs& args, const ChainTable& table) {
  Shapes shapes("attention");
  shapes.bind(args.q, "q", {"R", "Hq", "D"}).bind(args.out, "out", {"R", "Hq", "Dv"})
      .bind(args.k_pages, "k_pages", {"P", "page", "Hkv", "D"})
      .bind(args.v_pages, "v_pages", {"P", "page", "Hkv", "Dv"});
  check_dtype<T>(args.q, args.out, args.k_pages, args.v_pages);
  HYPIC_CHECK(shapes["R"] == table.row_count() && shapes["page"] == table.page_size);
  HYPIC_CHECK(shapes["Hq"] % shapes["Hkv"] == 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= shapes["D"]);
  HYPIC_CHECK(args.k_pages.stride[3] == 1 && args.v_pages.stride[3] == 1);
  parallel_for(table.row_count(), 64 * args.q.size(), [&](int64_t r) {
    RowAttention<T>(args, table, static_cast<int32_t>(r)).run();
  });
}

template void append_kv<float>(const AppendKvArgs&, const ChainTable&);
template void append_kv<double>(const AppendKvArgs&, const ChainTable&);
template void attention<float>(const AttentionArgs&, const ChainTable&);
template void attention<double>(const AttentionArgs&, const ChainTable&);

}  // namespace hypic::reference
