// Rows, what they say of modes, and two runs side by side.
#include "core/temporary_folder.h"
#include "harness/drivers/quality_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/file.h"
#include "harness/drivers/quality_charts.h"
#include "harness/drivers/quality_compare.h"
#include "harness/drivers/quality_summary.h"
#include "reports/item_log.h"

namespace hypic::quality {
namespace {

Row row(const std::string& id, const std::string& mode, double score, const Tokens& tokens = {1, 2}) {
  Row r{"tiny", "fact/8x64", id, mode, score, "text", tokens, std::vector<double>(tokens.size(), 0.25)};
  r.same_output = r.same_first = true;
  r.kl = 0.5;
  r.allowed = 0.1;
  r.total = 100;
  r.computed = 20;
  return r;
}

double value(const Result& result, const std::string& tag) {
  for (const Value& v : result.values)
    if (v.tag == tag) return v.value;
  ADD_FAILURE() << tag;
  return NAN;
}

TEST(QualityRows, AreReadAsTheyWereWritten) {
  Row r = row("a \"quoted\"", "addition", 0.5);
  r.gaps = {0.123456, INFINITY};
  const TemporaryFolder folder;
  const std::string path = folder.path(ItemLog::kFile);
  {
    ItemLog log;
    log.open(folder.path(), false);
    log.append("a case", {to_json(r)});
  }
  const std::vector<Row> rows = load_rows(path);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].id, r.id);
  EXPECT_EQ(rows[0].tokens, r.tokens);
  EXPECT_EQ(rows[0].gaps[0], 0.1235) << "four digits";
  EXPECT_TRUE(std::isnan(rows[0].gaps[1]));
  EXPECT_EQ(rows[0].kl, r.kl);
  EXPECT_EQ(rows[0].computed, r.computed);
  nlohmann::ordered_json broken = to_json(r);
  broken["gaps"] = {1};
  EXPECT_THROW(row_from_json(broken, "here"), Error);
  broken.erase("gaps");
  EXPECT_THROW(row_from_json(broken, "here"), Error);
  std::string text = read_file(path, 1 << 20);
  text.replace(text.find("0.5"), 3, "1.0");
  std::ofstream(path) << text;
  EXPECT_THROW(load_rows(path), Error) << "edited";
  std::ofstream(path, std::ios::trunc);
  EXPECT_THROW(load_rows(path), Error);
}

// Ten items, full right on all but one, a mode on all but three, the floor on one.
TEST(QualityRows, LossAndRecoveredGap) {
  Cell cell;
  cell.task = "fact";
  CellRows rows;
  for (int i = 0; i < 10; ++i) {
    const std::string id(1, static_cast<char>('a' + i));
    for (const auto& [mode, score] :
         {std::pair{"full", i != 9}, {kAgain, i != 9}, {"addition", i < 7}, {kFloor, i == 0}})
      rows[mode].push_back(row(id, mode, score, mode == std::string("addition") ? Tokens{1, 2, 3} : Tokens{1, 2}));
  }
  const Result result = summarize({cell}, {rows}, {}, {"addition"}, {.from = 90, .rows = 10}, 1);
  EXPECT_NEAR(value(result, "full.fact/8x64"), 90, 1e-9);
  EXPECT_NEAR(value(result, "floor.fact/8x64"), 10, 1e-9);
  EXPECT_NEAR(value(result, "loss.fact/8x64.addition"), 20, 1e-9);
  EXPECT_GE(value(result, "loss_low.fact/8x64.addition"), 0) << "paired: the mode never wins";
  EXPECT_LE(value(result, "loss_high.fact/8x64.addition"), 60);
  EXPECT_NEAR(value(result, "recovered.fact/8x64.addition"), 0.75, 1e-9);
  EXPECT_LE(value(result, "recovered_high.fact/8x64.addition"), 1);
  EXPECT_NEAR(value(result, "length.fact/8x64.addition"), 1.5, 1e-9);
  EXPECT_NEAR(value(result, "reused.fact/8x64.addition"), 0.8, 1e-9);
  EXPECT_EQ(value(result, "scored"), 1);
  EXPECT_NEAR(value(result, "loss_scored.addition"), 20, 1e-9);
  EXPECT_EQ(value(summarize({cell}, {rows}, {}, {"addition"}, {.from = 91, .rows = 10}, 1), "scored"), 0);
  EXPECT_EQ(value(summarize({cell}, {rows}, {}, {"addition"}, {.from = 90, .rows = 11}, 1), "scored"), 0);
  for (auto& [mode, of] : rows) of.resize(5);
  const Result few = summarize({cell}, {rows}, {}, {"addition"}, {.from = 90, .rows = 5}, 1);
  for (const char* tag :
       {"loss_low.fact/8x64.addition", "recovered_high.fact/8x64.addition", "loss_scored_low.addition"})
    EXPECT_TRUE(std::isnan(value(few, tag))) << tag << ": too few for an interval";
}

// A line where a series has several points, over seams and over the shapes of one task.
TEST(QualityRows, ChartsShowWhatVaries) {
  std::vector<Cell> cells(3);
  for (Cell& cell : cells) cell.task = "fact";
  cells[1].shape.segments = 16;
  cells[2].shape.tokens = 256;
  std::vector<std::string> modes = {"addition", "transition_rope"};
  std::vector<Value> values;
  const auto fill = [&] {
    values.clear();
    for (const Cell& cell : cells)
      for (const std::string& mode : modes) {
        values.push_back({str("loss.", cell.label(), ".", mode), 1, "points"});
        values.push_back({str("kl.", cell.label(), ".", mode), 0.5, "nats"});
        values.push_back({str("state.", cell.label(), ".", mode, ".layer_00"), 0.25, "relative"});
        values.push_back({str("state.", cell.label(), ".", mode, ".layer_02"), 0.75, "relative"});
      }
  };
  fill();
  std::vector<Chart> charts = charts_over(cells, modes, values);
  ASSERT_EQ(charts.size(), 3u * 2) << "loss, KL and states, over documents and over tokens";
  EXPECT_EQ(charts[0].title, "Points lost, fact, documents of 64 tokens");
  ASSERT_EQ(charts[0].series.size(), 2u);
  EXPECT_EQ(charts[0].series[0].x, (std::vector<double>{8, 16}));
  EXPECT_EQ(charts[4].series[1].y, (std::vector<double>{0.5, 0.5})) << "the mean over layers";
  cells.resize(1);
  modes = {"transition_rope", "transition_rope:head=2", "transition_rope:head=4", "transition_rope_seam",
           "two_sided_seam"};
  fill();
  charts = charts_over(cells, modes, values);
  ASSERT_EQ(charts.size(), 3u);
  ASSERT_EQ(charts[0].series.size(), 2u);
  EXPECT_EQ(charts[0].series[0].name, "T·S + U, head");
  EXPECT_EQ(charts[0].series[0].x, (std::vector<double>{0, 2, 4, 8}));
  EXPECT_EQ(charts[0].series[1].x, (std::vector<double>{0, 16}));
}

TEST(QualityRows, OutputsThatDifferAreExplainedByTheirGaps) {
  std::vector<Row> a, b;
  for (int i = 0; i < 200; ++i) a.push_back(row(str(i), "full", 1));
  b = a;
  Result result = compare(a, b);
  EXPECT_EQ(result.verdict, Verdict::pass) << result.why;
  b[0].tokens = {1, 7};
  b[0].gaps[1] = a[0].gaps[1] = 0.1;  // together as far as two logits may move
  result = compare(a, b);
  EXPECT_EQ(result.verdict, Verdict::pass) << result.why;
  EXPECT_EQ(value(result, "explained"), 1);
  EXPECT_EQ(value(result, "same"), 0.995);
  b[0].gaps[1] = 0.11;
  result = compare(a, b);
  EXPECT_EQ(result.verdict, Verdict::fail);
  EXPECT_EQ(value(result, "unexplained"), 1);
  b[0] = a[0];
  b[1].tokens = {1};  // nothing differs until one ends
  b[1].gaps = {0.25};
  EXPECT_EQ(value(compare(a, b), "unexplained"), 1);
  b = a;
  for (int i = 0; i < 3; ++i) b[i].tokens = {1, 7}, b[i].gaps[1] = a[i].gaps[1] = 0;
  result = compare(a, b);
  EXPECT_EQ(result.verdict, Verdict::fail) << "98.5 %, though explained";
  b = a;
  for (Row& one : b) one.model = "another";
  EXPECT_THROW(compare(a, b), Error);
  b = a;
  b.pop_back();
  result = compare(a, b);
  EXPECT_NE(result.why.find("1 of the first run alone, 0 of the second"), std::string::npos) << result.why;
  b = a;
  b[0].tokens = {1, 7};
  b[0].gaps[1] = NAN;
  EXPECT_EQ(value(compare(a, b), "unexplained"), 1) << "a lead that is not finite";
  b.assign(1, row("other", "full", 1));
  EXPECT_THROW(compare(a, b), Error);
}

}  // namespace
}  // namespace hypic::quality
