#include "core/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/file.h"
#include "core/temporary_folder.h"

namespace hypic {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_json(text, "f");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Json, RefusesWhatWouldMislead) {
  EXPECT_EQ(parse_json(R"({"a": [1, {"a": 2}]})", "f")["a"][1]["a"], 2);
  EXPECT_EQ(refusal("{\"a\": 1,\n\"a\": 2}"), "f: key \"a\" is given twice");
  EXPECT_EQ(refusal("{\"a\": 1,\n oops}"), "f:2: not valid JSON");
  EXPECT_EQ(refusal("[1e999]"), "f:1: a number is out of range");
  EXPECT_EQ(refusal("[1,\n"), "f:2: not valid JSON: it ends too early");
  EXPECT_EQ(refusal("{\"\\n\": 1, \"\\n\": 2}"), "f: key \"\\n\" is given twice");
  EXPECT_EQ(refusal(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(refusal(std::string(65, '[') + std::string(65, ']')), "f: nested deeper than 64");
  EXPECT_EQ(refusal(std::string(1 << 22, '[')), "f: nested deeper than 64");
}

TEST(Json, CallersSetTheLimits) {
  const auto refused = [](const char* text, const JsonLimits& limits) -> std::string {
    try {
      check_json(text, "f:7", limits);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refused("[[]]", {.depth = 2}), "accepted");
  EXPECT_EQ(refused("[[[]]]", {.depth = 2}), "f:7: nested deeper than 2");
  EXPECT_EQ(refused(R"({"a": {"a": 1}, "b": 2})", {.keys = 2}), "accepted");
  EXPECT_EQ(refused(R"({"a": 1, "b": 2, "c": 3})", {.keys = 2}), "f:7: an object has over 2 keys");
  EXPECT_EQ(refused("x", {.name_line = false}), "f:7: not valid JSON");
}

TEST(Json, IntegersAreNotWrapped) {
  for (const int64_t n : {-5, 0, 5}) EXPECT_TRUE(is_integer_in(n, -5, 5));
  EXPECT_TRUE(is_integer_in(INT64_MIN, INT64_MIN, INT64_MAX));
  EXPECT_TRUE(is_integer_in(uint64_t{INT64_MAX}, 0, INT64_MAX));
  for (const nlohmann::json& value :
       {nlohmann::json(-6), nlohmann::json(6), nlohmann::json(UINT64_MAX), nlohmann::json(0.0),
        nlohmann::json(true), nlohmann::json("1"), nlohmann::json()})
    EXPECT_FALSE(is_integer_in(value, -5, 5)) << value;
}

TEST(Json, ShowsValuesInALine) {
  EXPECT_EQ(shown(3), "3");
  EXPECT_EQ(shown(nlohmann::json::array({1})), "an array");
  EXPECT_LT(shown(std::string(1000, 'x')).size(), 100u);
  EXPECT_EQ(shown("\n\xff").find('\n'), std::string::npos);
}

TEST(File, ReadsRegularFilesUpToABound) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "four");
  EXPECT_EQ(read_file(path, 4), "four");
  EXPECT_THROW(read_file(path, 3), Error);
  EXPECT_THROW(read_file(folder.path(), 100), Error);
  EXPECT_THROW(read_file("/dev/zero", 100), Error);
  EXPECT_THROW(read_file(path + ".absent", 100), Error);
}

}  // namespace
}  // namespace hypic
