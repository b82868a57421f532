#include "harness/word_encoder.h"

#include <gtest/gtest.h>

#include <cctype>

#include "datasets/tasks.h"

namespace hypic {
namespace {

// Each document and question as the tokenizer alone has it; whole words are single tokens.
TEST(WordEncoder, IsTheTokenizerOnTasks) {
  const Tokenizer tokenizer = Tokenizer::load("datasets/models/tokenizer");
  WordEncoder encoder(tokenizer);
  const CountTokens count = [&](std::string_view text) { return encoder.count(text); };
  const auto check = [&](const std::string& text) {
    const std::vector<int32_t> whole = tokenizer.encode(text);
    std::vector<int32_t> ids;
    encoder.append(text, ids);
    EXPECT_EQ(ids, whole) << text;
    EXPECT_EQ(encoder.count(text), whole.size()) << text;
    EXPECT_EQ(tokenizer.decode(whole), text);
    for (size_t i = 1; i < whole.size(); ++i) {
      const std::string before = tokenizer.decode({whole[i - 1]}), after = tokenizer.decode({whole[i]});
      EXPECT_FALSE(std::isalpha(uint8_t(before.back())) && std::isalpha(uint8_t(after[0])))
          << before << " and " << after << " in " << text;
    }
  };
  for (const Task task : kTasks) {
    for (const TaskSplit split : {TaskSplit::train, TaskSplit::test}) {
      for (int i = 0; i < 62; ++i) {
        const TaskRow row = task_row(task, {2 + i % 31, 16 + 3 * i}, split, 5, i, count, 1000);
        for (const std::string& document : row.documents) {
          check(document);
          const double within = split == TaskSplit::train ? 0.55 : 0.15;  // training rows may be uneven
          EXPECT_NEAR(double(encoder.count(document)), 16 + 3 * i, within * (16 + 3 * i)) << document;
        }
        for (const TaskQuestion& question : row.questions) {
          check(question.text);
          check(question.answer);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hypic
