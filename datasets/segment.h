// Cutting contexts into the segments that they are cached by. The segments of a context always
// concatenate to it, byte for byte; an empty context has none.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace hypic {

// How many tokens a text is. Counts of neighbouring texts are added up, so it should be additive
// where a text is cut between words; byte-level BPE is.
using CountTokens = std::function<size_t(std::string_view)>;

// Words between ASCII white space, for when there is no tokenizer.
size_t count_words(std::string_view text);

// Cut before every header "Passage N:\n" (N decimal digits); a header stays with its passage, text
// before the first one is a segment of its own. After EPIC.
std::vector<std::string> segment_passages(std::string_view context);

// LongBench's TriviaQA: cut before every line "Passage:" that a block "Passage:\n… Question:\n…
// Answer:\n…" precedes; the same line inside a passage does not count.
std::vector<std::string> segment_shots(std::string_view context);

// Cut at the first end of a sentence (. ! ? and closing quotes before white space, or a line break)
// after `least` tokens or more. Where that would take over `most`, between words, and where a word
// is longer than most − least, between characters: all segments but the last are between `least`
// and `most`; the last is joined to the one before if they fit.
std::vector<std::string> segment_sentences(std::string_view context,
                                           const CountTokens& count = count_words,
                                           size_t least = 512, size_t most = 1024);

}  // namespace hypic
