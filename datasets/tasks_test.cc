#include "datasets/tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "core/check.h"

namespace hypic {
namespace {

// Words, marks, and digits two by two, as the models' tokenizer has them.
size_t count_pieces(std::string_view text) {
  size_t pieces = 0;
  for (size_t i = 0; i < text.size(); ++pieces) {
    if (text[i] == ' ') ++i;
    const size_t begin = i;
    const auto run = [&](auto is, size_t most) {
      while (i < text.size() && i - begin < most && is(uint8_t(text[i]))) ++i;
    };
    run([](int c) { return std::isalpha(c); }, text.size());
    if (i == begin) run([](int c) { return std::isdigit(c); }, 2);
    if (i == begin && i < text.size()) ++i;
  }
  return pieces;
}

TaskRow row_of(Task task, const TaskShape& shape, TaskSplit split, uint64_t index, int questions = 1, uint64_t seed = 7) {
  return task_row(task, shape, split, seed, index, count_pieces, questions);
}

std::vector<std::string> split_at(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  return parts;
}

bool is_word(const std::string& text, int (*first)(int)) {
  return !text.empty() && first(uint8_t(text[0])) &&
         std::all_of(text.begin(), text.end(), [](char c) { return std::isalpha(uint8_t(c)); });
}
bool is_figure(const std::string& text) {
  return text.size() == 4 && std::all_of(text.begin(), text.end(), [](char c) { return std::isdigit(uint8_t(c)); });
}

// Words and commas.
std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  for (const std::string& word : split_at(text, " ")) {
    const bool comma = word.ends_with(",");
    words.push_back(word.substr(0, word.size() - comma));
    if (comma) words.push_back(",");
  }
  return words;
}

// What stands in words of this form: $r for a small word, $t for two capitalised ones, $v for those or a
// figure, $l for a list of $t. Empty if it is not of the form.
std::vector<std::string> read(const std::vector<std::string>& words, const std::string& form) {
  std::vector<std::string> found;
  size_t at = 0;
  const auto word = [&](size_t i) { return i < words.size() ? words[i] : ""; };
  const auto take_pair = [&](std::string& to) {
    if (!is_word(word(at), std::isupper) || !is_word(word(at + 1), std::isupper)) return false;
    to += words[at] + " " + words[at + 1];
    at += 2;
    return true;
  };
  for (const std::string& part : split_at(form, " ")) {
    if (part[0] != '$') {
      if (word(at++) != part) return {};
      continue;
    }
    std::string& value = found.emplace_back();
    if (part == "$r" && is_word(word(at), std::islower)) {
      value = words[at++];
    } else if (part == "$v" && is_figure(word(at))) {
      value = words[at++];
    } else if (part == "$r" || !take_pair(value)) {
      return {};
    }
    while (part == "$l" && word(at) == "," && is_word(word(at + 1), std::isupper)) {
      ++at;
      value += ", ";
      if (!take_pair(value)) return {};
    }
  }
  return at == words.size() ? found : std::vector<std::string>();
}

// Answers from the text of the documents alone, by reading it.
class Reader {
 public:
  explicit Reader(const std::vector<std::string>& documents) {
    for (const std::string& document : documents) {
      EXPECT_EQ(document.back(), '\n');
      const std::vector<std::string> sentences = split_at(document.substr(0, document.size() - 1), ". ");
      const auto title = read(split_words(sentences[0]), "# $t");
      EXPECT_EQ(title.size(), 1) << document;
      titles_.push_back(title.at(0));
      for (std::string sentence : sentences) {
        if (sentence.ends_with(".")) sentence.pop_back();
        learn(sentence);
      }
    }
  }

  const std::vector<std::string>& titles() const { return titles_; }
  // Every value that was told of it, in order.
  const std::vector<std::string>& told(const std::string& subject, const std::string& relation) const {
    static const std::vector<std::string> none;
    const auto found = facts_.find({subject, relation});
    return found == facts_.end() ? none : found->second;
  }

  // With the space before it; empty if it does not understand the question.
  std::string answer(const std::string& text) const {
    constexpr std::string_view kBefore = "Question: ", kAfter = "? Answer:";
    if (!text.starts_with(kBefore) || !text.ends_with(kAfter.substr(1))) return "";
    const size_t length = text.size() - kBefore.size() - kAfter.size();
    return " " + answer_to(text.substr(kBefore.size(), length)) + ".";
  }

 private:
  void learn(const std::string& text) {
    const std::vector<std::string> sentence = split_words(text);
    for (const std::string now : {"", " now"}) {
      if (const auto m = read(sentence, "The $r of $t is" + now + " $v"); !m.empty())
        facts_[{m[1], m[0]}].push_back(m[2]);
      if (const auto m = read(sentence, "For $t the $r is" + now + " $v"); !m.empty())
        facts_[{m[0], m[1]}].push_back(m[2]);
      if (const auto m = read(sentence, "$t has" + now + " the $r $v"); !m.empty())
        facts_[{m[0], m[1]}].push_back(m[2]);
    }
  }

  std::string fact(const std::string& subject, const std::string& relation) const {
    const auto& values = told(subject, relation);
    return values.size() == 1 ? values[0] : "";
  }

  std::string hop(const std::string& second, const std::string& first, const std::string& subject) const {
    const std::string person = fact(subject, first);
    return person + ". The " + second + " of " + person + " is " + fact(person, second);
  }

  std::string headlines(bool whole, const std::string& after = "") const {
    std::string all;
    auto title = titles_.begin();
    if (!after.empty()) title = std::find(titles_.begin(), titles_.end(), after) + 1;
    for (; title < titles_.end(); ++title)
      all += (all.empty() ? "" : ", ") + (whole ? *title : split_at(*title, " ")[0]);
    return all;
  }

  std::string neighbour(const std::string& title, int distance) const {
    const auto wanted = std::find(titles_.begin(), titles_.end(), title) - titles_.begin() + distance;
    return wanted >= 0 && wanted < std::ssize(titles_) ? titles_[wanted] : "";
  }

  std::string answer_to(const std::string& question) const {
    const std::vector<std::string> words = split_words(question);
    std::vector<std::string> m;
    const auto is = [&](const std::string& form) { return !(m = read(words, form)).empty(); };
    for (const bool whole : {true, false}) {
      const std::string what = whole ? "all headlines" : "the first words of all headlines";
      if (question == "List " + what + " in order" || question == "Give " + what + " in order" ||
          question == "In order, what are " + what)
        return headlines(whole);
      if (is("List " + what + " after $t in order") || is("Give " + what + " after $t in order") ||
          is("In order , what are " + what + " after $t"))
        return headlines(whole, m[0]);
    }
    for (const std::string where : {"after", "before"}) {
      for (const std::string start : {"Which headline comes", "Give the headline", "What comes"})
        if (is(start + " right " + where + " $t")) return neighbour(m[0], where == "after" ? 1 : -1);
    }
    if (is("Give the $r of each of $l") || is("What is the $r of each of $l")) return figures(m[0], m[1]);
    if (is("For each of $l , what is the $r")) return figures(m[1], m[0]);
    for (const bool latest : {true, false}) {
      const std::string which = latest ? "latest" : "first";
      const auto one_of = [&](const std::vector<std::string>& values) {
        return values.empty() ? "" : latest ? values.back() : values.front();
      };
      if (is("Give the " + which + " $r of $t") || is("What is the " + which + " $r of $t"))
        return one_of(told(m[1], m[0]));
      if (is("For $t , what is the " + which + " $r")) return one_of(told(m[0], m[1]));
    }
    if (is("Give the $r of the $r of $t") || is("Where is the $r of the $r of $t")) return hop(m[0], m[1], m[2]);
    if (is("For the $r of $t , where is the $r")) return hop(m[2], m[0], m[1]);
    for (const std::string start : {"Give", "Who is", "Where is", "What is"})
      if (is(start + " the $r of $t")) return fact(m[1], m[0]);
    for (const std::string who : {"who", "where", "what"})
      if (is("For $t , " + who + " is the $r")) return fact(m[0], m[1]);
    return "";
  }

  std::string figures(const std::string& relation, const std::string& titles) const {
    std::string all;
    for (const std::string& title : split_at(titles, ", "))
      all += (all.empty() ? "" : ", ") + title + " " + fact(title, relation);
    return all;
  }

  std::vector<std::string> titles_;
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> facts_;  // subject, relation
};

// The pairs of capitalised words and the figures of a text: whatever one can ask for or by.
std::set<std::string> values_in(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  std::set<std::string> all;
  std::string before;
  for (std::string word : split_at(text, " ")) {
    const bool ends = !word.empty() && !std::isalnum(uint8_t(word.back()));
    if (ends) word.pop_back();
    if (is_figure(word)) all.insert(word);
    if (is_word(before, std::isupper) && is_word(word, std::isupper)) all.insert(before + " " + word);
    before = ends || word == "For" ? "" : word;
  }
  return all;
}

// Its words, and of its figures both halves, told apart.
std::set<std::string> words_in(const std::string& text) {
  std::set<std::string> all;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalnum(uint8_t(c))) {
      word += c;
      continue;
    }
    if (is_figure(word)) {
      all.insert(word.substr(0, 2) + "..");
      word = ".." + word.substr(2);
    }
    all.insert(word);
    word.clear();
  }
  return all;
}

TEST(Tasks, AreNamed) {
  for (const Task task : kTasks) EXPECT_EQ(task_named(task_name(task)), task);
  try {
    task_named("riddle");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "no task is called \"riddle\"; known: fact, two_hop, headlines, figures, distance, latest");
  }
  for (const TaskShape& shape : {TaskShape{1, 64}, TaskShape{33, 64}, TaskShape{8, 15}, TaskShape{8, 4097}})
    EXPECT_THROW(row_of(Task::fact, shape, TaskSplit::test, 0), Error);
}

TEST(Tasks, AreAFunctionOfTheirArguments) {
  for (const Task task : kTasks) {
    const TaskShape shape{8, 64};
    const TaskRow row = row_of(task, shape, TaskSplit::test, 3);
    EXPECT_EQ(row.id, str(task_name(task), "/test/7/8x64/3"));
    EXPECT_EQ(row.documents.size(), 8);
    EXPECT_EQ(row.questions.size(), 1);
    const TaskRow more = row_of(task, shape, TaskSplit::test, 3, 1000);
    EXPECT_EQ(row.documents, more.documents);
    EXPECT_GT(more.questions.size(), 1);
    EXPECT_EQ(row.questions[0].text, more.questions[0].text);
    EXPECT_EQ(row.questions[0].answer, more.questions[0].answer);
    EXPECT_NE(row.documents, row_of(task, shape, TaskSplit::test, 4).documents);
    EXPECT_NE(row.documents, row_of(task, shape, TaskSplit::train, 3).documents);
    EXPECT_NE(row.documents, row_of(task, shape, TaskSplit::test, 3, 1, 8).documents);
    EXPECT_NE(row.documents, row_of(task, {8, 65}, TaskSplit::test, 3).documents);
  }
}

// Rows stay what they are: trained models and reported scores rest on them.
TEST(Tasks, StayTheSame) {
  const TaskRow row = row_of(Task::fact, {2, 32}, TaskSplit::test, 0);
  EXPECT_EQ(
      row.documents[0],
      "# Dark Bridge. For Dark Bridge the weight is 5394. For Dark Bridge the price is 8337. Many letters were sent "
      "that week.\n");
  EXPECT_EQ(row.questions[0].text, "Question: For Dark Bridge, what is the price? Answer:");
  EXPECT_EQ(row.questions[0].answer, " 8337.");
}

TEST(Tasks, AreAsLargeAsAsked) {
  for (const auto& count : {CountTokens(count_pieces), CountTokens(count_words)}) {
    for (const Task task : kTasks) {
      for (const int segments : {2, 3, 4, 8, 15, 32}) {
        for (const int tokens : {16, 24, 32, 48, 64, 100, 128, 256, 512, 1024}) {
          const TaskRow row = task_row(task, {segments, tokens}, TaskSplit::test, 1, tokens, count, 1000);
          ASSERT_EQ(row.documents.size(), segments);
          ASSERT_FALSE(row.questions.empty());
          for (const std::string& document : row.documents)
            EXPECT_NEAR(double(count(document)), tokens, 0.15 * tokens) << task_name(task) << document;
        }
      }
    }
  }
}

TEST(Tasks, FollowFromTheDocuments) {
  for (const Task task : kTasks) {
    for (const TaskSplit split : {TaskSplit::train, TaskSplit::test}) {
      for (int i = 0; i < 60; ++i) {
        const TaskRow row = row_of(task, {2 + i % 31, 16 + 2 * i}, split, i, 1000);
        const Reader reader(row.documents);
        for (const TaskQuestion& question : row.questions)
          ASSERT_EQ(reader.answer(question.text), question.answer) << row.id << ": " << question.text;
        // A document is found by its headline, and even by the first word of it.
        std::set<std::string> words;
        for (const std::string& title : reader.titles()) words.insert(split_at(title, " ")[0]);
        EXPECT_EQ(words.size(), row.documents.size()) << row.id;
      }
    }
  }
}

TEST(Tasks, ShareWordsButNoValues) {
  std::set<std::string> values[2], words[2];
  for (const Task task : kTasks) {
    for (const TaskSplit split : {TaskSplit::train, TaskSplit::test}) {
      for (int i = 0; i < 200; ++i) {
        const TaskRow row = row_of(task, {8, 48}, split, i, 1000);
        std::string text;
        for (const std::string& document : row.documents) text += document;
        for (const TaskQuestion& question : row.questions) text += question.text + question.answer + " ";
        values[int(split)].merge(values_in(text));
        words[int(split)].merge(words_in(text));
      }
    }
  }
  EXPECT_GT(values[0].size(), 3000);
  EXPECT_GT(values[1].size(), 1000);
  for (const std::string& value : values[1]) EXPECT_FALSE(values[0].contains(value)) << value;
  for (const std::string& word : words[1]) EXPECT_TRUE(words[0].contains(word)) << word;
}

TEST(Tasks, CannotBeGuessed) {
  constexpr int kRows = 1000;
  for (const Task task : kTasks) {
    std::map<std::string, int> answers;
    std::map<std::ptrdiff_t, int> places;  // of the document that is asked for
    for (int i = 0; i < kRows; ++i) {
      const TaskRow row = row_of(task, {8, 32}, TaskSplit::test, i);
      ++answers[row.questions[0].answer];
      const auto asked = values_in(row.questions[0].text);
      const auto titles = Reader(row.documents).titles();
      if (!asked.empty()) ++places[std::find(titles.begin(), titles.end(), *asked.begin()) - titles.begin()];
    }
    for (const auto& [answer, times] : answers) EXPECT_LT(times, kRows / 50) << task_name(task) << answer;
    if (task != Task::fact && task != Task::two_hop && task != Task::figures) continue;
    for (int place = 0; place < 8; ++place) EXPECT_NEAR(places[place], kRows / 8, 50) << task_name(task) << place;
  }
}

// What a model cannot know that has lost the order of the documents.
TEST(Tasks, NeedTheOrderWhereTheySaySo) {
  constexpr int kRows = 200;
  for (const Task task : kTasks) {
    int changed = 0;
    for (int i = 0; i < kRows; ++i) {
      const TaskRow row = row_of(task, {8, 64}, TaskSplit::test, i);
      std::vector<std::string> reversed(row.documents.rbegin(), row.documents.rend());
      changed += Reader(reversed).answer(row.questions[0].text) != row.questions[0].answer;
    }
    const bool ordered = task == Task::headlines || task == Task::distance || task == Task::latest;
    EXPECT_EQ(changed, ordered ? kRows : 0) << task_name(task);
  }
}

// Of several values the latest is wanted, and the last document has it no more often than it must.
TEST(Tasks, LatestIsAmongSeveral) {
  constexpr int kRows = 500;
  int last = 0, values = 0;
  for (int i = 0; i < kRows; ++i) {
    const TaskRow row = row_of(Task::latest, {8, 64}, TaskSplit::test, i);
    const std::string value = row.questions[0].answer.substr(1, 4);
    last += row.documents.back().find(value) != std::string::npos;
    for (const std::string& document : row.documents) {
      const auto asked = values_in(row.questions[0].text);
      values += std::any_of(asked.begin(), asked.end(), [&](const std::string& name) {
        return document.find(name) != std::string::npos && document.find("# " + name) == std::string::npos;
      });
    }
  }
  EXPECT_LT(last, kRows * 2 / 3);
  EXPECT_GT(values, kRows * 5 / 2);
}

// Neither its document's place nor its place in the question tells a figure.
TEST(Tasks, FiguresDoNotFollowFromOrdinals) {
  constexpr int kRows = 1000;
  int same_place[4] = {};
  double sum[8] = {};
  for (int i = 0; i < kRows; ++i) {
    const TaskRow row = row_of(Task::figures, {8, 32}, TaskSplit::test, i);
    const Reader reader(row.documents);
    const auto parts = split_at(row.questions[0].answer.substr(1), ", ");
    ASSERT_EQ(parts.size(), 4);
    for (int k = 0; k < 4; ++k) same_place[k] += parts[k].starts_with(reader.titles()[k]);
    for (int k = 0; k < 8; ++k) {
      const auto figures = values_in(row.documents[k]);
      sum[k] += std::stod(*figures.begin());  // digits come before letters
    }
  }
  for (const int times : same_place) EXPECT_NEAR(times, kRows / 8, 60);
  for (const double each : sum) EXPECT_NEAR(each / kRows, 5500, 400);
}

}  // namespace
}  // namespace hypic
