#include "harness/drivers/quality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "core/check.h"
#include "core/temporary_folder.h"
#include "harness/assets.h"
#include "harness/drivers/quality_rows.h"
#include "harness/drivers/reuse_laws.h"
#include "harness/runner.h"
#include "models/model.h"
#include "reference/cpu_backend.h"
#include "reports/text.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSeam = "transition_rope_seam";

SuiteCase tiny_case() {
  SuiteCase c;
  c.name = "tiny";
  c.driver = "quality";
  c.parameters = {{"model", "random:granite-4.0-h-350m-tiny:3"},
                  {"cells",
                   {{{"task", "headlines"}, {"segments", 3}, {"tokens", 32}, {"rows", 3}, {"new_tokens", 4}},
                    {{"task", "fact"}, {"segments", 2}, {"tokens", 32}, {"rows", 2}, {"new_tokens", 2}}}},
                  {"modes", {"prefix", "addition", kSeam}},
                  {"batch", 2},
                  {"states", 1},
                  {"scored_from", 0},
                  {"scored_rows", 3}};
  return c;
}

Result run(
    const SuiteCase& c, const Faults& faults = {}, ItemLog* items = nullptr,
    const std::function<void()>& step = [] {}) {
  return run_case(c, quality::prepare(c, "here", {.items = items}, faults),
                  [&](double, const std::string&) { step(); });
}

double value(const Result& result, const std::string& tag) {
  for (const Value& v : result.values)
    if (v.tag == tag) return v.value;
  ADD_FAILURE() << tag;
  return NAN;
}

// Values that are none are equal, too.
std::string shown(const std::vector<Value>& values) {
  std::string text;
  for (const Value& v : values) text += str(v.tag, " ", format_exact(v.value), "\n");
  return text;
}

TEST(Quality, MeasuresEveryModeOfEveryCell) {
  const Result result = run(tiny_case());
  ASSERT_EQ(result.verdict, Verdict::measured) << result.why;
  for (const char* cell : {"headlines/3x32", "fact/2x32"}) {
    EXPECT_EQ(value(result, str("noise.", cell)), 1);
    EXPECT_EQ(value(result, str("same.", cell, ".prefix")), 1);
    EXPECT_EQ(value(result, str("kl.", cell, ".prefix")), 0);
    EXPECT_EQ(value(result, str("loss.", cell, ".prefix")), 0);
    EXPECT_EQ(value(result, str("length.", cell, ".prefix")), 1);
    EXPECT_GT(value(result, str("kl.", cell, ".addition")), 0);
    EXPECT_LT(value(result, str("reused.", cell, ".", kSeam)), value(result, str("reused.", cell, ".addition")));
    EXPECT_GT(value(result, str("reused.", cell, ".", kSeam)), 0.5);
    EXPECT_LE(value(result, str("state.", cell, ".", kSeam, ".layer_00")), 1e-5);
    EXPECT_GT(value(result, str("state.", cell, ".addition.layer_00")), 1e-2);
  }
  EXPECT_EQ(value(result, "n.headlines/3x32"), 3);
  EXPECT_EQ(value(result, "scored.headlines"), 1);
  EXPECT_EQ(value(result, "scored.fact"), 0) << "of two rows";
  EXPECT_EQ(value(result, "scored"), 1);
  EXPECT_EQ(value(result, "loss_scored.prefix"), 0);
  for (const Table& table : result.tables)
    for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.heads.size()) << table.title;
}

// The batch changes nothing, also where it is one item.
TEST(Quality, TheBatchDoesNotMatter) {
  SuiteCase c = tiny_case();
  const std::string two = shown(run(c).values);
  c.parameters["batch"] = 1;
  EXPECT_EQ(shown(run(c).values), two);
  c.parameters["batch"] = 64;
  c.parameters["chunk"] = 20;
  EXPECT_EQ(shown(run(c).values), two);
}

TEST(Quality, WithoutAScoredCellThereIsNoLoss) {
  SuiteCase c = tiny_case();
  c.parameters["scored_from"] = 80;
  c.expectations = {{"scored", ">=", 1}, {str("loss_scored.", kSeam), "<=", 1}};
  const Result result = run(c);
  EXPECT_EQ(result.verdict, Verdict::fail);
  EXPECT_TRUE(std::isnan(value(result, str("loss_scored.", kSeam))));
}

// Stopped in a batch, it goes on behind the one before, to the same report.
TEST(Quality, ResumesBehindTheLastFinishedBatch) {
  const SuiteCase c = tiny_case();
  const TemporaryFolder made;
  const std::string& folder = made.path();
  const Result whole = run(c);
  int steps = 0, all = 0, left = 0;
  run(c, {}, nullptr, [&] { ++all; });
  {
    ItemLog log;
    log.open(folder, false);
    EXPECT_THROW(run(c, {}, &log,
                     [&] {
                       if (++steps == all / 2) throw Interrupted();
                     }),
                 Interrupted);
  }
  const size_t kept = quality::load_rows(folder + "/items.jsonl").size();
  EXPECT_GT(kept, 0u);
  EXPECT_EQ(kept % 6, 0u) << "rows of whole items: three modes, full twice, no context";
  ItemLog log;
  log.open(folder, true);
  EXPECT_FALSE(log.empty());
  const Result result = run(c, {}, &log, [&] { ++left; });
  EXPECT_LT(left, all);
  EXPECT_EQ(shown(result.values), shown(whole.values));
  EXPECT_EQ(result.tables, whole.tables);
  EXPECT_EQ(quality::load_rows(folder + "/items.jsonl").size(), 5u * 6);
}

std::string suite_file(const std::string& folder) {
  const SuiteCase c = tiny_case();
  const std::string path = folder + "/suite.json";
  std::ofstream(path) << nlohmann::json{
      {"title", "t"}, {"cases", {{{"name", c.name}, {"driver", c.driver}, {"parameters", c.parameters}}}}};
  return path;
}

// Through the runner: items lie in the folder; a resume of another suite is refused though no case was finished.
TEST(Quality, ItemsBelongToTheirRun) {
  const TemporaryFolder made;
  const std::string &folder = made.path(), out = folder + "/out";
  Suite suite = load_suite(suite_file(folder));
  RunSettings settings{.out = out};
  run_suite(suite, settings);
  EXPECT_EQ(quality::load_rows(out + "/items.jsonl").size(), 5u * 6);
  fs::resize_file(out + "/results.jsonl", 0);
  settings.resume = true;
  EXPECT_EQ(run_suite(suite, settings).results[0].verdict, Verdict::measured);
  fs::resize_file(out + "/results.jsonl", 0);
  suite.cases[0].parameters["seed"] = 8;
  EXPECT_THROW(run_suite(suite, settings), Error);
  settings.resume = false;
  run_suite(suite, settings);
  EXPECT_EQ(quality::load_rows(out + "/items.jsonl").size(), 5u * 6) << "of the second run alone";
}

// Each published fault that changes numbers is seen: by the driver itself, or by the laws that its suites ask with it.
TEST(Quality, PublishedFaultsAreSeen) {
  struct Fault {
    const char* name;
    bool Faults::*fault;
    const char* model;
  };
  constexpr const char *kQwen = "random:qwen3.5-tiny:3", *kRing = "random:ring-mini-linear-2.0-tiny:3";
  const Fault all[] = {{"none", nullptr, kQwen},
                       {"none", nullptr, kRing},
                       {"seam counted twice", &Faults::seam_counted_twice, kQwen},
                       {"warm-up without state", &Faults::warm_without_state, kQwen},
                       {"contamination", &Faults::built_in_context, kQwen},
                       {"K not rotated", &Faults::keys_not_rotated, kQwen},
                       {"K and state not rotated", &Faults::keys_not_rotated, kRing},
                       {"addition dropping misses", &Faults::addition_first_miss, kQwen},
                       {"lost convolution history", &Faults::window_lost, kQwen},
                       {"state of the request before", &Faults::state_not_cleared, kQwen}};
  for (const Fault& one : all) {
    Faults faults;
    if (one.fault) faults.*one.fault = true;
    SuiteCase c = tiny_case();
    c.parameters.update(
        {{"model", one.model},
         {"cells", {{{"task", "headlines"}, {"segments", 3}, {"tokens", 32}, {"rows", 2}, {"new_tokens", 2}}}},
         {"modes", {kSeam}}});
    c.expectations = {{str("state.headlines/3x32.", kSeam, ".layer_00"), "<=", 1e-5}};
    const Result asked = run(c, faults);
    SuiteCase laws;
    laws.driver = "reuse_laws";
    laws.parameters = {{"model", one.model}, {"modes", {"addition", kSeam}}, {"lengths", {12, 20, 15, 9}}};
    for (const char* law :
         {"again.*", "chunked.*", "partly.*", "moved.*", "beside.*", "composed.*", "attention.*", "first_layer.*"})
      laws.expectations.push_back({law, "<=", 1});
    const Result held =
        run_case(laws, reuse_laws::prepare(laws, "here", {}, faults), [](double, const std::string&) {});
    const bool green = asked.verdict == Verdict::pass && held.verdict == Verdict::pass;
    EXPECT_EQ(green, !one.fault) << one.name << ": quality " << to_string(asked.verdict) << ", " << asked.why
                                 << "; laws " << to_string(held.verdict) << ", " << held.why;
  }
}

std::string refusal(const nlohmann::json& changes, const DriverContext& context = {}) {
  SuiteCase c = tiny_case();
  c.parameters.update(changes);
  try {
    quality::prepare(c, "here", context, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Quality, RefusesBeforeAnythingRuns) {
  const auto cell = [](const nlohmann::json& json) { return nlohmann::json{{"cells", nlohmann::json::array({json})}}; };
  EXPECT_EQ(refusal(nlohmann::json::object()), "accepted");
  EXPECT_EQ(refusal({{"cells", nlohmann::json::array()}}),
            "here.parameters.cells: must be an array of at least one cell");
  EXPECT_EQ(refusal(cell({{"rows", 2}})), "here.parameters.cells[0]: names no task and no dataset");
  const std::string unknown = refusal(cell({{"task", "chess"}}));
  EXPECT_TRUE(unknown.starts_with("here.parameters.cells[0]: ") && unknown.find("headlines") != unknown.npos)
      << unknown;
  EXPECT_EQ(refusal(cell({{"task", "fact"}, {"dataset", "hotpotqa"}})),
            "here.parameters.cells[0]: unknown parameter \"dataset\"");
  EXPECT_EQ(refusal({{"cells", {{{"task", "fact"}}, {{"task", "fact"}, {"rows", 3}}}}}),
            "here.parameters.cells[1]: fact/8x64 appears twice");
  EXPECT_EQ(refusal({{"modes", {"full"}}}), "here.parameters.modes: mode \"full\": full recompute runs anyway, twice");
  EXPECT_EQ(refusal({{"modes", {"prefix@cold"}}}),
            "here.parameters.modes: mode \"prefix@cold\": takes no cache state here; all documents are cached");
  EXPECT_EQ(refusal({{"modes", {"addition", "addition"}}}), "here.parameters.modes: \"addition\" appears twice");
  EXPECT_EQ(refusal(cell({{"dataset", "hotpotqa"}})),
            "here.parameters.cells: no rows of hotpotqa; --data names its file, or a folder with hotpotqa.jsonl");
  EXPECT_NE(refusal({{"model", "models/testdata/transformers/qwen3_5"}}).find("has no tokenizer.json"),
            std::string::npos);
}

// What a suite for others' checkpoints asks: SKIP with what is missing, an error where --model is wrong.
TEST(Quality, WhatIsOptionalIsSkipped) {
  SuiteCase c = tiny_case();
  c.parameters["optional"] = 1;
  c.parameters["model"] = "nobody/none-7b";
  Result result = run(c);
  EXPECT_EQ(result.verdict, Verdict::skip);
  EXPECT_EQ(result.why,
            "no checkpoint nobody/none-7b here; hf download nobody/none-7b brings it, or --model names its folder");
  EXPECT_THROW(quality::prepare(c, "here", {.model = "nobody/none-7b"}, {}), Error);
  c = tiny_case();
  c.parameters["optional"] = 1;
  c.parameters["cells"] = nlohmann::json::array({{{"dataset", "triviaqa"}}});
  result = run(c);
  EXPECT_EQ(result.verdict, Verdict::skip);
  EXPECT_EQ(result.why, "no rows of triviaqa; --data names its file, or a folder with triviaqa.jsonl");
}

// A repository as the Hub's cache keeps it, and LongBench's rows in a folder: the way of anyone's own checkpoint.
TEST(Quality, AsksACheckpointOfTheHubOnLongBench) {
  const TemporaryFolder made;
  const std::string& folder = made.path();
  const std::string repository = folder + "/models--someone--tiny-model", snapshot = repository + "/snapshots/0123abcd";
  fs::create_directories(snapshot);
  fs::create_directories(repository + "/refs");
  std::ofstream(repository + "/refs/main") << "0123abcd";
  const auto cpu = reference::make_cpu_backend();
  write_model(Model::open(*cpu, "random:qwen3.5-tiny:5"), snapshot, DType::bf16);
  fs::copy(asset("datasets/tokenizer/tokenizer.json"), snapshot);
  std::ofstream(snapshot + "/generation_config.json") << R"({"eos_token_id": [2045, 2047]})";
  std::ofstream(folder + "/hotpotqa.jsonl")
      << R"({"_id": "a", "dataset": "hotpotqa", "input": "Who?", "context": "Passage 1:\nOne text of the town.\nPassage 2:\nTwo.", "answers": ["no"]})"
      << "\n"
      << R"({"_id": "a", "dataset": "hotpotqa", "input": "Where?", "context": "Passage 1:\nOne.\nPassage 2:\nTwo and three and four and five and six.", "answers": ["here"]})"
      << "\n";
  setenv("HF_HUB_CACHE", folder.c_str(), 1);
  SuiteCase c = tiny_case();
  c.parameters["model"] = "someone/tiny-model";
  c.parameters["cells"] = nlohmann::json::array({{{"dataset", "hotpotqa"}, {"max_tokens", 60}, {"new_tokens", 3}}});
  bool used = false;
  const Work work = quality::prepare(c, "here", {.data = folder, .data_used = &used}, {});
  unsetenv("HF_HUB_CACHE");
  const Result result = run_case(c, work, [](double, const std::string&) {});
  EXPECT_EQ(result.verdict, Verdict::measured) << result.why;
  EXPECT_TRUE(used);
  EXPECT_EQ(value(result, "n.hotpotqa"), 2);
  EXPECT_EQ(value(result, "same.hotpotqa.prefix"), 1);
  EXPECT_NE(result.note.find("applies no chat template"), std::string::npos);
}

TEST(Quality, SuitesOfTheProjectArePrepared) {
  for (const char* path :
       {"suites/quality.json", "suites/quality_study.json", "suites/quality_tiny.json", "suites/quality-real.json"}) {
    const Suite suite = load_suite(asset(path));
    for (const SuiteCase& c : suite.cases) {
      // Trained models come with the tree or not at all.
      if (c.parameters.at("model").get<std::string>().starts_with("datasets/") &&
          !fs::exists(asset(c.parameters.at("model"))))
        continue;
      find_driver(c.driver)->prepare(c, path, {.backend = "cpu"});
    }
  }
}

}  // namespace
}  // namespace hypic
