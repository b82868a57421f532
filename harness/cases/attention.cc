// Softmax attention over pages and residues, and the paged store of K and V: a list of the keys
// that a row sees, and one softmax over it, in float64.
#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "harness/cases/op_cases.h"
#include "reference/families/family.h"

namespace hypic::conformance {
namespace {

constexpr int32_t kPage = 16;

struct Residue {
  int32_t first, last, start, shift;
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
};

// Chains over pages whose numbers are in no order; what a chain may not read is NaN.
class Store {
 public:
  Store(Context& c, const Heads& heads, const std::vector<Sequence>& sequences, uint64_t seed = 81)
      : c_(c), heads_(heads), draw_(seed), arena_(c.backend) {
    table_.page_size = kPage;
    int32_t pages = 0;
    const auto page_list = [&](int64_t tokens) {
      const auto begin = static_cast<int32_t>(table_.pages.size());
      for (int64_t i = 0; i * kPage < tokens; ++i) table_.pages.push_back(pages++);
      return begin;
    };
    for (const Sequence& s : sequences) {
      Chain chain;
      chain.state = static_cast<int32_t>(table_.chains.size());
      chain.row_begin = table_.row_count();
      chain.kv_begin = s.kv_begin;
      chain.residue_begin = static_cast<int32_t>(table_.residues.size());
      for (const Residue& r : s.residues)
        table_.residues.push_back({page_list(r.last), r.first, r.last, r.start, r.shift});
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
    for (int32_t& page : table_.pages) page = (page * 7 + 3) % prime_above(pages);
    page_count_ = prime_above(pages);
    k_ = Array({page_count_, kPage, heads.kv, heads.D}, std::nan(""));
    v_ = Array({page_count_, kPage, heads.kv, heads.Dv}, std::nan(""));
    for (const ResidueRef& r : table_.residues)
      for (int32_t i = r.first; i < r.last; ++i) draw_token(r.page_begin, i);
    for (const Chain& chain : table_.chains)
      for (int32_t i = 0; i < chain.kv_begin; ++i) draw_token(chain.page_begin, i);
    const int64_t R = table_.row_count();
    q_ = drawn({R, heads.q, heads.D});
    new_k_ = drawn({R, heads.kv, heads.D});
    new_v_ = heads.latent ? leading(new_k_) : drawn({R, heads.kv, heads.Dv});
    if (heads.latent) v_ = leading(k_);
  }

  // append_kv, then attention.
  Array run(const std::string& what) {
    const Tensor k_pages = arena_.inout("k_pages", k_, c_.compute()),
                 v_pages = heads_.latent ? Tensor() : arena_.inout("v_pages", v_, c_.compute());
    table_.check(static_cast<int64_t>(table_.chains.size()), 0, page_count_);
    c_.backend.begin(table_);
    c_.backend.append_kv(
        {.k = arena_.input("k", new_k_, c_.compute(), heads_.gap),
         .v = heads_.latent ? Tensor() : arena_.input("v", new_v_, c_.compute(), heads_.gap),
         .k_pages = k_pages,
         .v_pages = v_pages});
    for (const Chain& chain : table_.chains)
      for (int32_t r = chain.row_begin; r < chain.row_end; ++r)
        for (int64_t h = 0; h < heads_.kv; ++h) {
          const auto [page, at] = place(chain.page_begin, chain.kv_begin + r - chain.row_begin);
          k_.set_row(new_k_.row(r, h), page, at, h);
          v_.set_row(new_v_.row(r, h), page, at, h);
        }
    c_.identical(what + ", K in the pages", arena_.read(k_pages), k_);
    if (!heads_.latent) c_.identical(what + ", V in the pages", arena_.read(v_pages), v_);
    const Tensor out =
        arena_.output("out", {table_.row_count(), heads_.q, heads_.Dv}, c_.compute(), heads_.gap);
    c_.backend.attention({.q = arena_.input("q", q_, c_.compute(), heads_.gap),
                          .k_pages = k_pages,
                          .v_pages = heads_.latent ? k_pages.columns(0, heads_.Dv) : v_pages,
                          .rotary_dim = heads_.rotary_dim,
                          .theta = heads_.theta,
                          .scale = scale(),
                          .out = out});
    const Array got = arena_.read(out);
    c_.compare(what, got, expected(), 0);
    c_.identical(what + ", K after attention", arena_.read(k_pages), k_);
    if (!heads_.latent) c_.identical(what + ", V after attention", arena_.read(v_pages), v_);
    c_.unharmed(what, arena_);
    return got;
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
  double scale() const { return 1 / std::sqrt(static_cast<double>(heads_.D)); }
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
    return {table_.pages[page_begin + token / kPage], token % kPage};
  }
  void draw_token(int32_t page_begin, int32_t token) {
    const auto [page, at] = place(page_begin, token);
    const Array k = drawn({heads_.kv, heads_.D}), v = drawn({heads_.kv, heads_.Dv});
    for (int64_t h = 0; h < heads_.kv; ++h) {
      k_.set_row(k.row(h), page, at, h);
      v_.set_row(v.row(h), page, at, h);
    }
  }

  Array expected() const {
    Array out({table_.row_count(), heads_.q, heads_.Dv});
    for (int32_t r = 0; r < table_.row_count(); ++r)
      for (int64_t h = 0; h < heads_.q; ++h) out.set_row(row(r, h), r, h);
    return out;
  }

  reference::Vector row(int32_t r, int64_t h) const {
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
  ChainTable table_;
  int32_t page_count_;
  Array k_, v_, q_, new_k_, new_v_;
};

void lengths(Context& c) {
  std::vector<Sequence> sequences;
  for (const int32_t T : {0, 1, 15, 16, 17, 63, 64, 65, 2}) sequences.push_back({range(0, T)});
  Store(c, {}, sequences).run("lengths 0 to 65");
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
  Store(c, {8, 1, 256, 256, 64, 1e7}, {{range(0, 190)}, {range(420, 450), 0, {{3, 210, 0, 0}, {8, 197, 223, 223}}}})
      .run("several tiles of rows and keys, residues from anywhere in a page on");
  Store(c, {8, 1, 256, 256, 64, 1e7}, {{range(851, 868), 0, {{8, 400, 0, 0}, {3, 451, 400, 400}}}})
      .run("few rows that see many keys");
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
}

}  // namespace

std::vector<Case> attention_cases() {
  const auto attention = [](const char* name, void (*run)(Context&)) {
    return Case{str("attention/", name), "attention", "", run};
  };
  return {attention("lengths", lengths),
          attention("heads", heads),
          attention("wide", wide),
          attention("continued", continued),
          attention("residues", residues),
          attention("fault_16_empty_parts", fault_empty_parts),
          attention("latent", latent),
          attention("neighbours", neighbours),
          attention("strided", strided)};
}

}  // namespace hypic::conformance
