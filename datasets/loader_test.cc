#include "datasets/loader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "core/temporary_folder.h"
#include "datasets/testing.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

// Of this test alone.
fs::path folder() {
  static const TemporaryFolder all;
  const fs::path path = all.path(testing::UnitTest::GetInstance()->current_test_info()->name());
  fs::create_directories(path);
  return path;
}

std::string write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

std::vector<Item> load(const std::string& text, const std::string& name = "") {
  return load_dataset(write(folder() / "rows.jsonl", text), name);
}

// The message of the Error that loading `text` throws; "" if none.
std::string load_error(const std::string& text, const std::string& name = "") {
  try {
    load(text, name);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

const char kRow[] =
    R"({"_id": "a", "dataset": "hotpotqa", "input": "Who?", "context": "Passage 1:\nX\nx.\nPassage 2:\nY\ny.",)"
    R"( "answers": ["one", "two"], "length": 9, "all_classes": null})"
    "\n";

TEST(LoadDataset, ReadsLongbenchAndSkipsBlankLines) {
  const auto items = load(std::string("\xEF\xBB\xBF") + kRow + "\r\n" + kRow);
  ASSERT_EQ(items.size(), 2);
  EXPECT_EQ(items[1].id, "a");
  EXPECT_EQ(items[1].dataset, "hotpotqa");
  EXPECT_EQ(items[1].question, "Who?");
  EXPECT_EQ(items[1].context, "Passage 1:\nX\nx.\nPassage 2:\nY\ny.");
  EXPECT_EQ(items[1].answers, (Strings{"one", "two"}));
}

TEST(LoadDataset, ReadsAnswersWrittenAsAString) {
  const auto answers = [](const std::string& list) {
    const std::string row = R"({"_id": "a", "input": "", "context": "", "answers": )";
    return load(row + list + "}", "gov_report")[0].answers;
  };
  EXPECT_EQ(answers(R"("['one', \"it's\"]")"), (Strings{"one", "it's"}));
  EXPECT_EQ(answers(R"("['a\\n\\'b\\\\', '\\xe9\\u2019\\U0001f642']")"),
            (Strings{"a\n'b\\", "é’🙂"}));
  EXPECT_EQ(answers(R"("[\"one\", \"two\"]")"), (Strings{"one", "two"}));
  EXPECT_EQ(answers(R"(" [ ] ")"), Strings{});
  for (const char* bad : {R"("one")", R"("['a'")", R"("['a)", R"("['a'] x")", R"("['a' 'b']")",
                          R"("[1]")", R"("['\\q']")", R"("['\\ud800']")", R"("['\\x4']")", R"("")"})
    EXPECT_THROW(answers(bad), Error) << bad;
}

TEST(LoadDataset, ReadsHotpotqaAnd2Wiki) {
  const std::string row =
      R"({"_id": "h", "question": "Q?", "answer": "yes", "supporting_facts": [["X", 0]],
          "context": [["X", ["One.", " Two.", "Three."]], ["Y", ["y."]]])";
  const auto items = load("[" + row + "},\n" + row + "}]");
  ASSERT_EQ(items.size(), 2);
  EXPECT_EQ(items[1].id, "h");
  EXPECT_EQ(items[1].dataset, "hotpotqa");
  EXPECT_EQ(items[1].question, "Q?");
  EXPECT_EQ(items[1].context, "Passage 1:\nX\nOne. Two. Three.\nPassage 2:\nY\ny.");
  EXPECT_EQ(items[1].answers, Strings{"yes"});
  const auto wiki = load(row + R"(, "evidences": []})");
  EXPECT_EQ(wiki[0].dataset, "2wikimqa");
  EXPECT_EQ(wiki[0].context, items[0].context);
  const auto columns = load(
      R"({"id": "h", "question": "Q?", "answer": "yes",
          "context": {"title": ["X", "Y"], "sentences": [["One.", " Two.", "Three."], ["y."]]}})");
  EXPECT_EQ(columns[0].context, items[0].context);
  EXPECT_EQ(load(R"({"_id": "t", "question": "Q?", "context": []})")[0].answers, Strings{});
}

TEST(LoadDataset, ReadsMusique) {
  const auto items = load(
      R"({"id": "2hop", "paragraphs": [{"idx": 0, "title": "X", "paragraph_text": "x.", "is_supporting": true},
          {"idx": 1, "title": "Y", "paragraph_text": "y."}], "question": "Q?", "answer": "A",
          "answer_aliases": ["B", "A"], "answerable": true})");
  EXPECT_EQ(items[0].dataset, "musique");
  EXPECT_EQ(items[0].context, "Passage 1:\nX\nx.\nPassage 2:\nY\ny.");
  EXPECT_EQ(items[0].answers, (Strings{"A", "B"}));
}

TEST(LoadDataset, ReadsTriviaqaWithItsEvidence) {
  const auto row = [](int i, const std::string& documents) {
    return str(R"({"Answer": {"Aliases": ["a)", i, R"(", "b"], "Value": "a)", i,
               R"("}, "Question": "Q)", i, R"(?", "QuestionId": "q)", i, "\", ", documents, "}");
  };
  const fs::path root = folder();
  write(root / "evidence/wikipedia/X.txt", "  The first\ndocument.\n");
  std::string words;
  for (int i = 0; i < 1000; ++i) words += str("w", i, " ");
  write(root / "evidence/web/1/2.txt", words);
  const std::string rows =
      "{\n \"Data\" : [\n" +
      row(0, R"("EntityPages": [{"Filename": "X.txt"}], "SearchResults": [])") + ",\n" +
      row(1, R"("EntityPages": [], "SearchResults": [{"Filename": "1/2.txt"}])") +
      "\n], \"Domain\": \"Web\"}";
  const auto items = load_dataset(write(root / "qa/dev.json", rows));
  ASSERT_EQ(items.size(), 2);
  EXPECT_EQ(items[0].dataset, "triviaqa");
  EXPECT_EQ(items[0].question, "Passage:\nThe first\ndocument.\nQuestion:\nQ0?\nAnswer:\n");
  EXPECT_EQ(items[1].context, items[0].question + "a0\n");
  EXPECT_EQ(items[0].answers, (Strings{"a0", "b"}));
  EXPECT_TRUE(items[1].question.starts_with("Passage:\nw0 w1 "));
  EXPECT_NE(items[1].question.find("w799\nQuestion:"), std::string::npos);

  const auto error = [&](const std::string& documents) {
    try {
      load_dataset(write(root / "qa/bad.json", "{\"Data\": [\n" + row(0, documents) + "]}"));
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(error(R"("EntityPages": [{"Filename": "none.txt"}])").find("bad.json:2: "),
            std::string::npos);
  EXPECT_NE(error(R"("EntityPages": [{"Filename": "../X.txt"}])").find("leaves its folder"),
            std::string::npos);
  EXPECT_NE(error(R"("EntityPages": [{"Filename": "/etc/hosts"}])").find("leaves its folder"),
            std::string::npos);
  EXPECT_NE(error(R"("EntityPages": [])").find("no evidence"), std::string::npos);
  EXPECT_NE(error(R"("SearchResults": [{"Filename": "1"}])").find("1 cannot be read"),
            std::string::npos);
}

TEST(LoadDataset, ReadsMultiNews) {
  const std::string context = "Passage 1:\nOne. NEWLINE_CHAR 1\nPassage 2:\nTwo.";
  const auto items =
      load(R"({"document": " One. NEWLINE_CHAR 1 ||||| Two. |||||", "summary": "– Short."})");
  EXPECT_EQ(items[0].dataset, "multi_news");
  EXPECT_EQ(items[0].context, context);
  EXPECT_EQ(items[0].answers, Strings{"Short."});

  const std::string source = write(
      folder() / "val.txt.src", "One. NEWLINE_CHAR 1 story_separator_special_tag Two.\nThree.\n");
  write(folder() / "val.txt.tgt", "– Short.\n– Other.\n");
  const auto lines = load_dataset(source);
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[0].context, context);
  EXPECT_EQ(lines[1].context, "Passage 1:\nThree.");
  EXPECT_EQ(lines[1].answers, Strings{"Other."});
  EXPECT_THROW(load_dataset(source, "gov_report"), Error);
  write(folder() / "val.txt.tgt", "– Short.\n");
  EXPECT_THROW(load_dataset(source), Error);
}

TEST(LoadDataset, ReadsGovReport) {
  const fs::path reports = folder() / "reports";
  write(reports / "1.json", R"({"id": "GAO-1", "title": "T", "report": [{"section_title": "S",
      "paragraphs": ["One. ", "Two."], "subsections": [{"section_title": "U", "paragraphs": ["Three."],
      "subsections": []}]}], "highlight": [{"section_title": "H", "paragraphs": ["Short."]}]})");
  write(reports / "2.json", R"({"id": "R2", "reports": {"section_title": "", "paragraphs": [],
      "subsections": [{"paragraphs": ["Four."]}]}, "summary": ["S1.", "S2."]})");
  const auto items = load_dataset(reports.string());
  ASSERT_EQ(items.size(), 2);
  EXPECT_EQ(items[0].id, "GAO-1");
  EXPECT_EQ(items[0].dataset, "gov_report");
  EXPECT_EQ(items[0].context, "One. Two. Three.");
  EXPECT_EQ(items[0].answers, Strings{"Short."});
  EXPECT_EQ(items[1].context, "Four.");
  EXPECT_EQ(items[1].answers, Strings{"S1. S2."});
  EXPECT_EQ(load(R"({"report": "One.", "summary": "S."})")[0].context, "One.");
  const auto document = load(R"({"id": "x", "document": "One.", "summary": "S."})", "gov_report");
  EXPECT_EQ(document[0].context, "One.");
  EXPECT_EQ(document[0].dataset, "gov_report");
}

TEST(LoadDataset, NamesTheFileTheLineAndTheReason) {
  const auto expect_error = [](const std::string& rows, const char* where, const char* reason,
                               const char* name = "") {
    const std::string message = load_error(rows, name);
    EXPECT_NE(message.find(std::string("rows.jsonl") + where), message.npos) << message;
    EXPECT_NE(message.find(reason), message.npos) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
  };
  const std::string row = kRow;
  expect_error("", ": ", "holds no row");
  expect_error("[]", ": ", "holds no row");
  expect_error(row + "{\"_id\": \"b\"", ":2: ", "it ends too early");
  expect_error(row + "{\"_id\": \"b\n" + row, ":2: ", "not valid JSON");
  expect_error(row + "\n[]", ":3: ", "must be an object, but this is array");
  expect_error(row + "\n\nnull", ":4: ", "must be an object, but this is null");
  expect_error(row + "x", ":2: ", "not valid JSON");
  expect_error("[\n" + row, ":3: ", "ends inside its array");
  expect_error("{\"_id\": \"b\"}",
               ":1: ", "the row's fields are \"_id\"; known formats are LongBench");
  expect_error("{}", ":1: ", "fields are none");
  expect_error("{\"_id\": \"\xff\"}", ":1: ", "not valid JSON");
  expect_error(row + "{\"_id\": \"a\", \"_id\": \"b\"}", ":2: ", "key \"_id\" is given twice");
  expect_error(R"({"input": "", "context": "", "answers": []})", ":1: ", "pass its name");
  expect_error(R"({"input": "", "context": "", "answers": []})", ":1: ", "'_id' not found",
               "triviaqa");
  expect_error(R"({"paragraphs": [{}], "question": ""})", ":1: ", "key 'id' not found");
  expect_error(R"({"id": "", "paragraphs": "x", "question": ""})", ":1: ", "");
  expect_error(R"({"id": "", "paragraphs": [], "question": ""})",
               ":1: ", "is of musique, but hotpotqa", "hotpotqa");
  expect_error(row + R"({"document": "", "summary": ""})",
               ":2: ", "but the rows before it of LongBench");
  expect_error(std::string(300, '[') + std::string(300, ']'), ":1: ", "nested deeper than 64");
  expect_error("{\"a\": \"" + std::string(64 << 20, ' '), ":1: ", "over 64 MiB");
  expect_error("\xEFx", ": ", "byte order mark");
  EXPECT_THROW(load(kRow, "trec"), Error);
  EXPECT_THROW(load_dataset("no/such/file.jsonl"), Error);
  EXPECT_THROW(load_dataset(folder().string() + "/.."), Error);
}

TEST(LoadDataset, ReadsSharedRows) {
  const std::string data = shared_data();
  if (data.empty()) GTEST_SKIP() << kNoSharedData;
  int rows = 0;
  for (const char* name :
       {"longbench/hotpotqa", "longbench/2wikimqa", "longbench/triviaqa", "longbench/gov_report",
        "longbench/multi_news", "extra/hotpotqa_distractor", "extra/musique_train",
        "extra/gov_report_leval"}) {
    const std::string path = data + "/" + name + ".jsonl";
    if (!fs::exists(path)) continue;
    for (const Item& item : load_dataset(path)) {
      EXPECT_FALSE(item.answers.empty()) << item.id;
      EXPECT_FALSE(item.context.empty()) << item.id;
      ++rows;
    }
  }
  EXPECT_GE(rows, 9);
  const std::string reports = data + "/extra/gao_reports_bamboo.jsonl";
  if (fs::exists(reports)) {
    EXPECT_EQ(load_dataset(reports, "gov_report")[0].dataset, "gov_report");
  }
  std::cout << rows << " rows\n";
}

}  // namespace
}  // namespace hypic
