#include "reference/ops/attention.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

#include "reference/families/family.h"
#include "reference/families/full_attention.h"
#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

constexpr int64_t kHq = 4, kHkv = 2, kD = 8, kPages = 96;
constexpr int kRotary = 6;
constexpr double kTheta = 1e4, kScale = 0.4;

// A residue of local tokens [first, last); relocate: its shift is its start.
struct Segment {
  int32_t first, last, start;
  bool relocate = true;
};

// Chains with their keys and values, for the op and for the definition. Pages are handed out in no
// order; what nobody wrote stays NaN.
template <class T>
class Scene {
 public:
  explicit Scene(int32_t page_size)
      : k_pages({kPages, page_size, kHkv, kD}),
        v_pages({kPages, page_size, kHkv, kD}),
        free_(kPages) {
    table.page_size = page_size;
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(3));
  }

  // A chain of `rows` rows after `earlier` own tokens that are in its pages already. Own tokens
  // have the positions that the segments leave free.
  void chain(const std::vector<Segment>& segments, int32_t earlier, int32_t rows, uint64_t seed) {
    Chain chain;
    chain.kv_begin = earlier;
    chain.residue_begin = static_cast<int32_t>(table.residues.size());
    for (const Segment& s : segments)
      table.residues.push_back(
          {pages_for(s.last), s.first, s.last, s.start, s.relocate ? s.start : 0});
    chain.residue_end = static_cast<int32_t>(table.residues.size());
    chain.page_begin = pages_for(earlier + rows);

    int32_t total = earlier + rows;
    for (const Segment& s : segments) total += s.last;
    const Owned<T> k = random<T>({total, kHkv, kD}, seed),
                   v = random<T>({total, kHkv, kD}, seed + 1),
                   q = random<T>({rows, kHq, kD}, seed + 2);
    q_.insert(q_.end(), q.memory.begin(), q.memory.end());

    FullAttentionInputs in;
    in.q = array(q);
    in.k = Array({0, kHkv, kD});
    in.v = Array({0, kHkv, kD});
    std::vector<int32_t> visible_from;  // position, for residues; −1 − own index otherwise
    int64_t at = 0;
    const auto add_key = [&](int64_t i, int64_t position, int32_t from) {
      in.k.data.insert(in.k.data.end(), &k[i * kHkv * kD], &k[i * kHkv * kD] + kHkv * kD);
      in.v.data.insert(in.v.data.end(), &v[i * kHkv * kD], &v[i * kHkv * kD] + kHkv * kD);
      ++in.k.shape[0], ++in.v.shape[0];
      in.k_positions.push_back(position);
      visible_from.push_back(from);
    };
    for (size_t s = 0; s < segments.size(); ++s) {
      const ResidueRef& ref = table.residues[chain.residue_begin + s];
      for (int32_t i = 0; i < ref.last; ++i, ++at) {
        if (i < ref.first) continue;  // never stored
        store(ref.page_begin, i, i, k.tensor.at(at), v.tensor.at(at));
        add_key(at, i + (segments[s].relocate ? ref.start : 0), ref.start + ref.last);
      }
    }
    int32_t position = 0;
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < earlier + rows; ++i) {
      for (const Segment& s : segments)
        if (s.start + s.first <= position && position < s.start + s.last)
          position = s.start + s.last;
      positions.push_back(position++);
    }
    for (int32_t i = 0; i < earlier + rows; ++i, ++at) {
      add_key(at, positions[i], -1 - i);
      if (i < earlier) {
        store(chain.page_begin, i, positions[i], k.tensor.at(at), v.tensor.at(at));
      } else {
        const std::vector<T> row = rotated(k.tensor.at(at), positions[i]);
        k_.insert(k_.end(), row.begin(), row.end());
        v_.insert(v_.end(), &v[at * kHkv * kD], &v[at * kHkv * kD] + kHkv * kD);
      }
    }
    in.q_positions.assign(positions.begin() + earlier, positions.end());
    in.sees = [visible_from, earlier, positions](int64_t i, int64_t j) {
      return visible_from[j] < 0 ? -1 - visible_from[j] <= earlier + i
                                 : positions[earlier + i] >= visible_from[j];
    };
    const FullAttention layer{.scale = kScale, .rotary_dim = kRotary, .theta = kTheta};
    const Array out = full_attention(layer, in);
    expected.insert(expected.end(), out.data.begin(), out.data.end());

    const int32_t first = table.row_count();
    add_chain(table, chain, {step(rows)});
    std::copy(positions.begin() + earlier, positions.end(), table.positions.begin() + first);
  }

  std::vector<double> run() {
    const int64_t R = table.row_count();
    const Tensor q(q_.data(), {R, kHq, kD}), k(k_.data(), {R, kHkv, kD}),
        v(v_.data(), {R, kHkv, kD});
    append_kv<T>({k, v, k_pages, v_pages}, table);
    const Owned<T> out({R, kHq, kD});
    attention<T>({q, k_pages, v_pages, kRotary, kTheta, kScale, out}, table);
    return elements(out);
  }

  ChainTable table;
  Owned<T> k_pages, v_pages;
  std::vector<double> expected;

 private:
  static Array array(const Owned<T>& t) {
    Array x({t.tensor[0], t.tensor[1], t.tensor[2]});
    x.data = elements(t);
    return x;
  }
  int32_t pages_for(int32_t tokens) {
    const int32_t begin = static_cast<int32_t>(table.pages.size());
    for (int32_t i = 0; i < tokens; i += table.page_size) {
      table.pages.push_back(free_.back());
      free_.pop_back();
    }
    return begin;
  }
  static std::vector<T> rotated(const Tensor& k, int32_t position) {
    std::vector<T> row;
    for (int64_t h = 0; h < kHkv; ++h) {
      const std::vector<double> head = elements(k.at(h));
      Vector x(head.data(), head.size());
      rotate(x, position, kRotary, kTheta);
      row.insert(row.end(), std::begin(x), std::end(x));
    }
    return row;
  }
  void store(int32_t page_begin, int32_t i, int32_t position, const Tensor& k, const Tensor& v) {
    const int32_t page = table.pages[page_begin + i / table.page_size];
    const std::vector<T> row = rotated(k, position);
    std::copy(row.begin(), row.end(),
              k_pages.tensor.at(page).at(i % table.page_size).template as<T>());
    std::copy_n(v.as<T>(), kHkv * kD,
                v_pages.tensor.at(page).at(i % table.page_size).template as<T>());
  }

  std::vector<int32_t> free_;
  std::vector<T> q_, k_, v_;
};

template <class T>
void expect_definition(Scene<T>& scene) {
  EXPECT_LE(distance(scene.run(), scene.expected), sizeof(T) == 8 ? 1e-12 : 1e-5);
}

template <class T>
class AttentionTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(AttentionTest, Types);

TYPED_TEST(AttentionTest, OwnTokensAreCausal) {
  Scene<TypeParam> scene(4);
  scene.chain({}, 0, 11, 1);
  scene.chain({}, 0, 1, 2);
  scene.chain({}, 6, 5, 3);  // a continued chain
  scene.chain({}, 9, 1, 4);  // a decode
  expect_definition(scene);
}

TYPED_TEST(AttentionTest, ResiduesMoveToWhereTheRequestHasThem) {
  Scene<TypeParam> scene(4);
  // Head seams [0, 3) [10, 13) and tail seams [8, 10) [18, 20), then a question.
  scene.chain({{3, 8, 0}, {3, 8, 10}}, 0, 13, 1);
  scene.chain({{3, 8, 100}, {0, 5, 30000}}, 104, 6, 2);
  scene.chain({{0, 9, 0}}, 0, 3, 3);
  scene.chain({{2, 2, 0}, {1, 7, 2}}, 0, 8, 4);  // a residue of nothing
  expect_definition(scene);
}

TYPED_TEST(AttentionTest, WithoutShiftKeysStayWhereTheyWereBuilt) {
  Scene<TypeParam> scene(4);
  scene.chain({{0, 7, 20, false}}, 20, 4, 1);
  expect_definition(scene);
  Scene<TypeParam> moved(4);
  moved.chain({{0, 7, 20, true}}, 20, 4, 1);
  EXPECT_GT(distance(moved.run(), scene.expected), 1e-3);
}

// Rows at positions ≥ start + last see a residue, earlier ones do not: its values are NaN to those.
TEST(Attention, EarlierRowsSeeNothingOfAResidue) {
  Scene<double> scene(4);
  scene.chain({{3, 8, 0}}, 0, 6, 1);  // positions 0 1 2 | 8 9 10
  const int32_t page = scene.table.pages[scene.table.residues[0].page_begin + 1];
  const Tensor v = scene.v_pages.tensor.at(page);
  std::fill_n(v.as<double>(), v.size(), NAN);
  const std::vector<double> out = scene.run();
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i >= 3 * kHq * kD) << i;
}

TEST(Attention, AnyChains) {
  EXPECT_TRUE(rc::check("as by definition", [] {
    Scene<double> scene(*rc::gen::inRange(1, 7));
    const int chains = *rc::gen::inRange(1, 4);
    for (int c = 0; c < chains; ++c) {
      std::vector<Segment> segments;
      int32_t start = *rc::gen::inRange(0, 3);
      const int count = *rc::gen::inRange(0, 3);
      for (int s = 0; s < count; ++s) {
        const int32_t last = *rc::gen::inRange(0, 6), first = *rc::gen::inRange(0, last + 1);
        segments.push_back({first, last, start, *rc::gen::inRange(0, 4) > 0});
        start += last + *rc::gen::inRange(0, 3);
      }
      scene.chain(segments, *rc::gen::inRange(0, 5), *rc::gen::inRange(0, 6), 10 * c);
    }
    if (scene.table.row_count() == 0) return;
    RC_ASSERT(distance(scene.run(), scene.expected) <= 1e-12);
  }));
}

// A row has the same bits whatever the others of its batch hold.
TEST(Attention, NeighboursChangeNothing) {
  const auto run = [](int neighbours, uint64_t seed) {
    Scene<float> scene(4);
    if (neighbours) scene.chain({{0, 5, 3}}, 3, 4, seed);
    scene.chain({{1, 6, 0}}, 2, 5, 7);
    if (neighbours) scene.chain({}, 0, neighbours, seed + 5);
    const std::vector<double> out = scene.run();
    const int64_t begin = neighbours ? 4 * kHq * kD : 0;
    return std::vector<double>(out.begin() + begin, out.begin() + begin + 5 * kHq * kD);
  };
  EXPECT_EQ(run(9, 100), run(0, 0));
  EXPECT_EQ(run(9, 100), run(9, 200));
  EXPECT_EQ(run(120, 100), run(0, 0));  // enough rows for threads
}

TEST(AppendKv, FillsItsOwnPagesAndNothingElse) {
  ChainTable table;
  table.page_size = 2;
  table.pages = {3, 1, /**/ 4, 0};
  add_chain(table, {.page_begin = 0}, {step(3)});
  add_chain(table, {.page_begin = 2, .kv_begin = 1}, {step(2)});
  const Owned<float> k = random<float>({5, 1, 2}, 1), v = random<float>({5, 1, 2}, 2),
                     k_pages({5, 2, 1, 2}), v_pages({5, 2, 1, 2});
  append_kv<float>({k, v, k_pages, v_pages}, table);
  const std::vector<std::pair<int, int>> places = {{3, 0}, {3, 1}, {1, 0}, {4, 1}, {0, 0}};
  int written = 0;
  for (const auto& [pages, rows] : {std::pair{&k_pages, &k}, {&v_pages, &v}})
    for (int r = 0; r < 5; ++r)
      EXPECT_EQ(elements(pages->tensor.at(places[r].first).at(places[r].second)),
                elements(rows->tensor.at(r)));
  for (const float x : k_pages.memory) written += !std::isnan(x);
  EXPECT_EQ(written, 10);
}

// Two chains of own tokens without rotation, by a plain loop in float64: keys and values are what
// the pages hold.
std::vector<double> plain_attention(const std::vector<double>& q,
                                    const std::vector<std::vector<double>>& k,
                                    const std::vector<std::vector<double>>& v, int64_t Hq,
                                    int64_t Hkv, int64_t D, int64_t Dv, const ChainTable& table) {
  std::vector<double> out;
  for (int64_t r = 0; r < table.row_count(); ++r)
    for (int64_t h = 0; h < Hq; ++h) {
      const int64_t kv = h / (Hq / Hkv);
      std::vector<double> sum(Dv);
      double total = 0;
      for (int64_t i = table.chains[table.chain_of[r]].row_begin; i <= r; ++i) {
        double score = 0;
        for (int64_t d = 0; d < D; ++d) score += q[(r * Hq + h) * D + d] * k[i][kv * D + d];
        total += std::exp(kScale * score);
        for (int64_t d = 0; d < Dv; ++d) sum[d] += std::exp(kScale * score) * v[i][kv * Dv + d];
      }
      for (const double x : sum) out.push_back(x / total);
    }
  return out;
}

ChainTable two_chains() {
  ChainTable table;
  table.page_size = 2;
  table.pages = {3, 1, /**/ 4, 0, 2};
  add_chain(table, {.page_begin = 0}, {step(4)});
  add_chain(table, {.page_begin = 2}, {step(5)});
  return table;
}

TYPED_TEST(AttentionTest, ValuesMayHaveAnotherWidth) {
  using T = TypeParam;
  for (const int64_t Dv : {1, 5, 11}) {
    const ChainTable table = two_chains();
    const Owned<T> q = random<T>({9, kHq, kD}, 1), k = random<T>({9, kHkv, kD}, 2),
                   v = random<T>({9, kHkv, Dv}, 3), out({9, kHq, Dv}), k_pages({5, 2, kHkv, kD}),
                   v_pages({5, 2, kHkv, Dv});
    append_kv<T>({k, v, k_pages, v_pages}, table);
    attention<T>({q, k_pages, v_pages, 0, 0, kScale, out}, table);
    std::vector<std::vector<double>> keys, values;
    for (int64_t r = 0; r < 9; ++r)
      keys.push_back(elements(k.tensor.at(r))), values.push_back(elements(v.tensor.at(r)));
    EXPECT_LE(distance(elements(out),
                       plain_attention(elements(q), keys, values, kHq, kHkv, kD, Dv, table)),
              sizeof(T) == 8 ? 1e-13 : 1e-5)
        << "Dv " << Dv;
  }
}

// Multi-head latent attention: one K for all heads, whose first dims are V; K alone is appended.
TYPED_TEST(AttentionTest, ValuesMayBeAPartOfTheKeys) {
  using T = TypeParam;
  const int64_t latent = 6, width = 9;
  const ChainTable table = two_chains();
  const Owned<T> q = random<T>({9, kHq, width}, 1), k = random<T>({9, 1, width}, 2),
                 out({9, kHq, latent}), k_pages({5, 2, 1, width});
  append_kv<T>({.k = k, .k_pages = k_pages}, table);
  attention<T>({q, k_pages, k_pages.tensor.columns(0, latent), 0, 0, kScale, out}, table);
  std::vector<std::vector<double>> keys, values;
  for (int64_t r = 0; r < 9; ++r) {
    keys.push_back(elements(k.tensor.at(r)));
    values.push_back(elements(k.tensor.at(r).columns(0, latent)));
  }
  EXPECT_LE(distance(elements(out),
                     plain_attention(elements(q), keys, values, kHq, 1, width, latent, table)),
            sizeof(T) == 8 ? 1e-13 : 1e-5);
  // V without pages for it, or the other way round.
  EXPECT_THROW(append_kv<T>({.k = k, .v = k, .k_pages = k_pages}, table), InternalError);
  EXPECT_THROW(append_kv<T>({.k = k, .k_pages = k_pages, .v_pages = k_pages}, table),
               InternalError);
}

TEST(Attention, RefusesWhatDoesNotFit) {
  ChainTable table = one_chain({}, {step(2)});
  table.pages = {0};
  const Owned<float> q = random<float>({2, 4, 8}, 1), k = random<float>({2, 2, 8}, 2),
                     out({2, 4, 8}), k_pages({1, 16, 2, 8}), v_pages({1, 16, 2, 8}),
                     wrong({1, 8, 2, 8});
  const auto run = [&](const Tensor& queries, const Tensor& keys, int rotary_dim) {
    attention<float>({queries, keys, v_pages, rotary_dim, 1e4, 1, out}, table);
  };
  append_kv<float>({k, k, k_pages, v_pages}, table);
  EXPECT_NO_THROW(run(q, k_pages, 8));
  EXPECT_THROW(run(q, k_pages, 10), InternalError);
  EXPECT_THROW(run(q, k_pages, 3), InternalError);
  EXPECT_THROW(run(q, wrong, 8), InternalError);
  EXPECT_THROW(run(random<float>({3, 4, 8}, 1), k_pages, 8), InternalError);
  EXPECT_THROW(run(random<float>({2, 3, 8}, 1), k_pages, 8), InternalError);
  EXPECT_THROW(run(random<double>({2, 4, 8}, 1), k_pages, 8), InternalError);
  EXPECT_THROW(append_kv<float>({k, k, wrong, wrong}, table), InternalError);
  EXPECT_THROW(
      append_kv<float>({random<float>({3, 2, 8}, 1), random<float>({3, 2, 8}, 1), k_pages, v_pages},
                       table),
      InternalError);
}

}  // namespace
}  // namespace hypic::reference
