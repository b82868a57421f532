#include "harness/measure/roofline.h"

#include <gtest/gtest.h>

#include <cmath>

#include "serving/planner.h"

namespace hypic {
namespace {

constexpr bench::Ceilings kH200 = {4.3e12, 780e12};
constexpr int32_t kPage = 16, kQuestion = 64;

std::vector<int32_t> pages(int64_t tokens) { return std::vector<int32_t>(tokens / kPage + 1, 0); }

double ms(const std::vector<ChainTable>& tables) {
  static const ModelSpec spec = spec_named("qwen3.5-35b-a3b");
  return 1e3 * roofline(spec, tables, {.ceilings = kH200}).seconds;
}

double full(int32_t tokens) {
  PlanInput input{.mode = mode_named("full")};
  input.requests.push_back({.segments = {{Tokens(tokens, 0)}}, .state = 0, .pages = pages(tokens)});
  return ms(plan_prefill(input).tables);
}

// `count` segments of 512 tokens and a question, the first `missed` of them not cached.
double reused(int32_t count, int32_t missed) {
  PlanInput input{.mode = mode_named("transition_rope_seam"), .max_rows = 1 << 20};
  PlanRequest& request = input.requests.emplace_back();
  request.state = 0;
  request.pages = pages(count * 16 + kQuestion);
  for (int32_t i = 0; i < count; ++i) {
    const Tokens tokens(512, 0);
    input.residues.push_back({.length = 512, .pages = pages(512), .op = i});
    if (i < missed) input.builds.push_back({i, tokens, i + 1});
    request.segments.push_back({tokens, i});
  }
  request.segments.push_back({Tokens(kQuestion, 0)});
  return ms(plan_prefill(input).tables);
}

// The column "limit" of the project's targets for one H200, within 3 %. Systematic: T is float32
// here, which costs 0.5 ms for 64 segments, and float16 there.
TEST(Roofline, OfQwen35BOnAnH200) {
  EXPECT_NEAR(full(8192), 60, 2);
  EXPECT_NEAR(full(32768), 325, 10);
  EXPECT_NEAR(reused(64, 0), 21, 1);
  EXPECT_NEAR(reused(64, 1), 23, 1);
  EXPECT_NEAR(reused(64, 8), 38, 2);
  EXPECT_NEAR(reused(64, 64), 223, 7);

  const auto seen = pages(32768);
  const std::vector<PagedResidue> none;
  EXPECT_NEAR(
      ms({plan_decode(
          {{.position = 32768, .state = 0, .own = 32768, .pages = &seen, .residues = &none}},
          kPage)}),
      1.55, 0.03);
}

TEST(Roofline, EveryArchitectureHasOne) {
  PlanInput input{.mode = mode_named("full")};
  input.requests.push_back({.segments = {{Tokens(100, 0)}}, .state = 0, .pages = pages(100)});
  const auto tables = plan_prefill(input).tables;
  for (const std::string& name : model_names()) {
    const ModelSpec spec = spec_named(name);
    const Roofline limit = roofline(spec, tables, {.ceilings = kH200});
    double sum = 0;
    for (const auto& [operation, seconds] : limit.by_operation) sum += seconds;
    EXPECT_GT(limit.seconds, 0) << name;
    EXPECT_NEAR(sum, limit.seconds, 1e-12) << name;
    EXPECT_EQ(limit.by_operation.contains("attention"), spec.attention_layers() > 0) << name;
    EXPECT_EQ(limit.by_operation.contains("experts"), spec.moe.experts > 0) << name;
    // 100 tokens read every weight but the embedding's rows and experts that none went to.
    EXPECT_LE(limit.cost.bytes, 2.2 * static_cast<double>(parameter_count(spec))) << name;
  }
}

TEST(Roofline, CountsTheExpertsThatWereTouched) {
  const ModelSpec spec = spec_named("qwen3.5-35b-a3b");
  EXPECT_EQ(expected_touched(spec.moe, 0), 0);
  EXPECT_NEAR(expected_touched(spec.moe, 1), 8, 1e-12);
  EXPECT_NEAR(expected_touched(spec.moe, 576), 256, 1e-3);
  EXPECT_EQ(expected_touched({}, 5), 0);
  PlanInput input{.mode = mode_named("full")};
  input.requests.push_back({.segments = {{Tokens(4, 0)}}, .state = 0, .pages = pages(4)});
  const auto tables = plan_prefill(input).tables;
  const auto experts = [&](std::vector<double> touched) {
    return roofline(spec, tables, {.ceilings = kH200, .touched = std::move(touched)})
        .by_operation.at("experts");
  };
  EXPECT_NEAR(experts({20}) / experts({10}), 2, 1e-12);
  EXPECT_NEAR(experts({}) / experts({expected_touched(spec.moe, 4)}), 1, 1e-12);
}

}  // namespace
}  // namespace hypic
