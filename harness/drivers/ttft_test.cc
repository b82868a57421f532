#include "harness/drivers/ttft.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/check.h"
#include "harness/assets.h"

namespace hypic {
namespace {

constexpr const char* kSeam = "transition_rope_seam@warm_segment";

SuiteCase tiny_case() {
  SuiteCase c;
  c.name = "tiny";
  c.driver = "ttft";
  c.parameters = {
      {"model", "random:qwen3.5-35b-a3b-tiny:3"},
      {"cells",
       {{{"segments", 3}, {"tokens", 20}, {"question", 5}, {"system", 12}},
        {{"dataset", "multi_news"}, {"rows", 2}, {"divide", 64}}}},
      {"modes", {"full", "prefix", "transition_rope_seam", "transition_rope_seam@missed=1"}},
      {"repeats", 3}};
  return c;
}

Result run(const SuiteCase& c, std::function<void(Engine&)> primed = {}) {
  return run_case(c, ttft::prepare(c, "here", {}, std::move(primed)),
                  [](double, const std::string&) {});
}

double value(const Result& result, const std::string& tag) {
  for (const Value& v : result.values)
    if (v.tag == tag) return v.value;
  ADD_FAILURE() << tag;
  return NAN;
}

// No time is asserted: only that each is there.
TEST(Ttft, MeasuresEveryModeOfEveryCell) {
  const Result result = run(tiny_case());
  EXPECT_EQ(result.verdict, Verdict::skip) << result.why;
  for (const Value& v : result.values) {
    EXPECT_TRUE(std::isfinite(v.value)) << v.tag;
    EXPECT_FALSE(v.tag.starts_with("p90") && v.tag.find("12+3x20+5") != v.tag.npos)
        << "of three samples";
    EXPECT_FALSE(v.tag.starts_with("limit")) << "of a CPU";
  }
  for (const char* cell : {"12+3x20+5", "multi_news/64"})
    for (const char* mode :
         {"full@cold", "prefix@warm_prefix_other_order", kSeam, "transition_rope_seam@missed=1"}) {
      const std::string at = str(".", cell, ".", mode);
      EXPECT_GT(value(result, "p50" + at), 0);
      EXPECT_LE(value(result, "p50_low" + at), value(result, "p50" + at));
      EXPECT_GE(value(result, "p50_high" + at), value(result, "p50" + at));
      EXPECT_GT(value(result, "ratio_full" + at), 0);
      EXPECT_GT(value(result, "ratio_prefix" + at), 0);
      EXPECT_EQ(value(result, "gate" + at), 0);
      EXPECT_GT(value(result, "touched" + at), 0);
      EXPECT_GE(value(result, "load" + at), 1);
    }
  EXPECT_EQ(value(result, str("ratio_full.12+3x20+5.full@cold")), 1);
  EXPECT_EQ(value(result, str("computed.12+3x20+5.full@cold")), 1);
  EXPECT_NEAR(value(result, str("computed.12+3x20+5.", kSeam)), (4 * 8 + 5) / 77.0, 1e-12);
  EXPECT_GT(value(result, str("ratio_prefix.geomean.", kSeam)), 0);
  ASSERT_GE(result.tables.size(), 2u);
  EXPECT_EQ(result.tables[0].rows.size(), 8u);
  for (const Table& table : result.tables)
    for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.heads.size()) << table.title;
}

TEST(Ttft, CountersThatDifferAreInvalid) {
  const Result result = run(tiny_case(), [](Engine& engine) { engine.flush(); });
  EXPECT_EQ(result.verdict, Verdict::invalid);
  EXPECT_NE(result.why.find("the cell's plan says"), std::string::npos) << result.why;
  EXPECT_TRUE(result.values.empty());
  EXPECT_TRUE(result.tables.empty());
}

// Also where they begin to differ only while runs are timed.
TEST(Ttft, EveryRunIsCounted) {
  int primings = 0;
  const Result result = run(tiny_case(), [&](Engine& engine) {
    if (++primings > 30) engine.flush();
  });
  EXPECT_GT(primings, 30);
  EXPECT_EQ(result.verdict, Verdict::invalid) << result.why;
}

TEST(Ttft, NothingIsTimedWhereReuseIsWrong) {
  SuiteCase c = tiny_case();
  c.parameters["backend"] = "broken:operator_split_lost";
  c.parameters["model"] = "random:qwen3.5-tiny:3";
  c.parameters["chunk"] = 25;  // operators are made over several forwards, cold and cached alike
  c.parameters["modes"] = {"full", "prefix@warm_prefix", "transition_rope_seam@missed=1"};
  const Result result = run(c);
  EXPECT_EQ(result.verdict, Verdict::fail) << result.why;
  EXPECT_NE(result.why.find("nothing is timed"), std::string::npos) << result.why;
  EXPECT_TRUE(result.values.empty());
}

std::string refusal(const nlohmann::json& changes) {
  SuiteCase c = tiny_case();
  c.parameters.update(changes);
  try {
    ttft::prepare(c, "here", {}, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Ttft, RefusesBeforeAnythingRuns) {
  EXPECT_EQ(refusal({{"cells", nlohmann::json::array()}}),
            "here.parameters.cells: must be an array of at least one workload");
  EXPECT_EQ(refusal({{"cells", {{{"segmnets", 2}}}}}),
            "here.parameters.cells[0]: unknown parameter \"segmnets\"");
  EXPECT_EQ(refusal({{"cells", {{{"segments", 0}}}}}),
            "here.parameters.cells[0].segments: must be an integer in 1 … 4096, is 0");
  EXPECT_EQ(refusal({{"cells", {{{"dataset", "hotpotqa"}, {"tokens", 5}}}}}),
            "here.parameters.cells[0]: unknown parameter \"tokens\"");
  EXPECT_EQ(refusal({{"cells", {{{"segments", 2}}, {{"segments", 2}}}}}),
            "here.parameters.cells[1]: 2x1024+64 appears twice");
  EXPECT_EQ(refusal({{"modes", {"full", "full@cold"}}}),
            "here.parameters.modes: \"full@cold\" appears twice");
  EXPECT_EQ(refusal({{"warmup", 1}}), "here.parameters: unknown parameter \"warmup\"");
  EXPECT_NE(refusal({{"modes", {"transition_rope_seam@missed=9"}}}).find("cannot miss"),
            std::string::npos);
  EXPECT_NE(refusal({{"backend", "tpu"}}).find("unknown backend"), std::string::npos);
}

TEST(Ttft, SuitesOfTheProjectArePrepared) {
  for (const char* path : {"suites/ttft.json", "suites/ttft_tiny.json"}) {
    const Suite suite = load_suite(asset(path));
    for (const SuiteCase& c : suite.cases)
      find_driver(c.driver)->prepare(c, path, {.backend = "cpu"});
  }
}

}  // namespace
}  // namespace hypic
