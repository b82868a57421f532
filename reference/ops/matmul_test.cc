#include "reference/ops/matmul.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

// A view of the first `columns` columns of a wider tensor: its rows are strided.
template <class T>
struct Wide {
  Wide(int64_t rows, int64_t columns, int64_t more, uint64_t seed)
      : memory(random<T>({rows, columns + more}, seed)), view(memory.tensor.columns(0, columns)) {}
  Owned<T> memory;
  Tensor view;
};

template <class T>
std::vector<double> product(const Tensor& x, const Tensor& w) {
  std::vector<double> out;
  for (int64_t r = 0; r < x[0]; ++r)
    for (int64_t n = 0; n < w[0]; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < x[1]; ++k)
        sum += static_cast<double>(x.at(r).as<T>()[k]) * static_cast<double>(w.at(n).as<T>()[k]);
      out.push_back(sum);
    }
  return out;
}

template <class T>
void check_sizes() {
  for (int64_t N = 0; N <= 13; ++N)
    for (const int64_t K : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 23, 24, 25, 41}) {
      const Owned<T> x = random<T>({3, K}, K), w = random<T>({N, K}, N + 1);
      const Owned<T> out({3, N});
      matmul<T>({x, w, out});
      EXPECT_LE(distance(elements(out), product<T>(x, w)), sizeof(T) == 8 ? 1e-14 : 1e-5)
          << "N " << N << ", K " << K;
    }
}

TEST(Matmul, IsTheProductForAnySize) {
  check_sizes<float>();
  check_sizes<double>();
}

TEST(Matmul, NoRows) {
  const Owned<float> x({0, 5}), out({0, 4});
  EXPECT_NO_THROW(matmul<float>({x, random<float>({4, 5}, 1), out}));
}

// The promise that all of serving rests on.
template <class T>
void check_batches() {
  EXPECT_TRUE(
      rc::check("a row has the same bits alone, in any batch, at any place, with any stride", [] {
        const int64_t R = *rc::gen::inRange(1, 12), N = *rc::gen::inRange(1, 20),
                      K = *rc::gen::inRange(1, 70);
        const Wide<T> x(R, K, *rc::gen::inRange(0, 4), 1), w(N, K, 0, 2);
        Wide<T> out(R, N, *rc::gen::inRange(0, 4), 3);
        matmul<T>({x.view, w.view, out.view});
        const int64_t r = *rc::gen::inRange<int64_t>(0, R);
        const Owned<T> alone({1, N});
        Owned<T> row({1, K});
        std::copy_n(x.view.at(r).template as<T>(), K, row.memory.begin());
        matmul<T>({row, w.view, alone});
        RC_ASSERT(elements(alone.tensor.at(0)) == elements(out.view.at(r)));
        // And elsewhere in another batch.
        const Owned<T> batch = random<T>({R + 2, K}, 4), other({R + 2, N});
        std::copy_n(row.memory.begin(), K, batch.tensor.at(R + 1).template as<T>());
        matmul<T>({batch, w.view, other});
        RC_ASSERT(elements(alone.tensor.at(0)) == elements(other.tensor.at(R + 1)));
      }));
}

TEST(Matmul, ARowHasTheSameBitsInAnyBatch) {
  check_batches<float>();
  check_batches<double>();
}

// Large enough for threads, against a row that is not.
TEST(Matmul, ThreadsChangeNoBits) {
  const Owned<float> x = random<float>({40, 64}, 1), w = random<float>({101, 64}, 2),
                     out({40, 101});
  matmul<float>({x, w, out});
  for (int64_t r = 0; r < 40; ++r) {
    const Owned<float> alone({1, 101});
    matmul<float>({x.tensor.rows(r, r + 1), w, alone});
    ASSERT_EQ(elements(alone), elements(out.tensor.rows(r, r + 1))) << r;
  }
}

TEST(Matmul, WritesNothingBesideItsColumns) {
  Wide<float> out(4, 6, 3, 1);
  const std::vector<double> before = elements(out.memory.tensor.columns(6, 9));
  matmul<float>({random<float>({4, 5}, 2), random<float>({6, 5}, 3), out.view});
  EXPECT_EQ(elements(out.memory.tensor.columns(6, 9)), before);
}

template <class T>
void check_scale() {
  for (const int64_t N : {1, 4, 7}) {  // with and without whole blocks
    const Owned<T> x = random<T>({3, 9}, 1), w = random<T>({N, 9}, 2), out({3, N});
    matmul<T>({x, w, out, -0.375});
    std::vector<double> expected = product<T>(x, w);
    for (double& y : expected) y *= -0.375;
    EXPECT_LE(distance(elements(out), expected), sizeof(T) == 8 ? 1e-14 : 1e-5) << "N " << N;
  }
}

TEST(Matmul, Scales) {
  check_scale<float>();
  check_scale<double>();
}

// Each head with a matrix of its own, either way round; rows and heads strided, as q = [latent |
// rest] is.
template <class T>
void check_heads() {
  const int64_t R = 3, H = 2;
  for (const int64_t N : {1, 5, 8})
    for (const int64_t K : {1, 7, 9})
      for (const bool transposed : {false, true})
        for (const int64_t more : {0, 3}) {
          const Owned<T> x = random<T>({R, H, K + more}, 1),
                         w = random<T>(transposed ? std::vector{H, K, N} : std::vector{H, N, K}, 2);
          Owned<T> out({R, H, N + more});
          const Tensor from = x.tensor.columns(more, K + more), to = out.tensor.columns(0, N);
          head_matmul<T>({from, w, transposed, to});
          std::vector<double> expected;
          for (int64_t r = 0; r < R; ++r)
            for (int64_t h = 0; h < H; ++h)
              for (int64_t n = 0; n < N; ++n) {
                double sum = 0;
                for (int64_t k = 0; k < K; ++k)
                  sum += static_cast<double>(x[(r * H + h) * (K + more) + more + k]) *
                         w[h * K * N + (transposed ? k * N + n : n * K + k)];
                expected.push_back(sum);
              }
          EXPECT_LE(distance(elements(to), expected), sizeof(T) == 8 ? 1e-14 : 1e-5)
              << N << " × " << K << (transposed ? " transposed" : "");
          for (const double beside : elements(out.tensor.columns(N, N + more)))
            EXPECT_TRUE(std::isnan(beside));
          const Owned<T> alone({1, H, N});  // the same bits alone
          head_matmul<T>({from.rows(2, 3), w, transposed, alone});
          EXPECT_EQ(elements(alone.tensor.at(0)), elements(to.at(2)));
        }
}

TEST(HeadMatmul, IsAProductForEachHead) {
  check_heads<float>();
  check_heads<double>();
}

TEST(HeadMatmul, RefusesWhatDoesNotFit) {
  const Owned<float> x = random<float>({3, 2, 5}, 1), w = random<float>({2, 4, 5}, 2),
                     out({3, 2, 4});
  EXPECT_NO_THROW(head_matmul<float>({x, w, false, out}));
  EXPECT_THROW(head_matmul<float>({x, w, true, out}), InternalError);
  EXPECT_THROW(head_matmul<float>({x, random<float>({1, 4, 5}, 2), false, out}), InternalError);
  EXPECT_THROW(head_matmul<float>({x, random<double>({2, 4, 5}, 2), false, out}), InternalError);
  EXPECT_NO_THROW(head_matmul<float>({x.tensor.rows(0, 0), w, false, out.tensor.rows(0, 0)}));
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  const Owned<float> x = random<float>({3, 5}, 1), w = random<float>({4, 5}, 2), out({3, 4});
  EXPECT_NO_THROW(matmul<float>({x, w, out}));
  EXPECT_THROW(matmul<float>({x, random<float>({4, 6}, 2), out}), InternalError);
  EXPECT_THROW(matmul<float>({x, w, Owned<float>({4, 4})}), InternalError);
  EXPECT_THROW(matmul<float>({x, w, Owned<double>({3, 4})}), InternalError);
  EXPECT_THROW(matmul<float>({random<double>({3, 5}, 1), w, out}), InternalError);
  EXPECT_THROW(matmul<float>({x, random<float>({4, 9}, 2).tensor.columns(0, 5), out}),
               InternalError);
}

}  // namespace
}  // namespace hypic::reference
