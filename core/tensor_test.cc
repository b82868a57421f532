#include "core/tensor.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>

namespace hypic {
namespace {

// The message of the exception that body throws; "" if it throws none.
template <class Exception, class Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<float> counted(int n) {
  std::vector<float> memory(n);
  std::iota(memory.begin(), memory.end(), 0.0f);
  return memory;
}

float first(const Tensor& t) { return t.as<float>()[0]; }

TEST(Tensor, IsRowMajor) {
  std::vector<float> memory(24);
  const Tensor t(memory.data(), {2, 3, 4});
  EXPECT_EQ(t.rank, 3);
  EXPECT_EQ(t.dtype, DType::f32);
  EXPECT_EQ(t.size(), 24);
  EXPECT_EQ(t.bytes(), 96);
  EXPECT_EQ(t.stride[0], 12);
  EXPECT_EQ(t.stride[1], 4);
  EXPECT_EQ(t.stride[2], 1);
  EXPECT_TRUE(t.contiguous());
  EXPECT_EQ(t.shape_string(), "[2, 3, 4]");
  EXPECT_EQ(t[1], 3);
}

TEST(Tensor, AbsentAndScalar) {
  EXPECT_FALSE(Tensor());
  float x = 7;
  const Tensor scalar(&x, {});
  EXPECT_TRUE(scalar);
  EXPECT_EQ(scalar.size(), 1);
  EXPECT_TRUE(scalar.contiguous());
  EXPECT_EQ(scalar.shape_string(), "[]");
}

TEST(Tensor, RowsAndAt) {
  std::vector<float> memory = counted(24);
  const Tensor t(memory.data(), {2, 3, 4});
  EXPECT_EQ(t.at(1).shape_string(), "[3, 4]");
  EXPECT_EQ(first(t.at(1)), 12);
  EXPECT_EQ(first(t.at(1).at(2).at(3)), 23);
  EXPECT_EQ(t.at(0).rows(1, 3).shape_string(), "[2, 4]");
  EXPECT_EQ(first(t.at(0).rows(1, 3)), 4);
  EXPECT_EQ(t.rows(2, 2).size(), 0);
  EXPECT_THROW(t.rows(1, 3), InternalError);
  EXPECT_THROW(t.rows(-1, 1), InternalError);
  EXPECT_THROW(t.rows(2, 1), InternalError);
  EXPECT_THROW(t.at(2), InternalError);
  EXPECT_THROW(t.at(-1), InternalError);
  EXPECT_THROW(t.at(0).at(0).at(0).at(0), InternalError);
  EXPECT_TRUE(
      contains(message_of<InternalError>([&] { t.rows(1, 3); }), "rows [1, 3) of [2, 3, 4]"));
}

// Operations compare whole shape arrays: what a view of lower rank leaves behind must not differ.
TEST(Tensor, AtLeavesNothingBehindTheRank) {
  std::vector<float> memory(32);
  const Tensor five(memory.data(), {2, 2, 2, 2, 2}), four(memory.data(), {2, 2, 2, 2});
  EXPECT_EQ(five.at(1).shape, four.shape);
  EXPECT_EQ(five.at(1).stride, four.stride);
}

TEST(Tensor, ColumnsAreStrided) {
  std::vector<float> memory = counted(24);
  const Tensor t(memory.data(), {4, 6});
  const Tensor columns = t.columns(2, 5);
  EXPECT_EQ(columns.shape_string(), "[4, 3]");
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(first(columns.at(3)), 20);
  EXPECT_TRUE(columns.at(3).contiguous());
  EXPECT_TRUE(columns.rows(1, 2).contiguous());  // one row
  EXPECT_TRUE(t.columns(0, 6).contiguous());
  EXPECT_EQ(first(columns.columns(1, 2).at(1)), 9);
  EXPECT_THROW(t.columns(0, 7), InternalError);
  EXPECT_THROW(t.columns(-1, 2), InternalError);
  EXPECT_THROW(t.columns(3, 2), InternalError);
}

TEST(Tensor, ReshapeKeepsTheElements) {
  std::vector<float> memory = counted(24);
  const Tensor t(memory.data(), {4, 6});
  EXPECT_EQ(first(t.reshape({2, 3, 4}).at(1).at(1)), 16);
  EXPECT_EQ(t.reshape({24}).shape_string(), "[24]");
  EXPECT_THROW(t.reshape({5, 5}), InternalError);

  // Strided rows: a row splits, rows do not merge.
  const Tensor columns = t.columns(1, 5), split = columns.reshape({4, 2, 2});
  EXPECT_EQ(first(split.at(2).at(1)), 15);
  EXPECT_EQ(split.at(3).reshape({4}).as<float>()[3], 22);
  EXPECT_EQ(first(split.reshape({4, 4}).at(1)), 7);
  EXPECT_THROW(columns.reshape({16}), InternalError);
  EXPECT_THROW(columns.reshape({2, 8}), InternalError);
  EXPECT_THROW(split.columns(0, 1).reshape({4, 2}), InternalError);  // rows of two with a hole
  EXPECT_TRUE(contains(message_of<InternalError>([&] { t.reshape({5, 5}); }), "[4, 6] as [5, 5]"));
}

TEST(Tensor, EmptyShapes) {
  std::vector<float> memory(12);
  const Tensor none(memory.data(), {0, 3}), wide(memory.data(), {4, 3});
  EXPECT_EQ(none.size(), 0);
  EXPECT_TRUE(none.contiguous());
  EXPECT_TRUE(wide.columns(1, 1).contiguous());
  EXPECT_EQ(none.reshape({0, 3, 1}).shape_string(), "[0, 3, 1]");
  EXPECT_EQ(wide.columns(2, 2).reshape({4, 0, 7}).size(), 0);
  EXPECT_THROW(none.at(0), InternalError);
  EXPECT_THROW(Tensor(memory.data(), {-1, 3}), InternalError);
  EXPECT_THROW(Tensor(memory.data(), {1, 1, 1, 1, 1, 1}), InternalError);
}

TEST(Tensor, AccessChecksTheDtype) {
  std::vector<double> memory(6);
  const Tensor t(memory.data(), {2, 3});
  EXPECT_EQ(t.as<double>(), memory.data());
  EXPECT_TRUE(
      contains(message_of<InternalError>([&] { t.as<float>(); }), "tensor is float64 [2, 3]"));
  std::vector<float> single(6);
  const Tensor other(single.data(), {2, 3});
  EXPECT_NO_THROW(check_dtype<double>(t, Tensor(), t));
  EXPECT_THROW(check_dtype<double>(t, Tensor(), other), InternalError);
}

// A view of a view reads the element that plain index arithmetic names.
TEST(Tensor, AnyViewReadsTheRightElement) {
  EXPECT_TRUE(rc::check([] {
    const int64_t rows = *rc::gen::inRange(1, 6), heads = *rc::gen::inRange(1, 5),
                  width = *rc::gen::inRange(1, 7);
    const auto range = [](int64_t n) {
      const int64_t begin = *rc::gen::inRange<int64_t>(0, n);
      return std::pair{begin, *rc::gen::inRange<int64_t>(begin + 1, n + 1)};
    };
    const auto [r0, r1] = range(rows);
    const auto [c0, c1] = range(width);
    std::vector<float> memory = counted(static_cast<int>(rows * heads * width));
    const Tensor view = Tensor(memory.data(), {rows, heads * width})
                            .rows(r0, r1)
                            .reshape({r1 - r0, heads, width})
                            .columns(c0, c1);
    for (int64_t r = r0; r < r1; ++r)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t c = c0; c < c1; ++c)
          RC_ASSERT(first(view.at(r - r0).at(h).at(c - c0)) == (r * heads + h) * width + c);
    RC_ASSERT(view.contiguous() == (c1 - c0 == width || (r1 - r0 == 1 && heads == 1)));
  }));
}

class ShapesTest : public testing::Test {
 protected:
  std::vector<float> memory_ = std::vector<float>(64);
  Tensor tensor(std::initializer_list<int64_t> shape) { return Tensor(memory_.data(), shape); }
};

TEST_F(ShapesTest, AgreeingSymbols) {
  Shapes shapes("matmul");
  shapes.bind(tensor({2, 3}), "x", {"R", "K"})
      .bind(tensor({4, 3}), "w", {"N", "K"})
      .bind(tensor({2, 4}), "out", {"R", "N"})
      .bind(tensor({3, 2}), "pairs", {"K", "2"});
  EXPECT_EQ(shapes["R"], 2);
  EXPECT_EQ(shapes["K"], 3);
  EXPECT_EQ(shapes["N"], 4);
  EXPECT_TRUE(
      contains(message_of<InternalError>([&] { (void)shapes["Q"]; }), "matmul: no size named Q"));
}

TEST_F(ShapesTest, ADisagreementNamesOperationTensorAndSource) {
  const std::string message = message_of<InternalError>([&] {
    Shapes("matmul").bind(tensor({2, 3}), "x", {"R", "K"}).bind(tensor({4, 5}), "w", {"N", "K"});
  });
  EXPECT_TRUE(contains(message, "matmul: w has shape [4, 5], but K = 3 from x")) << message;
}

TEST_F(ShapesTest, AWrongRankOrFixedSize) {
  EXPECT_TRUE(contains(message_of<InternalError>([&] {
                         Shapes("rope").bind(tensor({2, 3}), "x", {"R", "H", "D"});
                       }),
                       "rope: x has shape [2, 3], expected 3 axes"));
  EXPECT_TRUE(contains(message_of<InternalError>([&] {
                         Shapes("rope").bind(tensor({2, 3}), "x", {"R", "4"});
                       }),
                       "rope: x has shape [2, 3], expected 4 on axis 1"));
  EXPECT_THROW(Shapes("square").bind(tensor({2, 3}), "x", {"N", "N"}), InternalError);
}

}  // namespace
}  // namespace hypic
