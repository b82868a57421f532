#include "datasets/dataset.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <set>

#include "core/check.h"
#include "datasets/testing.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

TEST(Prompt, IsLongbenchsTemplate) {
  const Item item{
      .dataset = "hotpotqa", .context = "Passage 1:\nX\nx.\nPassage 2:\nY\ny.", .question = "Who?"};
  const Prompt prompt = longbench_prompt(item);
  EXPECT_EQ(prompt.segments.size(), 4);
  EXPECT_EQ(prompt.segments[1], "Passage 1:\nX\nx.\n");
  EXPECT_EQ(join(prompt.segments),
            "Answer the question based on the given passages. Only give me the answer and do not "
            "output any other words.\n\nThe following are given passages.\n"
            "Passage 1:\nX\nx.\nPassage 2:\nY\ny.\n\n"
            "Answer the question based on the given passages. Only give me the answer and do not "
            "output any other words.\n\nQuestion: Who?\nAnswer:");
  for (const char* same : {"2wikimqa", "musique", "hotpotqa_e"})
    EXPECT_EQ(
        longbench_prompt({.dataset = same, .context = item.context, .question = "Who?"}).segments,
        prompt.segments);
  EXPECT_THROW(longbench_prompt({.dataset = "trec"}), Error);
}

TEST(Prompt, OfOtherDatasets) {
  const std::string shot = "Passage:\nx\nQuestion:\nq?\nAnswer:\na\n";
  const Prompt trivia = longbench_prompt(
      {.dataset = "triviaqa", .context = shot + shot, .question = "Passage:\ny\nAnswer:\n"});
  EXPECT_EQ(trivia.segments.size(), 4);
  EXPECT_EQ(join(trivia.segments),
            "Answer the question based on the given passage. Only give me the answer and do not "
            "output any other words. The following are some examples.\n\n" +
                shot + shot + "\n\nPassage:\ny\nAnswer:\n");
  EXPECT_EQ(
      join(longbench_prompt({.dataset = "multi_news", .context = "Passage 1:\nx", .question = "?"})
               .segments),
      "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n"
      "Passage 1:\nx\n\nNow, write a one-page summary of all the news.\n\nSummary:");
  const CountTokens long_words = [](std::string_view text) { return 600 * count_words(text); };
  const Prompt report =
      longbench_prompt({.dataset = "gov_report", .context = "One. Two."}, long_words);
  EXPECT_EQ(report.segments.size(), 4);
  EXPECT_EQ(join(report.segments),
            "You are given a report by a government agency. Write a one-page summary of the report."
            "\n\nReport:\nOne. Two.\n\nNow, write a one-page summary of the report.\n\nSummary:");
}

TEST(Traits, AreLongbenchs) {
  EXPECT_EQ(dataset_traits("triviaqa").max_new_tokens, 32);
  EXPECT_EQ(dataset_traits("multi_news").max_new_tokens, 512);
  EXPECT_EQ(dataset_traits("gov_report_e").metric, Metric::rouge_l);
  EXPECT_EQ(dataset_traits("musique").metric, Metric::qa_f1);
  EXPECT_FALSE(dataset_traits("triviaqa").chat_template);
  EXPECT_TRUE(dataset_traits("hotpotqa").chat_template);
  EXPECT_EQ(scored_part(dataset_traits("triviaqa"), "\n\na b\nc"), "a b");
  EXPECT_EQ(scored_part(dataset_traits("triviaqa"), "\n"), "");
  EXPECT_EQ(scored_part(dataset_traits("hotpotqa"), "\na\nb"), "\na\nb");
}

// Tokens of two bytes; decoding replaces what is cut inside a character, as tokenizers do.
const TextCodec kPairs{
    [](std::string_view text) {
      std::vector<int32_t> ids;
      for (size_t i = 0; i < text.size(); i += 2)
        ids.push_back(uint8_t(text[i]) << 8 | (i + 1 < text.size() ? uint8_t(text[i + 1]) : 0));
      return ids;
    },
    [](const std::vector<int32_t>& ids) {
      std::string bytes;
      for (const int32_t id : ids) bytes += {char(id >> 8), char(id)};
      if (!bytes.empty() && bytes.back() == 0) bytes.pop_back();
      if (!bytes.empty() && (bytes[0] & 0xC0) == 0x80) bytes = "\uFFFD" + bytes.substr(1);
      if (!bytes.empty() && (bytes.back() & 0xC0) == 0xC0)
        bytes.replace(bytes.size() - 1, 1, "\uFFFD");
      return bytes;
    }};

TEST(TruncateMiddle, KeepsTheEndsAndTheirCuts) {
  using Parts = std::vector<std::string>;
  const Prompt prompt{{"abcd", "efgh", "ijkl", "mnop"}};
  EXPECT_EQ(truncate_middle(prompt, 8, kPairs).segments, prompt.segments);
  EXPECT_EQ(truncate_middle(prompt, 7, kPairs).segments, (Parts{"abcd", "ef", "kl", "mnop"}));
  EXPECT_EQ(truncate_middle(prompt, 2, kPairs).segments, (Parts{"ab", "op"}));
  EXPECT_EQ(truncate_middle({{"abcé", "éxyz"}}, 4, kPairs).segments,
            (Parts{"abc\uFFFD", "\uFFFDxyz"}));
  EXPECT_THROW(truncate_middle(prompt, 1, kPairs), Error);
}

RC_GTEST_PROP(TruncateMiddle, IsTheTextOfBothHalves, ()) {
  const Prompt prompt{*rc::gen::container<std::vector<std::string>>(
      rc::gen::element<std::string>("abc", "é", "x", "", "the end"))};
  const int64_t most = *rc::gen::inRange(2, 12);
  const auto ids = kPairs.encode(join(prompt.segments));
  const std::string got = join(truncate_middle(prompt, most, kPairs).segments);
  if (int64_t(ids.size()) <= most) {
    RC_ASSERT(got == join(prompt.segments));
  } else {
    const auto half = most / 2;
    RC_ASSERT(got == kPairs.decode({ids.begin(), ids.begin() + half}) +
                         kPairs.decode({ids.end() - half, ids.end()}));
  }
}

TEST(OwnPassages, AreWellFormedAndHoldTheirAnswers) {
  const auto items = load_dataset("datasets/text/passages.jsonl");
  EXPECT_EQ(items.size(), 24);
  std::set<std::string> ids;
  for (const Item& item : items) {
    SCOPED_TRACE(item.id);
    ids.insert(item.id);
    const auto segments = segment_passages(item.context);
    EXPECT_GE(segments.size(), 8);
    EXPECT_LE(segments.size(), 12);
    ASSERT_FALSE(item.answers.empty());
    const std::string& answer = item.answers[0];
    EXPECT_TRUE(answer == "yes" || answer == "no" || item.context.find(answer) != answer.npos)
        << answer;
    EXPECT_EQ(longbench_prompt(item).segments.size(), segments.size() + 2);
  }
  EXPECT_EQ(ids.size(), items.size());
}

TEST(SharedRows, SegmentAndBuildPrompts) {
  const std::string data = shared_data();
  if (data.empty()) GTEST_SKIP() << kNoSharedData;
  int rows = 0, segments = 0;
  for (const char* name :
       {"longbench/hotpotqa", "longbench/2wikimqa", "longbench/musique", "longbench/triviaqa",
        "longbench/multi_news", "longbench/gov_report", "extra/hotpotqa_distractor",
        "extra/musique_train", "extra/gov_report_leval"}) {
    const std::string path = data + "/" + name + ".jsonl";
    if (!fs::exists(path)) continue;
    size_t least = 1000, most = 0;
    for (const Item& item : load_dataset(path)) {
      const DatasetTraits& traits = dataset_traits(item.dataset);
      const auto parts = traits.segment(item.context, count_words);
      EXPECT_EQ(join(parts), item.context) << item.id;
      for (size_t i = 0; i < parts.size(); ++i) {
        const bool as_marked =
            item.dataset == "triviaqa" ? parts[i].starts_with("Passage:\n")
            : item.dataset == "gov_report"
                ? count_words(parts[i]) <= 1024
                : parts[i].starts_with("Passage " + std::to_string(i + 1) + ":\n");
        EXPECT_TRUE(as_marked) << item.id << ": segment " << i << " starts with "
                               << parts[i].substr(0, 20);
      }
      EXPECT_EQ(longbench_prompt(item).segments.size(), parts.size() + 2) << item.id;
      least = std::min(least, parts.size());
      most = std::max(most, parts.size());
      ++rows;
      segments += int(parts.size());
    }
    std::cout << name << ": " << least << " to " << most << " segments\n";
  }
  EXPECT_GE(rows, 9);
  std::cout << rows << " rows, " << segments << " segments\n";
}

}  // namespace
}  // namespace hypic
