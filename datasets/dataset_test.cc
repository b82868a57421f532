#include "datasets/dataset.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/check.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

// The folder shared/data, which a clone need not have; empty if absent.
std::string shared_data() {
  const char* shared = std::getenv("HYPIC_SHARED");
  const auto path = fs::path(shared ? shared : "../shared") / "data";
  return fs::is_directory(path) ? path.string() : "";
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

// The message of the Error that loading `rows` throws; "" if none.
std::string load_error(const std::string& rows) {
  const std::string path = testing::TempDir() + "hypic_rows.jsonl";
  std::ofstream(path, std::ios::binary) << rows;
  try {
    load_longbench(path);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

const char kRow[] =
    R"({"_id": "a", "dataset": "hotpotqa", "input": "Who?", "context": "Passage 1:\nX\nx.\nPassage 2:\nY\ny.",)"
    R"( "answers": ["one", "two"], "length": 9, "all_classes": null})"
    "\n";

TEST(LoadLongbench, ReadsRowsAndSkipsBlankLines) {
  const std::string path = testing::TempDir() + "hypic_two_rows.jsonl";
  std::ofstream(path, std::ios::binary) << kRow << "\r\n" << kRow;
  const auto items = load_longbench(path);
  ASSERT_EQ(items.size(), 2);
  EXPECT_EQ(items[1].id, "a");
  EXPECT_EQ(items[1].dataset, "hotpotqa");
  EXPECT_EQ(items[1].question, "Who?");
  EXPECT_EQ(items[1].context, "Passage 1:\nX\nx.\nPassage 2:\nY\ny.");
  EXPECT_EQ(items[1].answers, (std::vector<std::string>{"one", "two"}));
}

TEST(LoadLongbench, NamesTheFileTheLineAndTheReason) {
  const auto expect_error = [](const std::string& rows, const char* where, const char* reason) {
    const std::string message = load_error(rows);
    EXPECT_NE(message.find(std::string("hypic_rows.jsonl") + where), message.npos) << message;
    EXPECT_NE(message.find(reason), message.npos) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
  };
  expect_error("", ": ", "holds no row");
  expect_error(std::string(kRow) + "{\"_id\": \"b\"", ":2: ", "parse error");
  expect_error(std::string(kRow) + "\n[]", ":3: ", "cannot use at() with array");
  expect_error("{\"_id\": \"b\"}", ":1: ", "key 'dataset' not found");
  expect_error("{\"_id\": 7}", ":1: ", "type must be string, but is number");
  expect_error("{\"_id\": \"\xff\"}", ":1: ", "invalid");
  std::string row = kRow;
  expect_error(row.replace(row.find("[\"one\", \"two\"]"), 14, "\"one\""), ":1: ", "must be array");
  expect_error(std::string((64 << 20) + 1, ' '), ":1: ", "over 64 MiB");
  EXPECT_THROW(load_longbench("no/such/file.jsonl"), Error);
  EXPECT_THROW(load_longbench(testing::TempDir()), Error);
}

TEST(SegmentPassages, CutsBeforeHeadersOnly) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(segment_passages(""), Parts{});
  EXPECT_EQ(segment_passages("no header"), Parts{"no header"});
  EXPECT_EQ(segment_passages("Passage 1:\na\n\nPassage 2:\nb"),
            (Parts{"Passage 1:\na\n\n", "Passage 2:\nb"}));
  EXPECT_EQ(segment_passages("lead Passage 12:\nPassage 3:\n"),
            (Parts{"lead ", "Passage 12:\n", "Passage 3:\n"}));
  const Parts not_headers{"Passage :\nPassage 1: \nPassage x:\npassage 1:\nPassage 12"};
  EXPECT_EQ(segment_passages(not_headers[0]), not_headers);
  EXPECT_EQ(segment_passages("Passage Passage 1:\n"), (Parts{"Passage ", "Passage 1:\n"}));
}

RC_GTEST_PROP(SegmentPassages, Concatenate, ()) {
  const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "Passage ", "Passage 1:\n", "Passage 20:", "\n", "3", ":", "text"));
  const std::string context = join(parts);
  const auto segments = segment_passages(context);
  RC_ASSERT(join(segments) == context);
  for (const auto& segment : segments) RC_ASSERT(segment_passages(segment).size() == 1u);
}

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
  EXPECT_EQ(hotpotqa_prompt(item).segments, prompt.segments);
  for (const char* same : {"2wikimqa", "musique"})
    EXPECT_EQ(
        longbench_prompt({.dataset = same, .context = item.context, .question = "Who?"}).segments,
        prompt.segments);
  EXPECT_THROW(longbench_prompt({.dataset = "trec"}), Error);
}

TEST(OwnPassages, AreWellFormedAndHoldTheirAnswers) {
  const auto items = load_longbench("datasets/text/passages.jsonl");
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
  if (data.empty())
    GTEST_SKIP() << "no ../shared/data; set HYPIC_SHARED to the folder that holds data";
  int rows = 0, segments = 0;
  for (const char* name : {"longbench/hotpotqa", "longbench/2wikimqa", "longbench/musique",
                           "extra/hotpotqa_distractor", "extra/musique_train"}) {
    const std::string path = data + "/" + name + ".jsonl";
    if (!fs::exists(path)) continue;
    for (const Item& item : load_longbench(path)) {
      const auto parts = segment_passages(item.context);
      EXPECT_EQ(join(parts), item.context) << item.id;
      for (size_t i = 0; i < parts.size(); ++i)
        EXPECT_TRUE(parts[i].starts_with("Passage " + std::to_string(i + 1) + ":\n"))
            << item.id << ": segment " << i << " starts with " << parts[i].substr(0, 20);
      EXPECT_EQ(longbench_prompt(item).segments.size(), parts.size() + 2) << item.id;
      ++rows;
      segments += int(parts.size());
    }
  }
  EXPECT_GE(rows, 9);
  std::cout << rows << " rows, " << segments << " passages\n";
}

}  // namespace
}  // namespace hypic
