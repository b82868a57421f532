#include "core/json.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/file.h"

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
  EXPECT_EQ(refusal(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(refusal(std::string(65, '[') + std::string(65, ']')), "f: nested deeper than 64");
  EXPECT_EQ(refusal(std::string(1 << 22, '[')), "f: nested deeper than 64");
}

TEST(Json, ShowsValuesInALine) {
  EXPECT_EQ(shown(3), "3");
  EXPECT_EQ(shown(nlohmann::json::array({1})), "an array");
  EXPECT_LT(shown(std::string(1000, 'x')).size(), 100u);
  EXPECT_EQ(shown("\n\xff").find('\n'), std::string::npos);
}

TEST(File, ReadsRegularFilesUpToABound) {
  const std::string path = testing::TempDir() + "file_test";
  std::ofstream(path) << "four";
  EXPECT_EQ(read_file(path, 4), "four");
  EXPECT_THROW(read_file(path, 3), Error);
  EXPECT_THROW(read_file(testing::TempDir(), 100), Error);
  EXPECT_THROW(read_file("/dev/zero", 100), Error);
  EXPECT_THROW(read_file(path + ".absent", 100), Error);
}

}  // namespace
}  // namespace hypic
