#include "harness/runner.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <sstream>
#include <thread>

#include "core/check.h"
#include "core/file.h"
#include "core/temporary_folder.h"

namespace hypic {
namespace {

// A suite of cheap cases: `expect` of each is given.
Suite suite_of(const std::vector<std::string>& expectations) {
  const TemporaryFolder folder;
  const std::string path = folder.path("suite.json");
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

TEST(Runner, JudgesByExpectations) {
  const Suite suite = suite_of({"", expect("measured.*", "<", 1), expect("measured.e5.4", ">", 1),
                                expect("absent", "==", 0)});
  const TemporaryFolder folder;
  const std::string& out = folder.path();
  std::ostringstream log;
  const Report report = run_suite(suite, {.out = out, .log = &log});
  ASSERT_EQ(report.results.size(), 4u);
  EXPECT_EQ(report.results[0].verdict, Verdict::measured);  // nothing asked
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

TEST(Runner, WithoutAFolderForTemporaryFilesASoakIsInvalid) {
  const char* set = getenv("TMPDIR");
  const std::optional<std::string> before = set ? std::optional<std::string>(set) : std::nullopt;
  setenv("TMPDIR", "/no/such/folder", 1);
  SuiteCase suite_case;
  suite_case.driver = "soak";
  suite_case.parameters = {{"seconds", 1}};
  const Result result = run_one(suite_case);
  before ? setenv("TMPDIR", before->c_str(), 1) : unsetenv("TMPDIR");
  EXPECT_EQ(result.verdict, Verdict::invalid);
  EXPECT_EQ(result.why, "no folder for temporary files, such as TMPDIR names: No such file or directory");
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
  const TemporaryFolder folder;
  const Report report = run_suite(suite, {.out = folder.path(), .stop = &stop});
  EXPECT_EQ(report.results[0].verdict, Verdict::undecided);
  EXPECT_EQ(exit_code(report), 4);
}

TEST(Runner, StopsAtItsBudgetAndResumes) {
  const Suite suite = suite_of({expect("measured.*", "<", 1), expect("measured.*", "<", 1)});
  const TemporaryFolder folder;
  const std::string& out = folder.path();
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

// A log that takes its time, so that a budget is spent after the first case.
class SlowLog : public std::stringbuf {
  int sync() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return 0;
  }
};

TEST(Runner, ABudgetThatEndsInTheMiddleIsResumedThere) {
  const std::string holds = expect("measured.*", "<", 1);
  const Suite suite = suite_of({holds, holds, holds});
  const TemporaryFolder folder;
  const std::string& out = folder.path();
  SlowLog slow;
  std::ostream log(&slow);
  const Report stopped = run_suite(suite, {.out = out, .time_budget = 0.3, .log = &log});
  EXPECT_EQ(stopped.results[0].verdict, Verdict::pass);
  EXPECT_EQ(stopped.results[1].verdict, Verdict::undecided);
  EXPECT_NE(stopped.results[1].why.find("the time budget of 0.3 s is spent"), std::string::npos);
  EXPECT_EQ(exit_code(stopped), 4);
  std::ostringstream said;
  const Report rest = run_suite(suite, {.out = out, .resume = true, .time_budget = 100, .log = &said});
  EXPECT_EQ(exit_code(rest), 0);
  EXPECT_EQ(rest.results[0].seconds, stopped.results[0].seconds);
  const std::string text = said.str(), mark = "(from the earlier run)";
  EXPECT_LT(text.find(mark), text.find("case 1"));
  EXPECT_EQ(text.find(mark), text.rfind(mark));
}

TEST(Runner, ExpectationsOfOthersAreNotJudged) {
  SuiteCase suite_case;
  suite_case.driver = "addition";
  suite_case.parameters = {{"exponents", {5}}, {"lengths", {4}}};
  Expectation impossible{"measured.e5.4", ">", 1, 0, ""};
  impossible.only_model = "qwen3.5-35b-a3b";
  impossible.only_gpu = "H200";
  const auto judged = [&](const Subject& subject) {
    return run_case(suite_case, find_driver("addition")->prepare(suite_case, "here", {}),
                    [](double, const std::string&) {}, subject);
  };
  suite_case.expectations = {impossible};
  EXPECT_EQ(judged({"Qwen3.5-35B-A3B", "NVIDIA H200"}).verdict, Verdict::fail);
  const Result other = judged({"ring-mini-linear-2.0", "NVIDIA H200"});
  EXPECT_EQ(other.verdict, Verdict::measured);
  EXPECT_EQ(other.why, "nothing asked; 1 is asked of qwen3.5-35b-a3b alone");
  EXPECT_TRUE(other.checks.empty());
  suite_case.expectations.push_back({"measured.e5.4", "<", 1, 0, ""});
  const Result elsewhere = judged({"qwen3.5-35b-a3b", "NVIDIA H20"});
  EXPECT_EQ(elsewhere.verdict, Verdict::pass);
  EXPECT_EQ(elsewhere.why, "1 expectation holds; 1 is asked of H200 alone");
  suite_case.expectations[0].only_gpu = "H20";
  EXPECT_EQ(judged({"qwen3.5-35b-a3b", "NVIDIA H200"}).checks.size(), 1u);
  for (const char* gpu : {"NVIDIA H20", "NVIDIA H20-3e", "H20"})
    EXPECT_EQ(judged({"qwen3.5-35b-a3b", gpu}).verdict, Verdict::fail) << gpu;
  EXPECT_EQ(judged({}).verdict, Verdict::pass);
}

TEST(Runner, SubjectsFollowWhatTheCommandReplaces) {
  SuiteCase suite_case;
  suite_case.parameters = {{"model", "random:qwen3.5-35b-a3b:7"}, {"backend", "cuda"}};
  EXPECT_EQ(subject_of(suite_case, {}).model, "qwen3.5-35b-a3b");
  const Subject replaced = subject_of(suite_case, {.model = "random:ring-mini-linear-2.0", .backend = "cpu"});
  EXPECT_EQ(replaced.model, "ring-mini-linear-2.0");
  EXPECT_EQ(replaced.gpu, "");
  EXPECT_EQ(subject_of({}, {}).model, "qwen3.5-tiny");  // what drivers take
}

TEST(Runner, SaysHowFarALongCaseIs) {
  const Suite suite = suite_of({expect("measured.*", "<", 1)});
  const auto lines = [&](RunSettings settings) {
    std::ostringstream progress;
    const TemporaryFolder folder;
    settings.out = folder.path();
    settings.progress = &progress;
    run_suite(suite, settings);
    return progress.str();
  };
  EXPECT_EQ(lines({}), "");  // over before anybody asks
  const std::string text = lines({.progress_seconds = 0});
  EXPECT_TRUE(text.starts_with("[1/1] ")) << text;
  EXPECT_NE(text.find("case 0: "), std::string::npos) << text;
  EXPECT_EQ(text.back(), '\n');
}

TEST(Runner, SaysHowLongItTakes) {
  Suite suite = suite_of({expect("measured.*", "<", 1), expect("measured.*", "<", 1)});
  const auto said = [&] {
    std::ostringstream log;
    const TemporaryFolder folder;
    const Report report = run_suite(suite, {.out = folder.path(), .log = &log});
    return log.str() + report.environment.entries.back().second;
  };
  EXPECT_EQ(said().find("by the suite"), std::string::npos);
  suite.cases[0].seconds = 70;
  EXPECT_EQ(said().find("by the suite"), std::string::npos);  // of one case nothing is known
  suite.cases[1].seconds = 50;
  EXPECT_TRUE(said().starts_with("2 cases, about 120 s by the suite\n")) << said();
  suite.seconds_on = "an H200";
  EXPECT_TRUE(said().starts_with("2 cases, about 120 s on an H200 by the suite\n")) << said();
  suite.seconds_on = "";
  suite.cases[0].gpu_seconds = 7;  // of a GPU, which is not what runs
  EXPECT_TRUE(said().ends_with(" in all cases; about 120 s by the suite")) << said();
}

TEST(Runner, SaysAheadWhatABudgetAndDataCannotDo) {
  Suite suite = suite_of({expect("measured.*", "<", 1)});
  suite.cases[0].seconds = 70;
  std::ostringstream log;
  const TemporaryFolder folder;
  const std::string& out = folder.path();
  run_suite(suite, {.out = out, .context = {.data = "rows.jsonl"}, .time_budget = 50, .log = &log});
  EXPECT_TRUE(log.str().starts_with("1 case, about 70 s by the suite\n"
                                    "the time budget of 50 s is less than the about 70 s of \"case 0\"; a case that "
                                    "is begun runs to its end\n--data rows.jsonl: no case here reads it\n"))
      << log.str();
}

TEST(Runner, WhatADriverSaysInShortStandsWhereNothingIsAsked) {
  const auto why = [](const std::string& said) {
    const Work work = [&](const ProgressFn&) {
      Result result;
      result.verdict = Verdict::pass;
      result.why = said;
      return result;
    };
    return run_case({}, work, [](double, const std::string&) {}).why;
  };
  EXPECT_EQ(why(""), "nothing asked");
  EXPECT_EQ(why("p50 3 ms"), "p50 3 ms");
}

// The last line may be cut, since a run can die any time; nothing else may be wrong.
TEST(Runner, ResumesOnlyWhatItWrote) {
  const Suite suite = suite_of({expect("measured.*", "<", 1), expect("measured.*", "<", 1)});
  const TemporaryFolder folder;
  const std::string &out = folder.path(), path = out + "/results.jsonl";
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
  const TemporaryFolder folder;
  const std::string& out = folder.path();
  run_suite(suite, {.out = out});
  EXPECT_THROW(run_suite(suite, {.out = out, .context = {.data = "other.jsonl"}, .resume = true}), Error);
  run_suite(suite, {.out = out, .context = {.data = "other.jsonl"}});  // without --resume it starts over
  EXPECT_THROW(run_suite(suite, {.out = out, .filter = "no such case"}), Error);
}

}  // namespace
}  // namespace hypic
