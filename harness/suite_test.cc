#include "harness/suite.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/check.h"
#include "core/temporary_folder.h"

namespace hypic {
namespace {

std::string write(const std::string& text) {
  static const TemporaryFolder folder;
  return folder.write("suite.json", text);
}

std::string refusal(const std::string& text) {
  const std::string path = write(text);
  try {
    load_suite(path);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with(path)) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    return message.substr(path.size());
  }
  return "accepted";
}

std::string one_case(const std::string& extra) {
  return R"({"title": "t", "cases": [{"name": "a", "driver": "laws")" + extra + "}]}";
}

TEST(Suite, LoadsTheSuitesOfTheProject) {
  for (const auto& entry : std::filesystem::directory_iterator("suites")) {
    if (entry.path().extension() != ".json" || entry.path().filename() == "schema.json") continue;
    const Suite suite = load_suite(entry.path());
    EXPECT_FALSE(suite.cases.empty()) << entry.path();
  }
}

TEST(Suite, RefusesWithFilePlaceAndReason) {
  EXPECT_EQ(refusal("{\"title\":\n \"t\",\n oops"), ":3: not valid JSON");
  EXPECT_EQ(refusal("[]"), ": must be an object, is array");
  EXPECT_EQ(refusal("{}"), ": suite.title: is missing");
  EXPECT_EQ(refusal(R"({"title": "t"})"), ": cases: must be an array with at least one case");
  EXPECT_EQ(refusal(R"({"title": "t", "cases": []})"),
            ": cases: must be an array with at least one case");
  EXPECT_EQ(refusal(R"({"title": "t", "cases": [1]})"), ": cases[0]: must be an object, is number");
  EXPECT_EQ(refusal(R"({"title": 1, "cases": []})"), ": suite.title: must be a string, is number");
  EXPECT_NE(refusal(R"({"title": "t", "casse": []})").find("unknown key \"casse\""),
            std::string::npos);
  EXPECT_NE(refusal(R"({"title": "t", "cases": [{"name": "a", "driver": "law"}]})")
                .find("cases[0].driver: \"law\" is unknown; known: laws"),
            std::string::npos);
  EXPECT_EQ(
      refusal(
          R"({"title": "t", "cases": [{"name": "a", "driver": "laws"}, {"name": "a", "driver": "laws"}]})"),
      ": cases[1].name: \"a\" appears twice");
  EXPECT_EQ(refusal(one_case(R"(, "parameters": 3)")),
            ": cases[0].parameters: must be an object, is number");
  EXPECT_EQ(refusal(one_case(R"(, "expect": [{"tag": "x", "relation": "<=", "value": "y"}])")),
            ": cases[0].expect[0].value: must be a number, is string");
  EXPECT_NE(refusal(one_case(R"(, "expect": [{"tag": "x", "relation": "=<", "value": 1}])"))
                .find(".relation: \"=<\" is unknown"),
            std::string::npos);
  EXPECT_EQ(refusal(one_case(R"(, "expect": [{"tag": "x", "relation": "within", "value": 1}])")),
            ": cases[0].expect[0].tolerance: is missing");
  EXPECT_EQ(refusal(one_case(
                R"(, "expect": [{"tag": "x", "relation": "<", "value": 1, "tolerance": 1}])")),
            ": cases[0].expect[0].tolerance: only \"within\" takes one");
  EXPECT_EQ(refusal(one_case(R"(, "expect": [{"tag": "x", "relation": "<", "value": 1, "only_gpu": 1}])")),
            ": cases[0].expect[0].only_gpu: must be a string, is number");
  EXPECT_EQ(refusal(one_case(R"(, "seconds": -1)")), ": cases[0].seconds: is negative");
  EXPECT_EQ(refusal(one_case(R"(, "seconds": 1e30)")), ": cases[0].seconds: must be at most 1e+07, is 1e+30");
  const auto only = [](const char* model, const char* rest) {
    return one_case(
        str(R"(, "expect": [{"tag": "x", "relation": "<", "value": 1, "only_model": ")", model, "\"}]", rest));
  };
  EXPECT_TRUE(refusal(only("qwen3.5-35b-a3c", ""))
                  .starts_with(": cases[0].expect[0].only_model: unknown model \"qwen3.5-35b-a3c\"; known: "));
  EXPECT_EQ(refusal(only("Qwen3.5-35B-A3B", "")), "accepted");
  EXPECT_EQ(refusal(only("mine", R"(, "parameters": {"model": "/models/Mine"})")), "accepted");
  EXPECT_THROW(load_suite("no/such.json"), Error);
}

TEST(Parameters, AreReadOnceAndChecked) {
  const auto json =
      nlohmann::json::parse(R"({"n": 3, "s": "x", "list": [1, 2], "names": ["a"], "other": 0,
          "wraps": 18446744073709551615})");
  Parameters p(json, "suite: cases[0].parameters");
  EXPECT_EQ(p.integer("n", 1, 0, 10), 3);
  EXPECT_EQ(p.integer("absent", 7, 0, 10), 7);
  EXPECT_EQ(p.text("s", ""), "x");
  EXPECT_EQ(p.integers("list", {}, 0, 10), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(p.texts("names", {}), std::vector<std::string>{"a"});
  EXPECT_THROW(p.integer("n", 1, 4, 10), Error);
  EXPECT_THROW(p.integer("s", 1, 0, 10), Error);
  EXPECT_THROW(p.integer("wraps", 1, -10, 10), Error);  // not -1
  EXPECT_THROW(p.texts("list", {}), Error);
  EXPECT_THROW(p.integers("list", {}, 2, 10), Error);
  EXPECT_THROW(p.refuse_others(), Error);  // "other"
}

}  // namespace
}  // namespace hypic
