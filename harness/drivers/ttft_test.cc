#include "harness/drivers/ttft.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <map>

#include "core/check.h"
#include "core/temporary_folder.h"
#include "harness/assets.h"
#include "serving/memory.h"

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
  EXPECT_EQ(result.verdict, Verdict::measured) << result.why;
  for (const Value& v : result.values) {
    EXPECT_TRUE(std::isfinite(v.value)) << v.tag;
    EXPECT_FALSE(v.tag.starts_with("p90") && v.tag.find("12+3x20+5") != v.tag.npos)
        << "of three samples";
    EXPECT_FALSE(v.tag.find("_low") != v.tag.npos && v.tag.find("12+3x20+5") != v.tag.npos)
        << v.tag << " of three samples";
    EXPECT_FALSE(v.tag.starts_with("limit") || v.tag.starts_with("share")) << "of a CPU";
  }
  for (const char* cell : {"12+3x20+5", "multi_news/64"})
    for (const char* mode :
         {"full@cold", "prefix@warm_prefix_other_order", kSeam, "transition_rope_seam@missed=1"}) {
      const std::string at = str(".", cell, ".", mode);
      EXPECT_GT(value(result, "p50" + at), 0);
      if (cell == std::string("multi_news/64")) {  // two prompts, three rounds
        EXPECT_LE(value(result, "p50_low" + at), value(result, "p50" + at));
        EXPECT_GE(value(result, "p50_high" + at), value(result, "p50" + at));
      }
      double owners = 0;
      for (const char* owner : {"weights", "pages", "operators", "states", "activations"})
        owners += value(result, str("memory.", owner, at));
      EXPECT_GT(value(result, "memory.activations" + at), 0);
      EXPECT_NEAR(owners, value(result, "memory.peak" + at), 0.1);
      EXPECT_GT(value(result, "ratio_full" + at), 0);
      EXPECT_GT(value(result, "ratio_prefix" + at), 0);
      EXPECT_EQ(value(result, "gate" + at), 0);
      EXPECT_GT(value(result, "touched" + at), 0);
      EXPECT_GE(value(result, "load" + at), 1);
    }
  EXPECT_EQ(value(result, str("ratio_full.12+3x20+5.full@cold")), 1);
  EXPECT_EQ(value(result, str("computed.12+3x20+5.full@cold")), 1);
  EXPECT_NEAR(value(result, str("computed.12+3x20+5.", kSeam)), (4 * 8 + 5) / 77.0, 1e-12);
  EXPECT_NEAR(value(result, str("found.12+3x20+5.", kSeam)), 72 / 77.0, 1e-12);
  EXPECT_NEAR(value(result, "found.12+3x20+5.transition_rope_seam@missed=1"), 52 / 77.0, 1e-12);
  EXPECT_NEAR(value(result, "found.12+3x20+5.prefix@warm_prefix_other_order"), 12 / 77.0, 1e-12);
  EXPECT_TRUE(result.why.starts_with("transition_rope_seam@missed=1: geometric mean of 2 cells, × full "))
      << result.why;
  EXPECT_GT(value(result, str("ratio_prefix.geomean.", kSeam)), 0);
  ASSERT_GE(result.tables.size(), 2u);
  EXPECT_EQ(result.tables[0].rows.size(), 8u);
  for (const Table& table : result.tables)
    for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.heads.size()) << table.title;
}

// Segments no longer than their seams: everything is computed, and a ratio says nothing.
TEST(Ttft, ARowThatReusesNothingIsNamed) {
  SuiteCase c = tiny_case();
  c.parameters["cells"] = {{{"segments", 2}, {"tokens", 8}, {"question", 5}}};
  c.parameters["modes"] = {"full", "prefix@warm_prefix", "transition_rope_seam"};
  c.parameters["repeats"] = 1;
  const Result result = run(c);
  ASSERT_FALSE(result.tables.empty()) << result.why;
  EXPECT_EQ(result.tables[0].note, str("Reused no token, all was computed: 2x8+5, ", kSeam, "."));
  EXPECT_TRUE(result.why.starts_with(str(kSeam, ": p50 "))) << result.why;
}

// A wrong backend is wrong cold as well: the gate is not for it, and says so. It is a CPU and has no limit.
TEST(Ttft, TheGateSaysWhatItCannotSee) {
  SuiteCase c = tiny_case();
  c.parameters["backend"] = "broken:compose_ignored";
  c.parameters["repeats"] = 1;
  const Result result = run(c);
  EXPECT_EQ(result.verdict, Verdict::measured) << result.why;
  ASSERT_EQ(result.tables.size(), 3u);
  EXPECT_NE(result.tables[1].note.find("not that the mode composes states rightly"), std::string::npos);
  for (const Value& v : result.values) EXPECT_FALSE(v.tag.starts_with("limit")) << v.tag;
}

// Between two layers, whatever runs.
TEST(Ttft, StopsInTheMiddleOfAForward) {
  SuiteCase c = tiny_case();
  c.parameters["cells"] = {{{"segments", 3}, {"tokens", 20}, {"question", 5}}};
  const Work work = ttft::prepare(c, "here", {}, {});
  std::map<std::string, int> calls;
  run_case(c, work, [&](double, const std::string& what) { ++calls[what]; });
  EXPECT_GT(calls["full@cold, check"], 4);  // each layer of its forwards, and the step itself
  EXPECT_TRUE(calls.contains("transition_rope_seam@missed=1, warm-up"));
  for (const int stop_at : {2, 30, 200}) {
    int n = 0;
    EXPECT_THROW(run_case(c, work, [&](double, const std::string&) { if (++n == stop_at) throw Interrupted(); }),
                 Interrupted)
        << stop_at;
  }
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
  EXPECT_EQ(refusal({{"modes", {"transition_rope_seam", "full", "transition_rope_seam:head=8@warm_segment"}}}),
            "here.parameters.modes: \"transition_rope_seam:head=8@warm_segment\" appears twice, also as "
            "\"transition_rope_seam@warm_segment\"");
  EXPECT_NE(refusal({{"modes", {"transition", "transition@missed=0"}}}).find("appears twice"), std::string::npos);
  EXPECT_TRUE(refusal({{"modes", {"prefix", ""}}}).starts_with("here.parameters.modes: unknown mode \"\""));
  EXPECT_EQ(refusal({{"warmup", 1}}), "here.parameters: unknown parameter \"warmup\"");
  EXPECT_NE(refusal({{"modes", {"transition_rope_seam@missed=9"}}}).find("cannot miss"),
            std::string::npos);
  EXPECT_NE(refusal({{"backend", "tpu"}}).find("unknown backend"), std::string::npos);
}

TEST(Ttft, DataOfAnotherDatasetIsRefused) {
  const TemporaryFolder folder;
  const std::string data = folder.path("rows.jsonl");
  std::ofstream(data) << R"({"_id": "a", "dataset": "hotpotqa", "input": "Who?", "context": )"
                      << R"("Passage 1:\nOne text.\nPassage 2:\nTwo.", "answers": ["no"]})" << "\n";
  const auto prepared = [&](const nlohmann::json& cells) -> std::string {
    SuiteCase c = tiny_case();
    c.parameters["model"] = "random:qwen3.5-tiny:3";
    c.parameters["cells"] = cells;
    c.parameters["modes"] = {"full", "prefix@warm_prefix", "transition_rope_seam"};
    try {
      ttft::prepare(c, "here", {.data = data}, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  const nlohmann::json other = {{"dataset", "multi_news"}, {"rows", 1}, {"divide", 64}};
  const nlohmann::json same = {{"dataset", "hotpotqa"}, {"rows", 1}};
  EXPECT_EQ(prepared(nlohmann::json::array({other})),
            data + ": rows of hotpotqa, not of multi_news; without --data its tokens are random");
  const nlohmann::json third = {{"dataset", "triviaqa"}, {"rows", 1}, {"divide", 64}};
  EXPECT_EQ(prepared(nlohmann::json::array({other, third})),
            data + ": rows of hotpotqa, not of multi_news, triviaqa; without --data their tokens are random");
  EXPECT_EQ(prepared(nlohmann::json::array({same})), "accepted");
  int rows = 0;
  bool used = false;
  SuiteCase c = tiny_case();
  c.parameters["model"] = "random:qwen3.5-tiny:3";
  c.parameters["cells"] = nlohmann::json::array({same});
  const ProgressFn count = [&](double, const std::string& what) { rows += what == "tokenizes hotpotqa, row 1 of 1"; };
  ttft::prepare(c, "here", {.data = data, .progress = count, .data_used = &used}, {});
  EXPECT_EQ(rows, 1);
  EXPECT_TRUE(used);
  const ProgressFn stop = [](double, const std::string&) { throw Interrupted(); };
  EXPECT_THROW(ttft::prepare(c, "here", {.data = data, .progress = stop}, {}), Interrupted);
  EXPECT_EQ(prepared(nlohmann::json::array({other, same})), "accepted");  // the other as the note says
  EXPECT_EQ(prepared(nlohmann::json::array({{{"segments", 2}, {"tokens", 20}}})), "accepted");
}

TEST(Ttft, SuitesOfTheProjectArePrepared) {
  for (const char* path : {"suites/ttft.json", "suites/ttft_tiny.json"}) {
    const Suite suite = load_suite(asset(path));
    for (const SuiteCase& c : suite.cases)
      for (const char* model : {"", "random:ring-mini-linear-2.0"})
        find_driver(c.driver)->prepare(c, path, {.model = model, .backend = "cpu"});
  }
}

// 262,144 positions of Qwen3.5-35B-A3B on an H200, of whose 139.8 GiB a context and libraries keep about one.
TEST(Ttft, ALongPromptFitsAnH200) {
  const ModelSpec spec = spec_named("qwen3.5-35b-a3b");
  const auto need = [&](int64_t segments, int64_t tokens, const std::vector<std::string>& names, int32_t chunk) {
    Workload workload;
    workload.segments = segments;
    workload.tokens = tokens;
    const CellPrompts prompts = cell_prompts(workload, "random:qwen3.5-35b-a3b", spec, "");
    std::vector<CellMode> modes;
    for (const std::string& name : names) modes.push_back(cell_mode(name));
    const EngineOptions options = ttft::engine_options(prompts.prompts, modes, chunk);
    const MemoryNeed n = memory_need(spec, DType::bf16, DType::f32, options.pools, options.max_rows);
    const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
    std::cout << segments << " x " << tokens << ", chunk " << chunk << ": weights " << gib(n.weights) << ", pages "
              << gib(n.pages) << ", operators " << gib(n.operators) << ", states " << gib(n.states)
              << ", activations " << gib(n.activations) << ", in all " << gib(n.total()) << " GiB\n";
    return gib(n.total());
  };
  constexpr double kUsable = 138.5;
  const std::vector<std::string> all = {"full", "prefix", "transition_rope_seam", "transition_rope_seam@cold"};
  EXPECT_LE(need(64, 512, all, 8192), kUsable / 1.5);
  EXPECT_LE(need(511, 512, all, 8192), kUsable);
  EXPECT_GT(need(511, 512, all, 8192) - need(511, 512, all, 2048), 0.5);  // what --chunk is for
  EXPECT_THROW(need(512, 512, all, 8192), Error);  // with the question more than the model has positions
  // A snapshot of each prefix is a state: they are what does not fit then.
  EXPECT_GT(need(511, 512, {"prefix@warm_prefix", "transition_rope_seam"}, 8192), kUsable);
}

// The whole way at a small size: many times what one forward holds, and hardly any states.
TEST(Ttft, LongPromptsTakeFewStates) {
  SuiteCase c = tiny_case();
  c.parameters["model"] = "random:qwen3.5-tiny:3";
  c.parameters["cells"] = {{{"segments", 24}, {"tokens", 12}, {"question", 5}}};
  c.parameters["modes"] = {"prefix", "transition_rope_seam@cold", "transition_rope_seam@missed=5"};
  c.parameters["chunk"] = 30;
  c.parameters["repeats"] = 1;
  const Result result = run(c);
  EXPECT_EQ(result.verdict, Verdict::measured) << result.why;
}

}  // namespace
}  // namespace hypic
