// Softmax attention over pages and residues, and the paged store of K and V: a list of the keys
// that a row sees, and one softmax over it, in float64.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "harness/cases/op_cases.h"
#include "harness/cases/oracle.h"
#include "reference/families/family.h"

namespace hypic::conformance {
namespace {

struct Residue {
  int32_t first, last, start, shift;
  int32_t pages_of = kNone;  // an earlier residue of the table, whose pages it shares: no other token than that one's
};

struct Sequence {
  std::vector<int32_t> positions;  // of its rows; gaps are what residues cover
  int32_t kv_begin = 0;            // own tokens that earlier forwards put in
  std::vector<Residue> residues = {};
};

std::vector<int32_t> range(int32_t begin, int32_t end) {
  std::vector<int32_t> all;
  for (int32_t i = begin; i < end; ++i) all.push_back(i);
  return all;
}

struct Heads {
  int64_t q = 4, kv = 2, D = 16, Dv = 16;
  int rotary_dim = 8;
  double theta = 1e4;
  int64_t gap = 0;
  bool latent = false;  // V is the first Dv columns of K, in the same pages
  int64_t lead = 0;
  int32_t page_size = 16;
  double scale = 0;  // 0: 1 / √D
  // Of all logits of own keys; the first residue's have as much less, the second's none. Not where all D dims turn.
  double common = 0;
  int32_t pages_before = 0;  // of the store, before the first one
};

// Chains over pages whose numbers are in no order; what a chain may not read is NaN.
class Store {
 public:
  Store(Context& c, const Heads& heads, const std::vector<Sequence>& sequences, uint64_t seed = 81)
      : c_(c), heads_(heads), draw_(seed), arena_(c.backend) {
    table_.page_size = heads.page_size;
    int32_t pages = 0;
    const auto page_list = [&](int64_t tokens) {
      const auto begin = static_cast<int32_t>(table_.pages.size());
      for (int64_t i = 0; i * heads.page_size < tokens; ++i) table_.pages.push_back(pages++);
      return begin;
    };
    for (const Sequence& s : sequences) {
      Chain chain;
      chain.state = static_cast<int32_t>(table_.chains.size());
      chain.row_begin = table_.row_count();
      chain.kv_begin = s.kv_begin;
      chain.residue_begin = static_cast<int32_t>(table_.residues.size());
      for (const Residue& r : s.residues)
        table_.residues.push_back({r.pages_of == kNone ? page_list(r.last) : table_.residues[r.pages_of].page_begin,
                                   r.first, r.last, r.start, r.shift});
      chain.residue_end = static_cast<int32_t>(table_.residues.size());
      chain.page_begin = page_list(s.kv_begin + static_cast<int64_t>(s.positions.size()));
      chain.item_begin = static_cast<int32_t>(table_.items.size());
      for (const int32_t position : s.positions) {
        table_.tokens.push_back(0);
        table_.positions.push_back(position);
        table_.chain_of.push_back(static_cast<int32_t>(table_.chains.size()));
      }
      chain.row_end = table_.row_count();
      ChainItem item;
      item.begin = chain.row_begin;
      item.end = chain.row_end;
      table_.items.push_back(item);
      chain.item_end = chain.item_begin + 1;
      table_.chains.push_back(chain);
    }
    std::reverse(table_.pages.begin(), table_.pages.end());
    for (int32_t& page : table_.pages) page = heads.pages_before + (page * 7 + 3) % prime_above(pages);
    page_count_ = prime_above(pages);
    k_ = Array({page_count_, heads.page_size, heads.kv, heads.D}, std::nan(""));
    v_ = Array({page_count_, heads.page_size, heads.kv, heads.Dv}, std::nan(""));
    // The last dim of q · k is what all logits of a part have in common.
    const double root = std::sqrt(std::abs(heads.common) / scale());
    const auto peak = [&](Array& x, double of_all) {
      if (heads.common == 0) return;
      for (size_t i = heads.D - 1; i < x.data.size(); i += heads.D)
        x.data[i] = rounded(Array({1}, of_all), c_.compute())(0);
    };
    for (const Chain& chain : table_.chains)
      for (int32_t n = chain.residue_begin; n < chain.residue_end; ++n)
        for (int32_t i = table_.residues[n].first; i < table_.residues[n].last; ++i)
          draw_token(table_.residues[n].page_begin, i,
                     [&](Array& k) { peak(k, n == chain.residue_begin ? -root : 0); });
    for (const Chain& chain : table_.chains)
      for (int32_t i = 0; i < chain.kv_begin; ++i)
        draw_token(chain.page_begin, i, [&](Array& k) { peak(k, root); });
    const int64_t R = table_.row_count();
    q_ = drawn({R, heads.q, heads.D});
    new_k_ = drawn({R, heads.kv, heads.D});
    peak(q_, heads.common < 0 ? -root : root);
    peak(new_k_, root);
    new_v_ = heads.latent ? leading(new_k_) : drawn({R, heads.kv, heads.Dv});
    if (heads.latent) v_ = leading(k_);
  }

  // append_kv, then attention.
  Array run(const std::string& what) {
    const Tensor k_pages = pool("k_pages", k_), v_pages = heads_.latent ? Tensor() : pool("v_pages", v_);
    table_.check(static_cast<int64_t>(table_.chains.size()), 0, heads_.pages_before + page_count_);
    c_.backend.begin(table_);
    c_.backend.append_kv(
        {.k = arena_.input("k", new_k_, c_.compute(), heads_.gap, heads_.lead),
         .v = heads_.latent ? Tensor() : arena_.input("v", new_v_, c_.compute(), heads_.gap, heads_.lead),
         .k_pages = k_pages,
         .v_pages = v_pages});
    append(new_k_);
    c_.identical(what + ", K in the pages", held(k_pages), k_);
    if (!heads_.latent) c_.identical(what + ", V in the pages", held(v_pages), v_);
    const Tensor out =
        arena_.output("out", {table_.row_count(), heads_.q, heads_.Dv}, c_.compute(), heads_.gap, heads_.lead);
    c_.backend.attention({.q = arena_.input("q", q_, c_.compute(), heads_.gap, heads_.lead),
                          .k_pages = k_pages,
                          .v_pages = heads_.latent ? k_pages.columns(0, heads_.Dv) : v_pages,
                          .rotary_dim = heads_.rotary_dim,
                          .theta = heads_.theta,
                          .scale = scale(),
                          .out = out});
    const Array got = arena_.read(out);
    const Array want = expected();
    // A logit is off by a rounding of its own size.
    const double rounding = kRoundings * unit_roundoff(c_.state()) * largest_logit_;
    c_.compare(what, got, want, 0, {std::max(tolerance(c_.compute()), rounding)});
    c_.identical(what + ", K after attention", held(k_pages), k_);
    if (!heads_.latent) c_.identical(what + ", V after attention", held(v_pages), v_);
    c_.unharmed(what, arena_);
    return got;
  }

  // qk_norm_append in the place of append_kv. Some rows are so small that eps counts.
  void run_norms(const std::string& what, bool plus_one, bool with_weights) {
    constexpr double kEps = 1e-6;
    const int64_t R = table_.row_count();
    for (Array* x : {&q_, &new_k_})
      for (int64_t r = 0; r < R; r += 3)
        for (int64_t i = 0; i < x->product(1); ++i) x->data[r * x->product(1) + i] *= 0x1p-10;
    const Array qw = drawn({heads_.D}), kw = drawn({heads_.D});
    const Tensor k_pages = arena_.inout("k_pages", k_, c_.compute()),
                 v_pages = arena_.inout("v_pages", v_, c_.compute()),
                 q_out = arena_.output("q_out", {R, heads_.q, heads_.D}, c_.compute()),
                 k_out = arena_.output("k_out", {R, heads_.kv, heads_.D}, c_.compute());
    const auto weight = [&](const char* name, const Array& w) {
      return with_weights ? arena_.input(name, w, c_.compute()) : Tensor();
    };
    table_.check(static_cast<int64_t>(table_.chains.size()), 0, page_count_);
    c_.backend.begin(table_);
    c_.backend.qk_norm_append({.q = arena_.input("q", q_, c_.compute(), heads_.gap, heads_.lead),
                               .k = arena_.input("k", new_k_, c_.compute(), heads_.gap, heads_.lead),
                               .v = arena_.input("v", new_v_, c_.compute(), heads_.gap, heads_.lead),
                               .q_weight = weight("q_weight", qw),
                               .k_weight = weight("k_weight", kw),
                               .plus_one = plus_one,
                               .eps = kEps,
                               .positions = arena_.index("positions", table_.positions),
                               .rotary_dim = heads_.rotary_dim,
                               .theta = heads_.theta,
                               .k_pages = k_pages,
                               .v_pages = v_pages,
                               .q_out = q_out,
                               .k_out = k_out});
    const auto norm = [&](const Array& x, const Array& w) {
      return with_weights ? oracle::rms_norm(x, w, plus_one, kEps) : x;
    };
    const Array k = oracle::rope(norm(new_k_, kw), table_.positions, heads_.rotary_dim, heads_.theta);
    append(k);
    c_.compare(what + ", q", arena_.read(q_out), norm(q_, qw), 0);
    c_.compare(what + ", k", arena_.read(k_out), k, 0);
    c_.compare(what + ", K in the pages", arena_.read(k_pages), k_, 0);
    c_.identical(what + ", V in the pages", arena_.read(v_pages), v_);
    c_.unharmed(what, arena_);
  }

  // A chain's rows become NaN.
  void spoil(int32_t chain) {
    const Chain& c = table_.chains[chain];
    for (Array* x : {&q_, &new_k_, &new_v_})
      std::fill(x->data.begin() + c.row_begin * x->product(1),
                x->data.begin() + c.row_end * x->product(1), std::nan(""));
  }

 private:
  static int32_t prime_above(int32_t n) {
    for (int32_t p = std::max(n, 11);; ++p) {
      bool prime = p % 7 != 0;  // 7 multiplies the page numbers
      for (int32_t d = 2; d * d <= p; ++d) prime &= p % d != 0;
      if (prime) return p;
    }
  }
  // Pages in the backend's memory, and what they hold.
  Tensor pool(const char* name, const Array& pages) {
    if (heads_.pages_before == 0) return arena_.inout(name, pages, c_.compute());
    std::vector<int64_t> shape = pages.shape;
    shape[0] += heads_.pages_before;
    const Tensor all = far_.emplace_back(c_.backend, c_.compute(), shape).tensor();
    put(c_.backend, all.rows(heads_.pages_before, shape[0]), pages);
    return all;
  }
  Array held(const Tensor& pages) const {
    if (heads_.pages_before == 0) return arena_.read(pages);
    Array out({page_count_, pages[1], pages[2], pages[3]});
    out.data = to_doubles(c_.backend, pages.rows(heads_.pages_before, pages[0]));
    return out;
  }
  double scale() const { return heads_.scale > 0 ? heads_.scale : 1 / std::sqrt(static_cast<double>(heads_.D)); }
  Array drawn(std::vector<int64_t> shape) {
    return rounded(draw_.normals(std::move(shape)), c_.compute());
  }
  // The first Dv columns.
  Array leading(const Array& x) const {
    std::vector<int64_t> shape = x.shape;
    shape.back() = heads_.Dv;
    Array out(shape);
    const int64_t D = x.last();
    for (size_t i = 0; i < out.data.size(); ++i)
      out.data[i] =
          x.data[static_cast<int64_t>(i) / heads_.Dv * D + static_cast<int64_t>(i) % heads_.Dv];
    return out;
  }
  std::pair<int32_t, int32_t> place(int32_t page_begin, int32_t token) const {
    return {table_.pages[page_begin + token / table_.page_size] - heads_.pages_before, token % table_.page_size};
  }
  // What the pages hold after the forward's own tokens are in them.
  void append(const Array& k) {
    for (const Chain& chain : table_.chains)
      for (int32_t r = chain.row_begin; r < chain.row_end; ++r)
        for (int64_t h = 0; h < heads_.kv; ++h) {
          const auto [page, at] = place(chain.page_begin, chain.kv_begin + r - chain.row_begin);
          k_.set_row(k.row(r, h), page, at, h);
          v_.set_row(new_v_.row(r, h), page, at, h);
        }
  }
  template <class Change>
  void draw_token(int32_t page_begin, int32_t token, Change change) {
    const auto [page, at] = place(page_begin, token);
    Array k = drawn({heads_.kv, heads_.D}), v = drawn({heads_.kv, heads_.Dv});
    change(k);
    for (int64_t h = 0; h < heads_.kv; ++h) {
      k_.set_row(k.row(h), page, at, h);
      v_.set_row(v.row(h), page, at, h);
    }
  }

  Array expected() {
    Array out({table_.row_count(), heads_.q, heads_.Dv});
    for (int32_t r = 0; r < table_.row_count(); ++r)
      for (int64_t h = 0; h < heads_.q; ++h) out.set_row(row(r, h), r, h);
    return out;
  }

  reference::Vector row(int32_t r, int64_t h) {
    const Chain& chain = table_.chains[table_.chain_of[r]];
    const int32_t position = table_.positions[r];
    const int64_t kv = h / (heads_.q / heads_.kv);
    std::vector<double> logits;
    std::vector<reference::Vector> values;
    const auto see = [&](int32_t page_begin, int32_t first, int32_t last, int32_t distance) {
      reference::Vector q = q_.row(r, h);
      reference::rotate(q, distance, heads_.rotary_dim, heads_.theta);
      for (int32_t i = first; i < last; ++i) {
        const auto [page, at] = place(page_begin, i);
        logits.push_back(scale() * reference::dot(q, k_.row(page, at, kv)));
        values.push_back(v_.row(page, at, kv));
      }
    };
    for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i) {
      const ResidueRef& residue = table_.residues[i];
      if (position >= residue.start + residue.last)
        see(residue.page_begin, residue.first, residue.last, position - residue.shift);
    }
    see(chain.page_begin, 0, chain.kv_begin + r - chain.row_begin + 1, position);
    const double top = *std::max_element(logits.begin(), logits.end());
    for (const double x : logits) largest_logit_ = std::max(largest_logit_, std::abs(x));
    double sum = 0;
    reference::Vector out(0.0, heads_.Dv);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double p = std::exp(logits[i] - top);
      sum += p;
      out += p * values[i];
    }
    return out / sum;
  }

  Context& c_;
  const Heads heads_;
  Draw draw_;
  Arena arena_;
  std::vector<Buffer> far_;
  ChainTable table_;
  int32_t page_count_;
  double largest_logit_ = 0;
  Array k_, v_, q_, new_k_, new_v_;
};

void lengths(Context& c) {
  std::vector<Sequence> sequences;
  for (const int32_t T : {0, 1, 15, 16, 17, 63, 64, 65, 2}) sequences.push_back({range(0, T)});
  Store(c, {}, sequences).run("lengths 0 to 65");
  Store(c, {}, {{}}).run("no row");
}

void heads(Context& c) {
  const std::vector<Sequence> sequences = {{range(0, 20)}, {range(40, 43), 40}};
  for (const Heads& h : {Heads{1, 1, 8, 8, 0}, Heads{6, 2, 24, 24, 24}, Heads{4, 4, 64, 64, 64},
                         Heads{16, 2, 256, 256, 64, 1e7}, Heads{4, 2, 24, 16, 8}})
    Store(c, h, sequences)
        .run(str(h.q, " of ", h.kv, " heads, ", h.D, " wide, rotary ", h.rotary_dim));
}

// Heads as wide as models have them, which kernels for tensor cores ask for: tiles of rows that no length divides,
// decode over many keys beside prefill, seams among residues, some of them seen by a part of a tile only.
void wide(Context& c) {
  std::vector<int32_t> seams = range(0, 8);
  for (const int32_t p : range(73, 81)) seams.push_back(p);
  for (const int32_t p : range(200, 221)) seams.push_back(p);
  const std::vector<Sequence> sequences = {
      {range(0, 70)}, {range(300, 301), 300}, {}, {seams, 0, {{8, 73, 0, 0}, {8, 127, 73, 73}}}, {range(17, 50), 17}};
  for (const Heads& h : {Heads{8, 1, 64, 64, 64}, Heads{4, 4, 64, 64, 0, 1e4, 8}, Heads{6, 2, 128, 128, 128, 1e6},
                         Heads{16, 2, 256, 256, 64, 1e7}})
    Store(c, h, sequences).run(str(h.q, " of ", h.kv, " heads, ", h.D, " wide, rotary ", h.rotary_dim));
  std::vector<int32_t> far;
  for (const int32_t p : seams) far.push_back(p + 200000);
  Store(c, {8, 1, 128, 128, 64, 1e7}, {{far, 0, {{8, 73, 200000, 200000}, {8, 127, 200073, 0}}}})
      .run("at 200000, one residue not relocated");
  Store(c, {8, 1, 128, 128, 64, 1e7}, {{seams, 0, {{5, 30, -30, -30}, {8, 73, 0, 333}, {8, 127, 73, 200003}}}})
      .run("distances below zero");
  Store(c, {8, 1, 64, 64, 64},
        {{seams, 0, {{8, 73, 0, 0}, {8, 73, 90, 90, 0}}}, {range(100, 140), 0, {{9, 60, 7, 7, 0}}}})
      .run("one residue, twice and in two chains");
  Store(c, {8, 1, 256, 256, 64, 1e7}, {{range(0, 190)}, {range(420, 450), 0, {{3, 210, 0, 0}, {8, 197, 223, 223}}}})
      .run("several tiles of rows and keys, residues from anywhere in a page on");
  Store(c, {8, 1, 256, 256, 64, 1e7}, {{range(851, 868), 0, {{8, 400, 0, 0}, {3, 451, 400, 400}}}})
      .run("few rows that see many keys");
}

// Other scales than 1 / √D, and logits at which exp alone overflows or is nothing.
void scales(Context& c) {
  std::vector<int32_t> rows = range(0, 3);
  for (const int32_t p : range(60, 81)) rows.push_back(p);
  const std::vector<Sequence> sequences = {{rows, 0, {{3, 25, 0, 0}, {0, 30, 30, 30}}}, {range(20, 53), 20}};
  for (const auto& [D, rotary] : {std::pair<int64_t, int>{16, 8}, {64, 32}, {128, 64}, {256, 64}}) {
    Heads heads{4, 2, D, D, rotary};
    for (const double scale : {0.02, 0.3}) {
      heads.scale = scale;
      Store(c, heads, sequences).run(str(D, " wide, scale ", scale));
    }
    heads.scale = 0;
    for (const double common : {96.0, -96.0}) {
      heads.common = common;
      Store(c, heads, sequences).run(str(D, " wide, logits about ", common));
    }
  }
}

// Pages of other sizes than 16, such as no tile of keys has.
void pages(Context& c) {
  std::vector<int32_t> rows = range(0, 3);
  for (const int32_t p : range(60, 81)) rows.push_back(p);
  const std::vector<Sequence> sequences = {{rows, 0, {{3, 25, 0, 0}, {0, 30, 30, 30}}}, {range(20, 53), 20}};
  for (const int32_t page_size : {1, 8, 12, 64})
    for (const auto& [D, rotary] : {std::pair<int64_t, int>{16, 8}, {64, 64}, {256, 64}}) {
      Heads heads{8, 2, D, D, rotary};
      heads.page_size = page_size;
      Store(c, heads, sequences).run(str("pages of ", page_size, ", ", D, " wide"));
    }
}

// Pages far into their store, whose first ones are NaN: beyond 2³¹ elements with --thorough, else beyond 2¹⁶ pages.
void far(Context& c) {
  const auto run = [&](Heads heads, int32_t page_size, int64_t pages_before) {
    heads.page_size = page_size;
    heads.pages_before = static_cast<int32_t>(pages_before);
    Store(c, heads, {{range(40, 90), 0, {{2, 35, 0, 0}}}, {range(20, 21), 20}})
        .run(str(pages_before, " pages of ", page_size, " before"));
  };
  run({4, 2, 64, 64, 64}, 16, c.thorough ? (int64_t{1} << 31) / (16 * 2 * 64) : 3);
  run({4, 1, 64, 64, 64}, 1, 70000);
}

// More chains, and more residues in a chain, than a warp has lanes.
void batches(Context& c) {
  std::vector<Sequence> decode;
  for (int32_t i = 0; i < 70; ++i)
    decode.push_back({range(40 + i, 41 + i + i % 23 / 22), i % 5, {}});
  decode[3].residues = {{2, 20, 0, 0}};
  std::vector<Residue> many;
  for (int32_t i = 0; i < 45; ++i) many.push_back({i % 3, 3, 5 * i, 5 * i});
  std::vector<int32_t> rows;
  for (const int32_t p : {4, 9, 10, 160, 161, 225, 226}) rows.push_back(p);
  for (const auto& [D, rotary] : {std::pair<int64_t, int>{16, 8}, {64, 64}, {256, 64}}) {
    Store(c, {4, 2, D, D, rotary}, decode).run(str("70 chains, ", D, " wide"));
    Store(c, {4, 2, D, D, rotary}, {{rows, 0, many}, {range(0, 2)}}).run(str("45 residues, ", D, " wide"));
  }
}

// Decode and chunked prefill: earlier forwards have put tokens in.
void continued(Context& c) {
  Store(c, {}, {{range(33, 34), 33}, {range(16, 17), 16}, {range(50, 90), 50}, {range(0, 1)}})
      .run("on from 33, 16, 50 and 0 tokens");
}

// Residues between the rows, relocated or not, with head and tail seam; far from position 0.
void residues(Context& c) {
  std::vector<int32_t> seams = range(0, 8);
  for (const int32_t p : range(40, 48)) seams.push_back(p);
  for (const int32_t p : range(100, 110)) seams.push_back(p);
  Store(c, {}, {{seams, 0, {{8, 40, 0, 0}, {8, 50, 40, 40}}}}).run("two residues");
  std::vector<int32_t> built_at = seams;
  Store(c, {}, {{built_at, 0, {{8, 40, 0, 0}, {8, 50, 40, 0}}}}).run("not relocated");
  std::vector<int32_t> far;
  for (const int32_t p : seams) far.push_back(p + 100000);
  Store(c, {}, {{far, 0, {{8, 40, 100000, 100000}, {8, 50, 100040, 100040}}}}).run("at 100000");
  // Their first use may have been further on, or they come before the chain.
  Store(c, {}, {{seams, 0, {{5, 30, -30, -30}, {8, 40, 0, 333}, {8, 50, 40, 200003}}}}).run("distances below zero");
  Store(c, {}, {{seams, 0, {{8, 40, 0, 0}, {8, 40, 48, 48, 0}}}, {seams, 0, {{9, 33, 7, 7, 0}}}})
      .run("one residue, twice and in two chains");
}

// Fault 16: parts without a key in them. An empty residue, residues that no early row sees, and
// chains of ragged lengths.
void fault_empty_parts(Context& c) {
  std::vector<int32_t> rows = range(0, 4);
  for (const int32_t p : range(90, 100)) rows.push_back(p);
  Store(c, {}, {{rows, 0, {{4, 4, 0, 0}, {8, 60, 4, 4}, {9, 9, 70, 70}, {5, 17, 200, 200}}}})
      .run("empty and unseen residues");
  const int32_t scale = c.thorough ? 1 : 8;
  std::vector<Sequence> ragged;
  for (const int32_t T : {900, 1000, 120, 500}) ragged.push_back({range(0, T / scale)});
  Store(c, {}, ragged).run("lengths 900, 1000, 120, 500");
}

// Multi-head latent attention: one key head, V a part of K.
void latent(Context& c) {
  const Heads heads{8, 1, 40, 32, 8, 1e4, 0, true};
  Store(c, heads, {{range(0, 33)}, {range(20, 25), 20}, {range(50, 60), 0, {{8, 40, 0, 0}}}})
      .run("V in K");
}

void neighbours(Context& c) {
  std::vector<int32_t> rows = range(0, 4);
  for (const int32_t p : range(30, 40)) rows.push_back(p);
  const std::vector<Sequence> sequences = {
      {range(0, 33)}, {rows, 0, {{4, 30, 0, 0}}}, {range(0, 9)}};
  Store clean(c, {}, sequences), spoilt(c, {}, sequences);
  spoilt.spoil(0);
  const auto others = [&](const Array& out) {
    Array rest = out;
    rest.data.erase(rest.data.begin(), rest.data.begin() + 33 * out.product(1));
    rest.shape[0] -= 33;
    return rest;
  };
  const Array want = others(clean.run("three chains"));
  c.same("beside NaN", others(spoilt.run("a chain of NaN")), want, 0);
}

void strided(Context& c) {
  Store(c, {.gap = 7}, {{range(0, 20)}, {range(5, 30), 5}}).run("rows apart");
  for (const int64_t lead : {0, 3}) {
    Heads heads{4, 2, 64, 64, 32};
    heads.gap = 16;
    heads.lead = lead;
    Store(c, heads, {{range(0, 20)}, {range(5, 30), 5}}).run(str("rows apart, from ", lead));
  }
}

// Norms, rotation and append together, over chains: from a position that is not their row, behind tokens that are
// there already, into pages in no order.
void norms(Context& c) {
  const std::vector<Sequence> sequences = {
      {range(300000, 300020)}, {range(33, 40), 33}, {}, {range(200017, 200050), 17}, {range(5, 6), 5}};
  for (const Heads& heads : {Heads{4, 2, 24, 24, 8, 1e4, 9}, Heads{4, 2, 64, 64, 64, 1e6, 8}, Heads{6, 1, 128, 128, 32},
                             Heads{4, 2, 256, 256, 64, 1e7}})
    for (const bool plus_one : {false, true})
      Store(c, heads, sequences).run_norms(str(heads.D, " wide, ", heads.rotary_dim, " rotated"), plus_one, true);
  Store(c, {4, 2, 64, 64, 32, 1e7}, sequences).run_norms("no norm", false, false);
}

}  // namespace

std::vector<Case> attention_cases() {
  const auto attention = [](const char* name, void (*run)(Context&)) {
    return Case{str("attention/", name), "attention", "", run};
  };
  return {attention("lengths", lengths),
          attention("heads", heads),
          attention("wide", wide),
          attention("scales", scales),
          attention("pages", pages),
          attention("far", far),
          attention("batches", batches),
          attention("continued", continued),
          attention("residues", residues),
          attention("fault_16_empty_parts", fault_empty_parts),
          attention("latent", latent),
          attention("neighbours", neighbours),
          attention("strided", strided),
          {"qk_norm_append/chains", "qk_norm_append", "", norms}};
}

}  // namespace hypic::conformance
