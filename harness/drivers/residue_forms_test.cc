#include <gtest/gtest.h>

#include <cmath>

#include "core/check.h"
#include "harness/driver.h"

namespace hypic {
namespace {

SuiteCase case_of(const nlohmann::json& parameters) {
  SuiteCase c;
  c.driver = "residue_forms";
  c.parameters = parameters;
  return c;
}

Work prepare(const nlohmann::json& parameters) {
  const SuiteCase c = case_of(parameters);
  return find_driver(c.driver)->prepare(c, "here", {});
}

double value(const Result& result, const std::string& tag) {
  for (const Value& v : result.values)
    if (v.tag == tag) return v.value;
  ADD_FAILURE() << tag;
  return NAN;
}

TEST(ResidueForms, CostWhatTheirRoundingDoes) {
  for (const char* model : {"random:qwen3.5-tiny:3", "random:ring-mini-linear-2.0-tiny:3"}) {
    const bool dense = std::string(model).find("qwen") != std::string::npos;
    const Result result = prepare({{"model", model}, {"segments", 3}, {"tokens", 24}})(
        [](double, const std::string&) {});
    EXPECT_EQ(result.verdict, Verdict::pass) << result.why;
    EXPECT_EQ(value(result, "state_full_form.full"), 0);
    EXPECT_EQ(value(result, "kl.full"), 0);
    EXPECT_LE(value(result, "state.full"), 1e-5);
    EXPECT_EQ(value(result, "times_T16.T16"), 1);
    // Where T is a logarithm there is nothing to round in it.
    EXPECT_EQ(value(result, "state_full_form.T16") > 0, dense) << model;
    EXPECT_GT(value(result, "state_full_form.compact"), 0);
    EXPECT_LE(value(result, "state_full_form.compact"), 1e-3);
    EXPECT_LE(value(result, "state_full_form_mean.compact"), value(result, "state_full_form.compact"));
    EXPECT_GE(value(result, "times_T16.compact"), 1);
    EXPECT_LT(value(result, "mib.compact"), value(result, "mib.full"));
    EXPECT_EQ(value(result, "mib_kv.compact"), value(result, "mib_kv.full"));
    ASSERT_EQ(result.tables.size(), 2u);
    for (const Table& table : result.tables)
      for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.heads.size()) << table.title;
    ASSERT_EQ(result.charts.size(), 1u);
    const Chart& chart = result.charts[0];
    ASSERT_EQ(chart.categories.size(), 3u);  // points by name, the smallest form first
    EXPECT_TRUE(chart.categories[0].starts_with("compact, ")) << chart.categories[0];
    for (const Series& one : chart.series) EXPECT_EQ(one.y.size(), 3u);
  }
}

TEST(ResidueForms, RefusesWhatHasNoForms) {
  const auto refusal = [](const nlohmann::json& parameters) -> std::string {
    try {
      prepare(parameters);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal({{"mode", "full"}}),
            "here.parameters.mode: must reuse segments, and not where they were built, is full");
  EXPECT_EQ(refusal({{"tokens", 8}}), "here.parameters.tokens: 8 are no more than the seams");
  EXPECT_EQ(refusal({{"form", "full"}}), "here.parameters: unknown parameter \"form\"");
}

}  // namespace
}  // namespace hypic
