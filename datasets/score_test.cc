#include "datasets/score.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "datasets/rows.h"
#include "datasets/testing.h"

namespace hypic {
namespace {

struct Golden {
  std::string metric, prediction;
  std::vector<std::string> answers;
  double score;
};

// Rows of tools/make-score-golden.py, or of the folder shared/data with first_line beside them.
std::vector<Golden> read_golden(const std::string& path) {
  std::vector<Golden> out;
  RowReader rows(path);
  for (nlohmann::json row; rows.next(row);) {
    Golden& golden = out.emplace_back(
        Golden{row.at("metric"), row.at("prediction"), row.at("answers"), row.at("score")});
    if (row.value("first_line", false))
      golden.prediction = scored_part(dataset_traits("triviaqa"), golden.prediction);
  }
  return out;
}

void expect_equal(const std::vector<Golden>& rows) {
  const DatasetTraits &f1 = dataset_traits("hotpotqa"), &rouge = dataset_traits("gov_report");
  double worst = 0;
  for (const Golden& row : rows) {
    const auto& traits = row.metric == "qa_f1" ? f1 : rouge;
    const double score = score_prediction(traits, row.prediction, row.answers);
    EXPECT_NEAR(score, row.score, 1e-12) << row.metric << ": " << row.prediction;
    worst = std::max(worst, std::abs(score - row.score));
  }
  std::cout << rows.size() << " rows, largest difference " << worst << "\n";
}

TEST(Score, EqualsThePublishedCodeOnOwnText) {
  const auto rows = read_golden("datasets/score_golden.jsonl");
  EXPECT_EQ(rows.size(), 345);
  expect_equal(rows);
}

TEST(Score, EqualsLongbenchOnSharedRows) {
  const std::string data = shared_data();
  if (data.empty()) GTEST_SKIP() << kNoSharedData;
  const auto rows = read_golden(data + "/golden/metric_golden.jsonl");
  EXPECT_GE(rows.size(), 85);
  expect_equal(rows);
}

TEST(Score, TakesTheBestAnswerOfTheScoredPart) {
  const auto score = [](const char* dataset, const char* prediction) {
    return score_prediction(dataset_traits(dataset), prediction, {"a red fox", "The fox"});
  };
  EXPECT_EQ(score("hotpotqa", "Fox!"), 1);
  EXPECT_EQ(score("triviaqa", "\n\nfox\nred red"), 1);
  EXPECT_NEAR(score("hotpotqa", "\n\nfox\nred red"), 0.8, 1e-15);  // red fox: 2 of 3 and of 2
  EXPECT_EQ(score("multi_news", "the fox"), rouge_l("the fox", "The fox"));
  EXPECT_EQ(score_prediction(dataset_traits("musique"), "fox", {}), 0);
  EXPECT_THROW(dataset_traits("trec"), Error);
}

rc::Gen<std::string> any_text() {
  const auto piece = rc::gen::element<std::string>("a", "the", "stone", "River", " ", ". ", ".",
                                                   ",", "\n", "é", "\u00a0", "٣", "“", "\xff");
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(piece), join);
}

RC_GTEST_PROP(Score, F1IsSymmetricAndBetween0And1, ()) {
  const auto a = *any_text(), b = *any_text();
  RC_ASSERT(std::abs(qa_f1(a, b) - qa_f1(b, a)) < 1e-15);
  RC_ASSERT(0 <= qa_f1(a, b) && qa_f1(a, b) <= 1);
  RC_ASSERT(qa_f1(a, a) == 0 || qa_f1(a, a) == 1);
}

RC_GTEST_PROP(Score, RougeOfEqualTextsIsTheSameAlways, ()) {
  const auto a = *any_text(), b = *any_text();
  const bool sentences = a.find_first_not_of('.') != a.npos;
  RC_ASSERT(std::abs(rouge_l(a, a) - (sentences ? 0.999999995 : 0)) < 1e-15);
  RC_ASSERT(0 <= rouge_l(a, b) && rouge_l(a, b) < 1);
}

TEST(Score, BearsLongTexts) {
  std::string words, sentence;
  for (int i = 0; i < 200'000; ++i) words += str("w", i % 7, " ");
  for (int i = 0; i < 900; ++i) sentence += str("w", i % 5, " ");
  EXPECT_EQ(rouge_l(words, words), 0);  // rouge's recursion fails
  EXPECT_GE(rouge_l(sentence, words), 0);
  EXPECT_GT(qa_f1(words, sentence), 0);
}

RC_GTEST_PROP(Bootstrap, IntervalHoldsTheMean, ()) {
  const auto values = *rc::gen::nonEmpty(rc::gen::container<std::vector<double>>(
      rc::gen::map(rc::gen::inRange(0, 1001), [](int n) { return n / 1000.0; })));
  const Interval interval = bootstrap_interval(values);
  const double mean = mean_of(values);
  RC_ASSERT(interval.low <= mean + 1e-12 && mean <= interval.high + 1e-12);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  RC_ASSERT(*low <= interval.low + 1e-12 && interval.high <= *high + 1e-12);
}

TEST(Bootstrap, IsSeededAndNarrowsWithRows) {
  std::vector<double> values;
  for (int i = 0; i < 100; ++i) values.push_back(i % 2);
  const Interval a = bootstrap_interval(values, 1), b = bootstrap_interval(values, 1);
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  // The mean of 100 fair coins: 0.5 ± 1.96 · 0.05.
  EXPECT_NEAR(a.low, 0.402, 0.011);
  EXPECT_NEAR(a.high, 0.598, 0.011);
  EXPECT_EQ(bootstrap_interval({}).high, 0);
  EXPECT_EQ(bootstrap_interval({0.25}).low, 0.25);
}

}  // namespace
}  // namespace hypic
