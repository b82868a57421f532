// Fast tokenising of text that repeats few words.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/tokenizer.h"

namespace hypic {

// Encodes and counts word by word, from memory, as the tokenizer does the whole: right for a
// tokenizer whose pre-tokenizer starts a new piece at a space between two other characters (GPT-2's
// and Qwen's do), and text that has no added tokens. Of one thread; refers to the tokenizer.
class WordEncoder {
 public:
  explicit WordEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void append(std::string_view text, std::vector<int32_t>& ids) {
    each(text, [&](const std::vector<int32_t>& word) { ids.insert(ids.end(), word.begin(), word.end()); });
  }

  size_t count(std::string_view text) {
    size_t tokens = 0;
    each(text, [&](const std::vector<int32_t>& word) { tokens += word.size(); });
    return tokens;
  }

 private:
  template <class Use>
  void each(std::string_view text, const Use& use) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(' ', begin + 1), text.size());
      word_.assign(text.substr(begin, end - begin));
      auto found = words_.find(word_);
      if (found == words_.end()) found = words_.emplace(word_, tokenizer_.encode(word_)).first;
      use(found->second);
      begin = end;
    }
  }

  const Tokenizer& tokenizer_;
  std::unordered_map<std::string, std::vector<int32_t>> words_;
  std::string word_;  // a buffer
};

}  // namespace hypic
