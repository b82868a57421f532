#include <gtest/gtest.h>

#include <algorithm>

#include "core/check.h"
#include "harness/driver.h"
#include "harness/load/own_server.h"
#include "reference/cpu_backend.h"

namespace hypic {
namespace {

SuiteCase replay() {
  SuiteCase c;
  c.name = "replay";
  c.driver = "qps";
  c.parameters = {{"url", "serve"}, {"trace", "datasets/traces/tiny.jsonl"},
                  {"requests", 10}, {"trace_first", 10},
                  {"warmup", 0},    {"output_tokens", 1},
                  {"rate", 100},    {"lag_bound_ms", 10000}};
  return c;
}

Result run(const SuiteCase& c, const DriverContext& context = {}) {
  return find_driver("qps")->prepare(c, "here", context)([](double, const std::string&) {});
}

std::string error_of(const SuiteCase& c) {
  try {
    find_driver("qps")->prepare(c, "here", {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Qps, MeasuresEachModeBesideWhatTheTraceAllows) {
  SuiteCase c = replay();
  c.parameters["modes"] = {"prefix", "transition_rope_seam:head=4"};
  c.parameters["cache"] = "primed";
  const Result result = run(c);
  EXPECT_EQ(result.verdict, Verdict::pass) << result.why;
  ASSERT_GE(result.tables.size(), 3u);
  EXPECT_EQ(result.tables[0].rows.size(), 2u);
  const auto value = [&](const std::string& tag) {
    const auto found =
        std::find_if(result.values.begin(), result.values.end(), [&](const Value& v) { return v.tag == tag; });
    return found == result.values.end() ? -1 : found->value;
  };
  EXPECT_EQ(value("completed.prefix"), 10);
  EXPECT_EQ(value("completed.transition_rope_seam:head=4"), 10);
  EXPECT_GT(value("trace_share.transition_rope_seam:head=4"), value("trace_share.prefix"));
  EXPECT_GT(value("trace_over_prefix.transition_rope_seam:head=4"), 1);
}

TEST(Qps, IdsGoToHypicsServerByPassage) {
  const auto backend = reference::make_cpu_backend();
  const Model model = Model::open(*backend, "random:qwen3.5-tiny:7");
  const load::OwnServer server(model, {.mode = mode_named("transition_rope_seam"),
                                       .cache_bytes = 8 << 20,
                                       .longest = 200,
                                       .most_segments = 2,
                                       .segment_tokens = 40});
  SuiteCase c;
  c.name = "primed";
  c.parameters = {{"url", server.url()}, {"prompts", "ids"}, {"vocabulary", model.spec().vocabulary},
                  {"cache", "primed"},   {"pool", 2},        {"segments", 2},
                  {"tokens", 40},        {"question", 8},    {"requests", 4},
                  {"rate", 100},         {"warmup", 0},      {"lag_bound_ms", 10000}};
  const Result result = run(c);  // INVALID where nothing of the primed cache is found
  EXPECT_EQ(result.verdict, Verdict::pass) << result.why;
}

TEST(Qps, WithoutItsTraceACaseIsSkipped) {
  SuiteCase c = replay();
  c.parameters["trace"] = "nowhere.jsonl";
  const Result result = run(c, {.data = "nowhere"});
  EXPECT_EQ(result.verdict, Verdict::skip);
  EXPECT_EQ(result.why, "no trace nowhere.jsonl here; --data names its folder");
}

TEST(Qps, TellsAnswersFromFailuresAsItGoes) {
  SuiteCase c;
  c.name = "hanging";
  c.parameters = {{"url", "mock"},     {"requests", 30}, {"rate", 200},         {"warmup", 0},          {"tokens", 8},
                  {"mock_hangs", 1.0}, {"timeout", 0.5}, {"mock_ttft_ms", 1.0}, {"lag_bound_ms", 10000}};
  std::vector<std::string> said;
  const Result result = find_driver("qps")->prepare(c, "here", {})([&](double share, const std::string& what) {
    EXPECT_GE(share, 0);
    EXPECT_LE(share, 1);
    said.push_back(what);
  });
  EXPECT_EQ(result.verdict, Verdict::fail);
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said.back(), "200 requests/s, 0 answered, 30 failed of 30");
}

TEST(Qps, RefusesWhatItsServerCannotDo) {
  const auto with = [](const char* key, const nlohmann::json& value) {
    SuiteCase c = replay();
    c.parameters[key] = value;
    return error_of(c);
  };
  EXPECT_EQ(with("prompts", "text"), "here.parameters.prompts: hypic's server is asked by segments");
  EXPECT_EQ(with("api", "generate"), "here.parameters.api: hypic's server has openai's alone");
  EXPECT_NE(with("modes", {"fast"}).find("here.parameters.modes: unknown mode \"fast\""), std::string::npos);
  EXPECT_NE(with("requests", 1000).find("here.parameters.requests: 1000 from request 10 on, but the trace holds 120"),
            std::string::npos);
  EXPECT_NE(with("trace", "").find("here.parameters.trace: hypic's server is measured on a trace"), std::string::npos);
  for (const nlohmann::json& shares : {nlohmann::json{0.9, 0.1}, {0, 1.5}, {0.5}, {0, 0.5, 1}})
    EXPECT_EQ(with("cached_share", shares), "here.parameters.cached_share: must be [least, most], two shares in 0 … 1");
  EXPECT_NE(with("vocabulary", 1000).find("vocabulary"), std::string::npos);  // it is the model's
}

}  // namespace
}  // namespace hypic
