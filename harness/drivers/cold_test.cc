#include <gtest/gtest.h>

#include <cmath>

#include "core/check.h"
#include "harness/assets.h"
#include "harness/driver.h"

namespace hypic {
namespace {

Result run(const SuiteCase& c) {
  return run_case(c, find_driver("cold")->prepare(c, "here", {}), [](double, const std::string&) {});
}

double value(const Result& result, const std::string& tag) {
  for (const Value& v : result.values)
    if (v.tag == tag) return v.value;
  ADD_FAILURE() << tag;
  return NAN;
}

// No time is asserted: only that each is there, and that the answer is one engine's.
TEST(Cold, MeasuresAndSimulates) {
  for (const auto& [transport, ranks] :
       {std::pair<std::string, int>("in_process", 1), {"in_process_host", 1}, {"tcp", 1}, {"in_process", 2}}) {
    SuiteCase c;
    c.name = "tiny";
    c.driver = "cold";
    c.parameters = {{"model", "random:qwen3.5-tiny:3"},
                    {"lengths", {20, 64, 20, 20, 40, 20}},
                    {"question", 8},
                    {"workers", {1, 3}},
                    {"repeats", 1},
                    {"transport", transport},
                    {"tensor_parallel", ranks},
                    {"devices", "one"},
                    {"rows", 80}};
    const Result result = run(c);
    EXPECT_EQ(result.verdict, Verdict::measured) << result.why;
    for (const Value& v : result.values) EXPECT_TRUE(std::isfinite(v.value)) << v.tag;
    for (const char* policy : {"lpt", "round_robin"}) {
      for (const char* workers : {".m1.", ".m3."}) {
        EXPECT_EQ(value(result, str("failed", workers, policy)), 0) << transport;
        EXPECT_GT(value(result, str("ttft", workers, policy)), 0);
      }
      EXPECT_EQ(value(result, str("remote.m1.", policy)), 0);
      EXPECT_GT(value(result, str("remote.m3.", policy)), 0);
      EXPECT_EQ(value(result, str("through_host.m3.", policy)) == 0, transport == "in_process" && ranks == 1);
      EXPECT_EQ(value(result, str("simulated_speedup.m1.", policy)), 1);
      EXPECT_GT(value(result, str("simulated_speedup.m64.", policy)), 0);
    }
    EXPECT_EQ(result.tables.size(), 2u);
  }
}

TEST(Cold, WrongParametersAreSaid) {
  for (const auto& [key, wrong] : {std::pair<std::string, nlohmann::json>{"workers", {2, 4}},
                                   {"workers", nlohmann::json::array()},
                                   {"policies", {"best"}},
                                   {"mode", "prefix"},
                                   {"transport", "pigeon"},
                                   {"devices", "none"},
                                   {"tensor_parallel", 3},
                                   {"tokens", 1 << 20},
                                   {"color", 1}}) {
    SuiteCase c;
    c.driver = "cold";
    c.parameters = {{"model", "random:qwen3.5-tiny:3"}, {key, wrong}};
    EXPECT_THROW(find_driver("cold")->prepare(c, "here", {}), Error) << key << wrong;
  }
}

TEST(Cold, SuitesAreRead) {
  for (const char* path : {"suites/cold.json", "suites/cold_tiny.json"}) {
    const Suite suite = load_suite(asset(path));
    for (const SuiteCase& c : suite.cases) find_driver(c.driver)->prepare(c, path, {.backend = "cpu"});
  }
}

}  // namespace
}  // namespace hypic
