#include "datasets/score.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <unordered_map>

#include "core/check.h"
#include "datasets/rows.h"

namespace hypic {
namespace {

// Python's str.isspace.
bool is_space(UChar32 c) {
  const UCharDirection direction = u_charDirection(c);
  return u_charType(c) == U_SPACE_SEPARATOR || direction == U_WHITE_SPACE_NEUTRAL ||
         direction == U_BLOCK_SEPARATOR || direction == U_SEGMENT_SEPARATOR;
}

// Python's \w without "_", which is punctuation and gone by then.
bool is_word(UChar32 c) {
  return (U_GET_GC_MASK(c) & U_GC_L_MASK) != 0 ||
         u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}

bool is_punctuation(UChar32 c) {  // string.punctuation
  return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
         (c > 'z' && c < 127);
}

void append(std::u16string& text, UChar32 c) {
  if (U_IS_SUPPLEMENTARY(c)) text += char16_t(U16_LEAD(c));
  text += U_IS_SUPPLEMENTARY(c) ? char16_t(U16_TRAIL(c)) : char16_t(c);
}

// The words that qa_f1 compares, sorted.
std::vector<std::u16string> normalized_words(std::string_view text) {
  auto lower = icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), int32_t(text.size())));
  lower.toLower(icu::Locale::getRoot());
  std::vector<std::u16string> words;
  std::u16string word, run;  // run: the word characters at the end of the word
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  const auto end_run = [&] {
    if (run == u"a" || run == u"an" || run == u"the")
      end_word();
    else
      word += run;
    run.clear();
  };
  for (int32_t i = 0; i < lower.length(); i = lower.moveIndex32(i, 1)) {
    const UChar32 c = lower.char32At(i);
    if (is_punctuation(c)) continue;
    if (is_word(c)) {
      append(run, c);
      continue;
    }
    end_run();
    if (is_space(c))
      end_word();
    else
      append(word, c);
  }
  end_run();
  end_word();
  std::sort(words.begin(), words.end());
  return words;
}

using Sentence = std::vector<int>;  // words by number

// rouge's sentences: pieces between "." that are not empty, words between white space; a piece of
// white space alone is the one word "".
class Sentences {
 public:
  std::vector<Sentence> split(std::string_view text) {
    std::vector<Sentence> sentences;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('.', begin), text.size());
      if (end > begin) sentences.push_back(words(text.substr(begin, end - begin)));
      begin = end + 1;
    }
    return sentences;
  }
  int word_count() const { return int(numbers_.size()); }

 private:
  Sentence words(std::string_view text) {
    Sentence out;
    size_t begin = 0;
    const auto end_word = [&](size_t end) {
      if (end > begin) out.push_back(number(text.substr(begin, end - begin)));
    };
    for (int32_t i = 0; i < int32_t(text.size());) {
      const int32_t at = i;
      UChar32 c;
      U8_NEXT(text.data(), i, int32_t(text.size()), c);
      if (c < 0 || !is_space(c)) continue;
      end_word(at);
      begin = i;
    }
    end_word(text.size());
    if (out.empty()) out.push_back(number(""));
    return out;
  }

  int number(std::string_view word) {
    return numbers_.emplace(word, int(numbers_.size())).first->second;
  }

  std::unordered_map<std::string_view, int> numbers_;
};

constexpr int kMaxCalls = 991;  // Python's limit less the frames outside rouge's recursion

// Marks the words of rouge's longest common subsequence of `x` and `y` in `in_union`; false where
// its recursion fails. Of equally long ones the backtrack picks: up if strictly more, else left.
bool add_common(const Sentence& x, const Sentence& y, std::vector<char>& in_union) {
  const int n = int(x.size()), m = int(y.size());
  if (std::min(n, m) >= kMaxCalls) return false;  // every way back is longer than that
  // A way back that succeeds stays within the last kMaxCalls rows and columns.
  const int first_row = std::max(0, n - kMaxCalls), first_column = std::max(0, m - kMaxCalls);
  const int columns = m - first_column + 1;
  std::vector<uint16_t> kept(size_t(n - first_row + 1) * columns), row(m + 1), above(m + 1);
  for (int i = 0; i <= n; ++i) {
    for (int j = 0; j <= m; ++j)
      row[j] = i == 0 || j == 0       ? 0
               : x[i - 1] == y[j - 1] ? above[j - 1] + 1
                                      : std::max(above[j], row[j - 1]);
    if (i >= first_row)
      std::copy(row.begin() + first_column, row.end(),
                kept.begin() + ptrdiff_t(i - first_row) * columns);
    row.swap(above);
  }
  const auto length = [&](int i, int j) {
    return kept[size_t(i - first_row) * columns + (j - first_column)];
  };
  int i = n, j = m;
  for (int calls = 1; i > 0 && j > 0; ++calls) {
    if (calls >= kMaxCalls) return false;
    if (x[i - 1] == y[j - 1]) {
      in_union[x[i - 1]] = true;
      --i, --j;
    } else if (length(i - 1, j) > length(i, j - 1)) {
      --i;
    } else {
      --j;
    }
  }
  return true;
}

double distinct(const std::vector<Sentence>& sentences, int words) {
  std::vector<char> seen(words);
  for (const Sentence& sentence : sentences)
    for (const int word : sentence) seen[word] = true;
  return double(std::count(seen.begin(), seen.end(), true));
}

double percentile(const std::vector<double>& sorted, double share) {
  const double at = share * double(sorted.size() - 1);
  const size_t below = size_t(at), above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - double(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

double qa_f1(std::string_view prediction, std::string_view answer) {
  const auto a = normalized_words(prediction), b = normalized_words(answer);
  std::vector<std::u16string> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  if (common.empty()) return 0;
  const double precision = double(common.size()) / double(a.size());
  const double recall = double(common.size()) / double(b.size());
  return 2 * precision * recall / (precision + recall);
}

double rouge_l(std::string_view prediction, std::string_view reference) {
  Sentences all;
  const auto hypothesis = all.split(prediction), target = all.split(reference);
  if (hypothesis.empty() || target.empty()) return 0;
  std::vector<char> in_union(all.word_count());
  for (const Sentence& x : target)
    for (const Sentence& y : hypothesis)
      if (!add_common(x, y, in_union)) return 0;
  const double overlap = double(std::count(in_union.begin(), in_union.end(), true));
  const double precision = overlap / distinct(hypothesis, all.word_count());
  const double recall = overlap / distinct(target, all.word_count());
  return 2 * (precision * recall / (precision + recall + 1e-8));
}

double score_prediction(const DatasetTraits& traits, std::string_view prediction,
                        const std::vector<std::string>& answers) {
  prediction = scored_part(traits, prediction);
  double best = 0;
  for (const std::string& answer : answers)
    best = std::max(best, traits.metric == Metric::qa_f1 ? qa_f1(prediction, answer)
                                                         : rouge_l(prediction, answer));
  return best;
}

std::vector<double> score_file(const std::string& path, const DatasetTraits& traits) {
  std::vector<double> scores;
  RowReader rows(path);
  for (nlohmann::json row; rows.next(row);) {
    try {
      const auto answers = row.at("answers").get<std::vector<std::string>>();
      require(!answers.empty(), "the row has no answers");
      scores.push_back(
          score_prediction(traits, row.at("pred").get_ref<const std::string&>(), answers));
    } catch (const nlohmann::json::exception& error) {
      fail(rows.where(), ": not {\"pred\": text, \"answers\": [text, …]}: ", error.what());
    } catch (const Error& error) {
      fail(rows.where(), ": ", error.what());
    }
  }
  require(!scores.empty(), path, ": holds no row");
  return scores;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / double(values.size());
}

Interval bootstrap_interval(const std::vector<double>& values, uint64_t seed) {
  if (values.empty()) return {};
  constexpr size_t kDraws = 200'000'000;
  std::vector<double> means(std::clamp<size_t>(kDraws / values.size(), 1000, 10'000));
  std::mt19937_64 random(seed);
  for (double& mean : means) {
    double sum = 0;
    // The high half of a product: std::uniform_int_distribution differs between libraries.
    for (size_t i = 0; i < values.size(); ++i)
      sum += values[size_t(static_cast<unsigned __int128>(random()) * values.size() >> 64)];
    mean = sum / double(values.size());
  }
  std::sort(means.begin(), means.end());
  return {percentile(means, 0.025), percentile(means, 0.975)};
}

}  // namespace hypic
