#include "serving/text_stream.h"

#include <gtest/gtest.h>

namespace hypic {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer one = Tokenizer::load("datasets/tokenizer");
  return one;
}

struct Parts {
  std::vector<std::string> parts;
  bool stopped = false;
  std::string whole() const {
    std::string all;
    for (const std::string& part : parts) all += part;
    return all;
  }
};

Parts streamed(const Tokens& tokens, const std::vector<std::string>& stops = {}) {
  TextStream stream(tokenizer(), stops);
  Parts out;
  for (const int32_t token : tokens) out.parts.push_back(stream.add(token));
  out.parts.push_back(stream.finish());
  out.stopped = stream.stopped();
  return out;
}

TEST(TextStream, PartsAreWholeCharactersAndTogetherTheText) {
  const std::string text = "Rivers 川 and 🌊🌊, naïve – ok\n";
  const Tokens tokens = tokenizer().encode(text);
  const Parts out = streamed(tokens);
  EXPECT_EQ(out.whole(), text);
  for (const std::string& part : out.parts) EXPECT_EQ(part.find("\xef\xbf\xbd"), part.npos) << part;
}

TEST(TextStream, WhatIsCutInsideACharacterIsSaidAtTheEnd) {
  const Tokens tokens = tokenizer().encode("🌊");
  if (tokens.size() < 2) GTEST_SKIP() << "one token";
  EXPECT_EQ(streamed({tokens[0]}).whole(), tokenizer().decode({tokens[0]}));
}

TEST(TextStream, StopTextsEndItWhereverTokensCutThem) {
  const std::string text = "one two three four";
  const Tokens tokens = tokenizer().encode(text);
  for (size_t at = 0; at < text.size(); ++at)
    for (size_t n = 1; at + n <= text.size(); ++n) {
      const std::string stop = text.substr(at, n);
      const Parts out = streamed(tokens, {"never", stop});
      EXPECT_TRUE(out.stopped) << stop;
      EXPECT_EQ(out.whole(), text.substr(0, text.find(stop))) << stop;
    }
}

TEST(TextStream, WhatOnlyBeginsLikeAStopTextComesOut) {
  const std::string text = "one two three";
  const Parts out = streamed(tokenizer().encode(text), {"two threx", "threefold", "e!"});
  EXPECT_FALSE(out.stopped);
  EXPECT_EQ(out.whole(), text);
}

}  // namespace
}  // namespace hypic
