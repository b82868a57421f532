#include "reference/ops/norm.h"

#include <gtest/gtest.h>

#include "reference/ops/testing.h"

namespace hypic::reference {
namespace {

TEST(RmsNorm, IsItsDefinition) {
  const Owned<double> x = random<double>({5, 7}, 1), w = random<double>({7}, 2), out({5, 7});
  for (const bool plus_one : {false, true})
    for (const double eps : {1e-6, 0.5}) {
      rms_norm<double>({x, w, plus_one, eps, out});
      std::vector<double> expected;
      for (int64_t r = 0; r < 5; ++r) {
        double square = 0;
        for (int64_t i = 0; i < 7; ++i) square += x[r * 7 + i] * x[r * 7 + i];
        for (int64_t i = 0; i < 7; ++i)
          expected.push_back(x[r * 7 + i] / std::sqrt(square / 7 + eps) * (w[i] + plus_one));
      }
      EXPECT_LE(distance(elements(out), expected), 1e-14);
    }
}

template <class T>
void check_weight_per_head() {
  const Owned<T> x = random<T>({4, 3, 7}, 1), w = random<T>({3, 7}, 2), out({4, 3, 7});
  for (const bool plus_one : {false, true}) {
    rms_norm<T>({x, w, plus_one, 1e-3, out});
    std::vector<double> expected;
    for (int64_t i = 0; i < 12; ++i) {
      double square = 0;
      for (int64_t d = 0; d < 7; ++d) square += static_cast<double>(x[i * 7 + d]) * x[i * 7 + d];
      for (int64_t d = 0; d < 7; ++d)
        expected.push_back(x[i * 7 + d] / std::sqrt(square / 7 + 1e-3) *
                           (w[i % 3 * 7 + d] + double(plus_one)));
    }
    EXPECT_LE(distance(elements(out), expected), sizeof(T) == 8 ? 1e-14 : 1e-6);
  }
  EXPECT_THROW(rms_norm<T>({x, random<T>({2, 7}, 2), false, 1e-3, out}), InternalError);
  EXPECT_THROW(rms_norm<T>({x, random<T>({3, 6}, 2), false, 1e-3, out}), InternalError);
  const Owned<T> flat = random<T>({4, 7}, 1), flat_out({4, 7});
  EXPECT_THROW(rms_norm<T>({flat, w, false, 1e-3, flat_out}), InternalError);
}

TEST(RmsNorm, MayHaveAWeightForEachHead) {
  check_weight_per_head<float>();
  check_weight_per_head<double>();
}

TEST(L2Norm, AddsEpsToTheSum) {
  Owned<double> x({1, 1, 2});
  x[0] = 3, x[1] = 4;
  const Owned<double> out({1, 1, 2});
  l2_norm<double>({x, 11, out});
  EXPECT_LE(distance(elements(out), {0.5, 4.0 / 6}), 1e-15);
}

TEST(Norms, OfZerosAreZeros) {
  Owned<float> x({2, 1, 9});
  std::fill(x.memory.begin(), x.memory.end(), 0.0f);
  const Owned<float> out({2, 1, 9});
  l2_norm<float>({x, 1e-6, out});
  EXPECT_EQ(elements(out), std::vector<double>(18));
  rms_norm<float>({x, random<float>({9}, 1), true, 1e-6, out});
  EXPECT_EQ(elements(out), std::vector<double>(18));
}

// The heads of q in [q | gate] are strided; a head has the same bits there, alone and in place.
TEST(Norms, HeadsMayBeStrided) {
  const Owned<float> both = random<float>({4, 3, 20}, 1), w = random<float>({10}, 2),
                     out({4, 3, 10});
  const Tensor q = both.tensor.columns(0, 10);
  rms_norm<float>({q, w, true, 1e-6, out});
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t h = 0; h < 3; ++h) {
      const Owned<float> alone({1, 10});
      rms_norm<float>({Tensor(q.at(r).at(h).as<float>(), {1, 10}), w, true, 1e-6, alone});
      EXPECT_EQ(elements(alone.tensor.at(0)), elements(out.tensor.at(r).at(h)));
    }
  const std::vector<double> gate = elements(both.tensor.columns(10, 20));
  rms_norm<float>({q, w, true, 1e-6, q});
  EXPECT_EQ(elements(q), elements(out));
  EXPECT_EQ(elements(both.tensor.columns(10, 20)), gate);
}

TEST(Norms, RefuseWhatDoesNotFit) {
  const Owned<float> x = random<float>({4, 10}, 1), w = random<float>({10}, 2), out({4, 10});
  EXPECT_NO_THROW(rms_norm<float>({x, w, true, 1e-6, out}));
  EXPECT_THROW(rms_norm<float>({x, random<float>({9}, 2), true, 1e-6, out}), InternalError);
  EXPECT_THROW(rms_norm<float>({x, w, true, 1e-6, Owned<float>({4, 1, 10})}), InternalError);
  EXPECT_THROW(rms_norm<float>({x, w, true, 1e-6, Owned<float>({3, 10})}), InternalError);
  EXPECT_THROW(rms_norm<float>({random<double>({4, 10}, 1), w, true, 1e-6, out}), InternalError);
  EXPECT_THROW(rms_norm<float>({x, random<double>({10}, 2), true, 1e-6, out}), InternalError);
  EXPECT_THROW(l2_norm<float>({x, 1e-6, Owned<double>({4, 10})}), InternalError);
}

}  // namespace
}  // namespace hypic::reference
