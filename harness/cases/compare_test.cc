#include "harness/cases/compare.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hypic::conformance {
namespace {

Array array(std::vector<int64_t> shape, std::vector<double> data) {
  Array x(std::move(shape));
  x.data = std::move(data);
  return x;
}

TEST(Compare, NamesTheFirstBadCoordinate) {
  const Array want = array({2, 2, 2}, {1, 1, 1, 1, 2, 2, 2, 2});
  Array got = want;
  EXPECT_EQ(compare(got, want, 1, {1e-5}).wrong, "");
  got(1, 0, 1) = 2.5;
  const Comparison c = compare(got, want, 1, {1e-5});
  EXPECT_EQ(c.wrong, "[1, 0, 1] is 2.5, expected 2; RMS ratio 0.1581, at most 1e-5");
  EXPECT_EQ(c.max_abs, 0.5);
  EXPECT_NEAR(c.rms, 0.5 / std::sqrt(10.0), 1e-15);
  EXPECT_LT(c.cosine, 1);
}

TEST(Compare, GroupsDoNotHideEachOther) {
  const Array want = array({2, 2}, {1e6, 1e6, 1, 1});
  const Array got = array({2, 2}, {1e6, 1e6, 1.01, 1});
  EXPECT_EQ(compare(got, want, -1, {1e-5}).wrong, "");  // as one group it drowns
  EXPECT_NE(compare(got, want, 0, {1e-5}).wrong, "");
  EXPECT_EQ(compare(got, want, 0, {1e-5, 0.1}).wrong, "");  // each group has its bound
}

TEST(Compare, NotFiniteNumbersStandAtTheSamePlaces) {
  const Array want = array({3}, {NAN, INFINITY, 1});
  EXPECT_EQ(compare(want, want, -1, {1e-5}).wrong, "");
  EXPECT_NE(compare(array({3}, {0, INFINITY, 1}), want, -1, {1e-5}).wrong, "");
  EXPECT_NE(compare(array({3}, {NAN, -INFINITY, 1}), want, -1, {1e-5}).wrong, "");
  EXPECT_NE(compare(array({3}, {NAN, INFINITY, NAN}), want, -1, {1e-5}).wrong, "");
}

TEST(Compare, ZeroIsMetExactlyOrDownToTheFloor) {
  const Array zero = array({2}, {0, 0}), tiny = array({2}, {1e-40, 0});
  EXPECT_EQ(compare(zero, zero, -1, {1e-5}).wrong, "");
  EXPECT_NE(compare(tiny, zero, -1, {1e-5}).wrong, "");
  EXPECT_EQ(compare(tiny, zero, -1, {1e-5}, {1e-30}).wrong, "");
}

TEST(Compare, OneElementCannotHideInALargeGroup) {
  Array want({10000}, 1.0), got = want;
  got(9000) = 1.2;  // RMS ratio 2e-3, below the bound
  EXPECT_EQ(compare(got, want, -1, {6e-3}).wrong,
            "[9000] is 1.2, expected 1; RMS ratio 0.002, at most 0.006");
}

TEST(Compare, TolerancesFollowTheDtype) {
  EXPECT_EQ(tolerance(DType::f64), 1e-12);
  EXPECT_EQ(tolerance(DType::f32), 1e-5);
  EXPECT_EQ(tolerance(DType::f32, true), 5e-4);
  EXPECT_EQ(tolerance(DType::bf16), 6e-3);
  EXPECT_DOUBLE_EQ(tolerance(DType::bf16, false, 2e-3), 3e-3);
  EXPECT_EQ(tolerance(DType::bf16, false, 1e-2), 6e-3);
}

TEST(Compare, DifferencesInBits) {
  const Array x = array({2}, {NAN, 1}), y = array({2}, {NAN, std::nextafter(1.0, 2.0)});
  EXPECT_EQ(first_difference(x, x), "");
  EXPECT_EQ(first_difference(x, y), "[1] is 1, before 1.0000000000000002; the same bits are asked");
}

}  // namespace
}  // namespace hypic::conformance
