#include "harness/bench/cost.h"

#include <gtest/gtest.h>

#include "harness/bench/job.h"
#include "harness/cases/layer.h"

namespace hypic::bench {
namespace {

using conformance::Plan;

constexpr Ceilings kH200 = {4.3e12, 780e12};  // as measured: docs/benchmarks.md

// Shapes are all that is read.
Tensor of(DType dtype, std::initializer_list<int64_t> shape) {
  static char memory;
  return Tensor(&memory, dtype, shape);
}

LinearAttentionArgs layer(int64_t T, int64_t Hk, int64_t Hv, Decay decay, Update update) {
  LinearAttentionArgs a{.decay = decay, .update = update, .readout = Readout::plain, .scale = 1};
  a.q = a.k = of(DType::bf16, {T, Hk, 128});
  a.v = a.o = of(DType::bf16, {T, Hv, 128});
  a.state = of(DType::f32, {64, Hv, 128, 128});
  return a;
}

TEST(BenchCost, LimitIsTheSlowerOfMovingAndComputing) {
  EXPECT_EQ(limit_seconds({100, 10}, {10, 10}), 10);
  EXPECT_EQ(limit_seconds({100, 1000}, {10, 10}), 100);
  EXPECT_EQ(limit_seconds({100, 0}, {10, 10}), 10);
}

TEST(BenchCost, BytesOfTensors) {
  const Tensor rows = of(DType::bf16, {8, 4});
  Tensor repeated = rows;
  repeated.stride[0] = 0;  // one row, seen eight times
  EXPECT_EQ(bytes_of({rows}), 64);
  EXPECT_EQ(bytes_of({repeated, rows, Tensor()}), 8 + 64);
  EXPECT_EQ(bytes_of({rows.rows(0, 0)}), 0);
}

// Small enough to count by hand: 3 tokens, 1 head of 2 × 4.
TEST(BenchCost, LinearAttentionByHand) {
  LinearAttentionArgs a{.decay = Decay::scalar, .update = Update::add};
  a.q = a.k = of(DType::f32, {3, 1, 2});
  a.v = a.o = of(DType::f32, {3, 1, 4});
  a.g = of(DType::f32, {3, 1});
  a.state = of(DType::f32, {2, 1, 2, 4});
  a.operators = {OperatorKind::scalar, of(DType::f32, {5, 1}), {}, of(DType::f32, {5, 1, 2, 4})};
  const double io = 4 * (6 + 6 + 12 + 12 + 3), state = 4 * 8, op = 4 * (8 + 1);
  const double step = 3 * (4 * 2 * 4 + 2 * 3 * (2 + 4));
  const auto cost = [&](const Plan& plan) { return linear_attention_cost(a, plan.table(1)); };
  EXPECT_EQ(cost(Plan().chain(0, true).step(3)).bytes, io + state);
  EXPECT_EQ(cost(Plan().chain(0, true).step(3)).operations, step);
  EXPECT_EQ(cost(Plan().chain(0).step(3).save(1)).bytes, io + 3 * state);
  EXPECT_EQ(cost(Plan().chain(0, true).step(3, 4)).bytes, io + state + op);
  EXPECT_EQ(cost(Plan().chain(0, true).step(3, 4, 9)).bytes, io + state + 2 * op);
  EXPECT_EQ(cost(Plan().chain(0, true).step(3).jump(0, 9)).bytes, io + state + op);
  EXPECT_EQ(cost(Plan().chain(0, true).step(3).jump(0, 9)).operations, step + 2 * 2 * 4);
  EXPECT_EQ(cost(Plan().chain(0, true).step(3).jump(0, 9, Compose::add)).bytes,
            io + state + op - 4);
  EXPECT_EQ(cost(Plan().chain(0, true).step(3).jump(0, 9, Compose::zero)).bytes, io + state);

  a.update = Update::delta;
  a.operators = {
      OperatorKind::dense, {}, of(DType::f32, {5, 1, 2, 2}), of(DType::f32, {5, 1, 2, 4})};
  const double delta = 3 * (6 * 2 * 4 + 4 * 3 * (2 + 4));
  EXPECT_EQ(cost(Plan().chain(0, true).step(3)).operations, delta);
  EXPECT_EQ(cost(Plan().chain(0, true).step(3, 4)).operations, delta + 3 * 4 * 2 * 2);
  EXPECT_EQ(cost(Plan().chain(0, true).jump(0, 9)).operations, 2 * 2 * 2 * 4);
}

// The limits that the project set itself for an H200, in ms.
TEST(BenchCost, LimitsOnAnH200) {
  const auto ms = [](const Cost& cost) { return 1e3 * limit_seconds(cost, kH200); };
  const ChainTable whole = Plan().chain(0, true).step(32768).table(1);
  EXPECT_NEAR(ms(linear_attention_cost(layer(32768, 16, 32, Decay::scalar, Update::delta), whole)),
              0.22, 0.005);
  EXPECT_NEAR(ms(linear_attention_cost(layer(32768, 32, 32, Decay::none, Update::delta), whole)),
              0.25, 0.005);
  EXPECT_NEAR(ms(linear_attention_cost(layer(32768, 32, 32, Decay::scalar, Update::add), whole)),
              0.25, 0.005);
  Plan segments;
  for (int32_t i = 0; i < 64; ++i) segments.chain(i, true).step(8).step(504, i);
  EXPECT_NEAR(ms(linear_attention_cost(layer(32768, 16, 32, Decay::scalar, Update::delta),
                                       segments.table(1))),
              0.31, 0.005);

  AttentionArgs attention{.q = of(DType::bf16, {32768, 16, 256}),
                          .k_pages = of(DType::bf16, {2048, 16, 2, 256}),
                          .v_pages = of(DType::bf16, {2048, 16, 2, 256}),
                          .out = of(DType::bf16, {32768, 16, 256})};
  EXPECT_NEAR(ms(attention_cost(attention, whole)), 11.3, 0.05);

  ExpertsArgs experts{.x = of(DType::bf16, {576, 2048}),
                      .experts = of(DType::i32, {576, 8}),
                      .weights = of(DType::f32, {576, 8}),
                      .up = of(DType::bf16, {256, 1024, 2048}),
                      .down = of(DType::bf16, {256, 2048, 512}),
                      .out = of(DType::bf16, {576, 2048})};
  EXPECT_NEAR(ms(experts_cost(experts, 256)), 0.375, 0.005);
  experts.x = experts.out = of(DType::bf16, {8192, 2048});
  experts.experts = experts.weights = of(DType::i32, {8192, 8});
  EXPECT_NEAR(ms(experts_cost(experts, 256)), 0.53, 0.005);

  CausalConvArgs conv{.x = of(DType::bf16, {32768, 8192}),
                      .w = of(DType::bf16, {8192, 4}),
                      .window = of(DType::bf16, {1, 3, 8192}),
                      .tail = of(DType::bf16, {1, 3, 8192}),
                      .out = of(DType::bf16, {32768, 8192})};
  EXPECT_NEAR(ms(causal_conv_cost(conv, whole)), 0.25, 0.005);
}

// Rows see what residues end before them, and their own chain up to themselves.
TEST(BenchCost, AttentionCountsWhatIsSeen) {
  ChainTable table;
  table.positions = {0, 1, 10, 11};
  table.tokens = table.chain_of = {0, 0, 0, 0};
  table.residues = {{.first = 2, .last = 10, .start = 0}, {.first = 2, .last = 10, .start = 10}};
  Chain chain;
  chain.row_end = 4;
  chain.residue_end = 2;
  table.chains = {chain};
  const AttentionArgs a{.q = of(DType::bf16, {4, 2, 8}),
                        .k_pages = of(DType::bf16, {4, 16, 1, 8}),
                        .v_pages = of(DType::bf16, {4, 16, 1, 4}),
                        .out = of(DType::bf16, {4, 2, 4})};
  const Cost cost = attention_cost(a, table);
  EXPECT_EQ(cost.operations, 2 * 2 * (8 + 4) * (1 + 2 + (3 + 8) + (4 + 8)));
  EXPECT_EQ(cost.bytes, 2 * (64 + 32) + (4 + 8 + 8) * (8 + 4) * 2);
}

TEST(BenchCost, Matmul) {
  const Cost cost =
      matmul_cost({of(DType::bf16, {3, 5}), of(DType::bf16, {7, 5}), of(DType::f32, {3, 7})});
  EXPECT_EQ(cost.operations, 2 * 3 * 5 * 7);
  EXPECT_EQ(cost.bytes, 2 * (15 + 35) + 4 * 21);
}

}  // namespace
}  // namespace hypic::bench
