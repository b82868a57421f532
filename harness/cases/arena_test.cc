#include "harness/cases/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/cpu_backend.h"

namespace hypic::conformance {
namespace {

class ArenaTest : public testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ = reference::make_cpu_backend();
  Arena arena_{*backend_};
};

TEST_F(ArenaTest, OutputsBeginAsNaNAndMayBeWritten) {
  const Tensor out = arena_.output("out", {2, 3}, DType::f32);
  for (const double x : arena_.read(out).data) EXPECT_TRUE(std::isnan(x));
  for (int i = 0; i < 6; ++i) out.as<float>()[i] = static_cast<float>(i);
  EXPECT_EQ(arena_.read(out)(1, 2), 5);
  EXPECT_TRUE(arena_.violations().empty());
}

TEST_F(ArenaTest, WritesOutsideAreSeen) {
  const Tensor after = arena_.output("after", {2, 3}, DType::f32);
  const Tensor between = arena_.output("between", {2, 3}, DType::f32, 2);
  const Tensor before = arena_.output("before", {2, 3}, DType::f32);
  after.as<float>()[6] = 0;
  between.as<float>()[3] = 0;
  before.as<float>()[-1] = 0;
  EXPECT_EQ(arena_.violations(),
            (std::vector<std::string>{"written outside after at element 6 of [2, 3]",
                                      "written outside between at element 3 of [2, 3]",
                                      "written outside before at element -1 of [2, 3]"}));
}

TEST_F(ArenaTest, InputsMustComeBackUnchanged) {
  Array values({2, 2}, 1.5);
  const Tensor x = arena_.input("x", values, DType::f32, 3);
  EXPECT_EQ(x.stride[0], 5);
  EXPECT_EQ(arena_.read(x).data, values.data);
  x.as<float>()[5] = 2;
  EXPECT_EQ(arena_.violations(), (std::vector<std::string>{"input x was changed at element 5"}));
}

TEST_F(ArenaTest, ColumnsMayComeBeforeTheFirst) {
  Array values({2, 3});
  for (int i = 0; i < 6; ++i) values.data[i] = i;
  const Tensor x = arena_.input("x", values, DType::f32, 4, 3);
  const Tensor out = arena_.output("out", {2, 3}, DType::f32, 4, 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data) % 16, 12u);
  EXPECT_EQ(x.as<float>()[7], 3);
  EXPECT_EQ(arena_.read(x).data, values.data);
  for (int r = 0; r < 2; ++r) std::fill_n(out.as<float>() + 7 * r, 3, 1.0f);
  EXPECT_TRUE(arena_.violations().empty());
  out.as<float>()[-1] = 0;
  EXPECT_EQ(arena_.violations(), (std::vector<std::string>{"written outside out at element -1 of [2, 3]"}));
}

TEST_F(ArenaTest, EmptyTensorsHaveAnAddress) {
  const Tensor x = arena_.input("x", Array({0, 4}), DType::f32);
  EXPECT_TRUE(static_cast<bool>(x));
  EXPECT_TRUE(arena_.read(x).data.empty());
}

TEST(Rounded, AsTheDtypeHoldsIt) {
  EXPECT_EQ(rounded(Array({1}, 1 + 0x1p-30), DType::f32)(0), 1);
  EXPECT_EQ(rounded(Array({1}, 1 + 0x1p-30), DType::f64)(0), 1 + 0x1p-30);
  EXPECT_EQ(rounded(Array({1}, 1.01), DType::bf16)(0), 1.0078125);
}

}  // namespace
}  // namespace hypic::conformance
