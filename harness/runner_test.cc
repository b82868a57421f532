#include "harness/runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>

#include "core/check.h"
#include "core/file.h"

namespace hypic {
namespace {

// A suite of cheap cases: `expect` of each is given.
Suite suite_of(const std::vector<std::string>& expectations) {
  const std::string path = testing::TempDir() + "runner_test.json";
  std::ofstream file(path);
  file << R"({"title": "t", "cases": [)";
  for (size_t i = 0; i < expectations.size(); ++i)
    file << (i ? "," : "") << R"({"name": "case )" << i << R"(", "driver": "addition",)"
         << R"("parameters": {"exponents": [5], "lengths": [4]}, "expect": [)" << expectations[i]
         << "]}";
  file << "]}";
  file.close();
  return load_suite(path);
}

std::string expect(const std::string& tag, const std::string& relation, double value) {
  return R"({"tag": ")" + tag + R"(", "relation": ")" + relation + R"(", "value": )" +
         std::to_string(value) + "}";
}

std::string fresh_folder(const std::string& name) {
  const std::string folder = testing::TempDir() + name;
  std::filesystem::remove_all(folder);
  return folder;
}

TEST(Runner, JudgesByExpectations) {
  const Suite suite = suite_of({"", expect("measured.*", "<", 1), expect("measured.e5.4", ">", 1),
                                expect("absent", "==", 0)});
  const std::string out = fresh_folder("runner_judges");
  std::ostringstream log;
  const Report report = run_suite(suite, {.out = out, .log = &log});
  ASSERT_EQ(report.results.size(), 4u);
  EXPECT_EQ(report.results[0].verdict, Verdict::skip);  // nothing asked
  EXPECT_EQ(report.results[1].verdict, Verdict::pass);
  EXPECT_EQ(report.results[2].verdict, Verdict::fail);
  EXPECT_EQ(report.results[3].verdict, Verdict::invalid);
  EXPECT_TRUE(report.results[3].why.starts_with("the suite asks for absent, which names no value"));
  EXPECT_EQ(exit_code(report), 1);
  for (const char* file : {"report.json", "report.html", "report.md", "junit.xml", "results.jsonl"})
    EXPECT_TRUE(std::filesystem::exists(out + "/" + file)) << file;
  EXPECT_NE(log.str().find("FAIL"), std::string::npos);
}

Result run_one(const SuiteCase& suite_case) {
  return run_case(suite_case, find_driver(suite_case.driver)->prepare(suite_case, "here", {}),
                  [](double, const std::string&) {});
}

TEST(Runner, PatternsAreJudgedByTheirWorstValue) {
  SuiteCase suite_case;
  suite_case.driver = "addition";
  suite_case.parameters = {{"exponents", {5, 10}}, {"lengths", {4, 8}}};
  suite_case.expectations = {{"measured.*", "<=", 0.2, 0, ""}};
  const Result result = run_one(suite_case);
  ASSERT_EQ(result.checks.size(), 1u);
  EXPECT_FALSE(result.checks[0].holds);
  EXPECT_EQ(result.checks[0].tag, "measured.* (worst: measured.e5.8)");
}

TEST(Runner, WhatGoesWrongOnTheWayHasItsVerdict) {
  const auto verdict = [](const Work& work) {
    return run_case({}, work, [](double, const std::string&) {}).verdict;
  };
  EXPECT_EQ(verdict([](const ProgressFn&) -> Result { fail("bad file"); }), Verdict::invalid);
  EXPECT_EQ(verdict([](const ProgressFn&) -> Result { throw std::bad_alloc(); }), Verdict::invalid);
  EXPECT_EQ(verdict([](const ProgressFn&) -> Result { HYPIC_CHECK(false); }), Verdict::fail);
}

TEST(Runner, BadParametersAreFoundBeforeAnythingRuns) {
  SuiteCase suite_case;
  suite_case.driver = "addition";
  suite_case.parameters = {{"exponent", 5}};
  try {
    run_one(suite_case);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "here.parameters: unknown parameter \"exponent\"");
  }
}

TEST(Runner, StopsWhenAsked) {
  const Suite suite = suite_of({expect("measured.*", "<", 1)});
  const std::atomic<bool> stop = true;
  const Report report = run_suite(suite, {.out = fresh_folder("runner_stops"), .stop = &stop});
  EXPECT_EQ(report.results[0].verdict, Verdict::undecided);
  EXPECT_EQ(exit_code(report), 4);
}

TEST(Runner, StopsAtItsBudgetAndResumes) {
  const Suite suite = suite_of({expect("measured.*", "<", 1), expect("measured.*", "<", 1)});
  const std::string out = fresh_folder("runner_resumes");
  const Report stopped = run_suite(suite, {.out = out, .time_budget = 0});
  EXPECT_EQ(stopped.results[0].verdict, Verdict::undecided);
  EXPECT_EQ(exit_code(stopped), 4);
  const Report first = run_suite(suite, {.out = out, .filter = "case 0", .resume = true});
  EXPECT_EQ(first.results.size(), 1u);
  std::ostringstream log;
  const Report rest = run_suite(suite, {.out = out, .resume = true, .log = &log});
  EXPECT_EQ(rest.results[0].seconds, first.results[0].seconds);  // the earlier run's
  EXPECT_EQ(rest.results[1].verdict, Verdict::pass);
  EXPECT_NE(log.str().find("(from the earlier run)"), std::string::npos);
}

// The last line may be cut, since a run can die any time; nothing else may be wrong.
TEST(Runner, ResumesOnlyWhatItWrote) {
  const Suite suite = suite_of({expect("measured.*", "<", 1), expect("measured.*", "<", 1)});
  const std::string out = fresh_folder("runner_tampered"), path = out + "/results.jsonl";
  run_suite(suite, {.out = out});
  const std::string whole = read_file(path, 1 << 20);
  const auto resume = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    std::ostringstream log;
    run_suite(suite, {.out = out, .resume = true, .log = &log});
    const std::string said = log.str(), mark = "(from the earlier run)";
    return (said.find(mark) != said.npos) + (said.find(mark) != said.rfind(mark));
  };
  EXPECT_EQ(resume(whole), 2);
  EXPECT_EQ(resume(whole.substr(0, whole.size() - 1)), 1);
  EXPECT_EQ(resume(whole.substr(0, 7)), 0);
  std::string edited = whole;
  edited.replace(edited.find("PASS"), 4, "FAIL");
  EXPECT_THROW(resume(edited), Error);
  EXPECT_THROW(resume(whole.substr(1)), Error);
  EXPECT_EQ(resume(whole), 2);
  std::filesystem::remove(out + "/run.key");
  EXPECT_THROW(resume(whole), Error);
}

TEST(Runner, RefusesToMixRuns) {
  const Suite suite = suite_of({""});
  const std::string out = fresh_folder("runner_mixes");
  run_suite(suite, {.out = out});
  EXPECT_THROW(run_suite(suite, {.out = out, .context = {.data = "other.jsonl"}, .resume = true}), Error);
  run_suite(suite, {.out = out, .context = {.data = "other.jsonl"}});  // without --resume it starts over
  EXPECT_THROW(run_suite(suite, {.out = out, .filter = "no such case"}), Error);
}

}  // namespace
}  // namespace hypic
