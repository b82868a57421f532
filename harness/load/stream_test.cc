#include "harness/load/stream.h"

#include <gtest/gtest.h>

namespace hypic::load {
namespace {

// Fed in pieces of `step` bytes, piece i read at time i.
Answer read(Api api, const std::string& bytes, size_t step) {
  AnswerReader reader(api);
  for (size_t at = 0, i = 0; at < bytes.size(); at += step, ++i)
    reader.feed(std::string_view(bytes).substr(at, step), static_cast<double>(i));
  return reader.answer();
}

const std::string kCompletion =
    ": a comment\r\n\r\n"
    "data: {\"choices\":[{\"text\":\"\"}]}\n\n"
    "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n"
    "event: x\ndata: {\"choices\":\ndata: [{\"text\":\"b\"}]}\r\n\r\n"
    "data:{\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";

TEST(Stream, CompletionInPiecesOfAnySize) {
  for (size_t step = 1; step <= kCompletion.size(); ++step) {
    const Answer answer = read(Api::openai, kCompletion, step);
    ASSERT_EQ(answer.tokens_at.size(), 2) << step;  // an empty piece is no token
    EXPECT_TRUE(answer.done);
    EXPECT_EQ(answer.error, "");
    EXPECT_EQ(answer.prompt_tokens, 9);
    EXPECT_EQ(answer.output_tokens, 2);
    EXPECT_EQ(answer.cached_tokens, 4);
  }
  const Answer bytes = read(Api::openai, kCompletion, 1);
  const std::string a = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";
  EXPECT_EQ(bytes.tokens_at[0], static_cast<double>(kCompletion.find(a) + a.size() - 1));  // its last byte's time
}

TEST(Stream, TheOnlyTokenMayHaveNoText) {
  const Answer answer =
      read(Api::openai, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n", 1000);
  EXPECT_EQ(answer.tokens_at.size(), 1);
}

TEST(Stream, IdsAreTokensWithoutText) {
  const std::string bytes =
      "data: {\"choices\":[{\"text\":\"\",\"token_ids\":[]}]}\n\n"
      "data: {\"choices\":[{\"text\":\"\",\"token_ids\":[7]}]}\n\n"
      "data: {\"choices\":[{\"text\":\"\",\"token_ids\":[8]}]}\n\n"
      "data: {\"choices\":[{\"text\":\"\",\"token_ids\":[9],\"finish_reason\":\"length\"}]}\n\n";
  const Answer answer = read(Api::openai, bytes, 1);
  ASSERT_EQ(answer.tokens_at.size(), 3);
  EXPECT_LT(answer.tokens_at[0], answer.tokens_at[1]);
}

TEST(Stream, CountsThatCannotBeAreNone) {
  const Answer answer = read(Api::openai,
                             "data: {\"usage\":{\"prompt_tokens\":9223372036854775807,\"completion_tokens\":2.0,"
                             "\"prompt_tokens_details\":{\"cached_tokens\":18446744073709551615}}}\n\n",
                             9);
  EXPECT_EQ(answer.prompt_tokens, -1);
  EXPECT_EQ(answer.output_tokens, -1);
  EXPECT_EQ(answer.cached_tokens, -1);
}

TEST(Stream, GenerateRepeatsItsText) {
  const std::string bytes =
      "data: {\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":5,\"completion_tokens\":1,\"cached_tokens\":0}}\n\n"
      "data: {\"text\":\"a\",\"meta_info\":{\"completion_tokens\":1}}\n\n"
      "data: {\"text\":\"a\",\"meta_info\":{\"completion_tokens\":2}}\n\n"
      "data: {\"text\":\"ab\",\"meta_info\":{\"completion_tokens\":3,\"finish_reason\":{\"type\":\"length\"}}}\n\n";
  const Answer answer = read(Api::generate, bytes, 7);
  EXPECT_EQ(answer.tokens_at.size(), 3);  // one of them without text
  EXPECT_EQ(answer.output_tokens, 3);
  EXPECT_EQ(answer.cached_tokens, 0);
  EXPECT_TRUE(answer.done);
}

TEST(Stream, ErrorsAreKept) {
  EXPECT_EQ(read(Api::openai, "data: {\"error\":{\"message\":\"too long\"}}\n\n", 9).error, "too long");
  EXPECT_EQ(read(Api::openai, "data: {\"error\":3}\n\n", 9).error, "3");
  EXPECT_NE(read(Api::openai, "data: nonsense\n\n", 9).error, "");
  EXPECT_EQ(read(Api::openai, "data: {\"usage\":{\"prompt_tokens\":-4}}\n\n", 9).prompt_tokens, -1);
}

}  // namespace
}  // namespace hypic::load
