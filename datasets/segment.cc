#include "datasets/segment.h"

#include <algorithm>

#include "core/check.h"

namespace hypic {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_continuation(char c) { return (c & 0xC0) == 0x80; }

// The length of a header "Passage N:\n" at the start of `text`, 0 if there is none.
size_t header_length(std::string_view text) {
  constexpr std::string_view kWord = "Passage ";
  if (!text.starts_with(kWord)) return 0;
  const size_t colon = std::min(text.find_first_not_of("0123456789", kWord.size()), text.size());
  return colon > kWord.size() && text.substr(colon, 2) == ":\n" ? colon + 2 : 0;
}

// The length of a closing quote or bracket at `i`, 0 if there is none.
size_t closer_length(std::string_view text, size_t i) {
  for (const std::string_view closer : {"\"", "'", ")", "]", "”", "’", "»"})
    if (text.substr(i).starts_with(closer)) return closer.size();
  return 0;
}

// Where the sentence that starts at `begin` ends. White space opens the next one, as byte-level BPE
// has it; only line breaks stay with the sentence that they end.
size_t sentence_end(std::string_view text, size_t begin) {
  for (size_t i = begin; i < text.size(); ++i) {
    if (text[i] == '\n') {
      while (i < text.size() && text[i] == '\n') ++i;
      return i;
    }
    if (text[i] != '.' && text[i] != '!' && text[i] != '?') continue;
    size_t end = i + 1;
    while (const size_t length = end < text.size() ? closer_length(text, end) : 0) end += length;
    if (end == text.size() || (is_space(text[end]) && text[end] != '\n')) return end;
  }
  return text.size();
}

size_t word_end(std::string_view text, size_t begin) {
  while (begin < text.size() && is_space(text[begin])) ++begin;
  while (begin < text.size() && !is_space(text[begin])) ++begin;
  return begin;
}

// Fills segments with sentences; with parts of one where it does not fit.
class Packer {
 public:
  Packer(const CountTokens& count, size_t least, size_t most)
      : count_(count), least_(least), most_(most) {}

  void add_text(std::string_view text) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = sentence_end(text, begin);
      add(text.substr(begin, end - begin), Unit::sentence);
      if (tokens_ >= least_) close();
      begin = end;
    }
  }

  std::vector<std::string> finish() && {
    if (text_.empty()) return std::move(segments_);
    if (!segments_.empty() && last_tokens_ + tokens_ <= most_)
      segments_.back() += text_;
    else
      close();
    return std::move(segments_);
  }

 private:
  enum class Unit { sentence, word, characters };

  void add(std::string_view text, Unit unit) {
    const size_t tokens = count_(text);
    if (tokens_ + tokens > most_ && tokens_ >= least_) close();
    if (tokens_ + tokens <= most_) {
      text_ += text;
      tokens_ += tokens;
    } else if (unit == Unit::sentence) {
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = word_end(text, begin);
        add(text.substr(begin, end - begin), Unit::word);
        begin = end;
      }
    } else {
      size_t half = text.size() / 2;
      while (half > 0 && is_continuation(text[half])) --half;
      if (half == 0) {  // a single character, and the counter calls it over most − least tokens
        text_ += text;
        tokens_ += tokens;
        return;
      }
      add(text.substr(0, half), Unit::characters);
      add(text.substr(half), Unit::characters);
    }
  }

  void close() {
    segments_.push_back(std::move(text_));
    text_.clear();
    last_tokens_ = tokens_;
    tokens_ = 0;
  }

  const CountTokens& count_;
  const size_t least_, most_;
  std::vector<std::string> segments_;
  std::string text_;
  size_t tokens_ = 0, last_tokens_ = 0;
};

std::vector<std::string> cut(std::string_view text, const std::vector<size_t>& begins) {
  std::vector<std::string> segments;
  size_t begin = 0;
  for (const size_t end : begins) {
    if (end > begin) segments.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  if (begin < text.size()) segments.emplace_back(text.substr(begin));
  return segments;
}

}  // namespace

size_t count_words(std::string_view text) {
  size_t words = 0;
  for (size_t i = 0; i < text.size(); ++i)
    words += !is_space(text[i]) && (i == 0 || is_space(text[i - 1]));
  return words;
}

std::vector<std::string> segment_passages(std::string_view context) {
  std::vector<size_t> begins;
  for (size_t i = 0; (i = context.find("Passage ", i)) != context.npos;) {
    const size_t length = header_length(context.substr(i));
    if (length > 0) begins.push_back(i);
    i += std::max<size_t>(length, 1);
  }
  return cut(context, begins);
}

std::vector<std::string> segment_shots(std::string_view context) {
  constexpr std::string_view kPassage = "\nPassage:\n", kQuestion = "\nQuestion:\n",
                             kAnswer = "\nAnswer:\n";
  std::vector<size_t> begins;
  for (size_t i = 0; i != context.npos;) {
    i = context.find(kQuestion, i);
    if (i != context.npos) i = context.find(kAnswer, i);
    if (i != context.npos) i = context.find(kPassage, i + kAnswer.size() - 1);
    if (i != context.npos) begins.push_back(++i);
  }
  return cut(context, begins);
}

std::vector<std::string> segment_sentences(std::string_view context, const CountTokens& count,
                                           size_t least, size_t most) {
  HYPIC_CHECK(0 < least && least < most);
  Packer packer(count, least, most);
  packer.add_text(context);
  return std::move(packer).finish();
}

}  // namespace hypic
