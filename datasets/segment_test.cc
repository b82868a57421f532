#include "datasets/segment.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "datasets/testing.h"

namespace hypic {
namespace {

using Parts = std::vector<std::string>;

TEST(SegmentPassages, CutsBeforeHeadersOnly) {
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
  const auto parts = *rc::gen::container<Parts>(rc::gen::element<std::string>(
      "Passage ", "Passage 1:\n", "Passage 20:", "\n", "3", ":", "text"));
  const std::string context = join(parts);
  const auto segments = segment_passages(context);
  RC_ASSERT(join(segments) == context);
  for (const auto& segment : segments) RC_ASSERT(segment_passages(segment).size() == 1u);
}

TEST(SegmentShots, CutsAfterAnswersOnly) {
  const std::string one = "Passage:\nx\nPassage:\nstill x\nQuestion:\nq?\nAnswer:\na\n";
  const std::string two = "Passage:\ny\nQuestion:\nq?\nAnswer:\n";
  EXPECT_EQ(segment_shots(one + two), (Parts{one, two}));
  EXPECT_EQ(segment_shots(two + "Passage:\nz"), (Parts{two, "Passage:\nz"}));
  EXPECT_EQ(segment_shots("Passage:\nx"), Parts{"Passage:\nx"});
  EXPECT_EQ(segment_shots(""), Parts{});
}

RC_GTEST_PROP(SegmentShots, Concatenate, ()) {
  const auto parts = *rc::gen::container<Parts>(rc::gen::element<std::string>(
      "Passage:\n", "\nPassage:\n", "Question:\n", "\nQuestion:\n", "\nAnswer:\n", "text", "\n"));
  RC_ASSERT(join(segment_shots(join(parts))) == join(parts));
}

TEST(SegmentSentences, CutsAtTheEndsOfSentences) {
  const auto cut = [](const std::string& text) {
    return segment_sentences(text, count_words, 3, 6);
  };
  EXPECT_EQ(cut("a b c. d e f. g h"), (Parts{"a b c.", " d e f. g h"}));
  EXPECT_EQ(cut("a. b. c. d. e. f. g. h. i."), (Parts{"a. b. c.", " d. e. f.", " g. h. i."}));
  EXPECT_EQ(cut("a b 3.14 \"c.\") d"), (Parts{"a b 3.14 \"c.\") d"}));
  EXPECT_EQ(cut("a b 3.14 \"c.\") d e f"), (Parts{"a b 3.14 \"c.\")", " d e f"}));
  EXPECT_EQ(cut("a b c.”\n\nd e f"), (Parts{"a b c.”\n\n", "d e f"}));
  EXPECT_EQ(cut("a b c d e f g h i"), (Parts{"a b c d e f", " g h i"}));  // no sentence fits
  EXPECT_EQ(cut("a b c d e f g"), (Parts{"a b c d e f", " g"}));
  EXPECT_EQ(cut("a. b c d e f g h. i j k."), (Parts{"a. b c d e f", " g h. i j k."}));
  EXPECT_EQ(cut(""), Parts{});
  EXPECT_EQ(count_words(" a  b\nc "), 3);
  EXPECT_EQ(count_words(""), 0);
}

RC_GTEST_PROP(SegmentSentences, ConcatenateWithinBounds, ()) {
  const auto parts = *rc::gen::container<Parts>(rc::gen::element<std::string>(
      "word", " ", " ", ". ", ".", "\n", "”", "é", "?\" ", "中中中中"));
  const std::string text = join(parts);
  // Characters, which cut words too; and words.
  const CountTokens characters = [](std::string_view part) {
    return std::count_if(part.begin(), part.end(), [](char c) { return (c & 0xC0) != 0x80; });
  };
  for (const CountTokens& count : {characters, CountTokens(count_words)}) {
    const auto segments = segment_sentences(text, count, 5, 11);
    RC_ASSERT(join(segments) == text);
    for (size_t i = 0; i < segments.size(); ++i) {
      RC_ASSERT(!segments[i].empty());
      RC_ASSERT((segments[i][0] & 0xC0) != 0x80);
      if (i + 1 == segments.size()) continue;
      RC_ASSERT(count(segments[i]) <= 11u);
      // A word cut in two counts once in a segment, but was added up as two.
      RC_ASSERT(count(segments[i]) >= 5u);
    }
  }
}

}  // namespace
}  // namespace hypic
