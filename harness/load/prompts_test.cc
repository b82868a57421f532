#include "harness/load/prompts.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"

namespace hypic::load {
namespace {

TEST(Prompts, WithoutAPoolNothingComesTwice) {
  std::set<uint64_t> ids;
  for (const int64_t first : {0, 20})
    for (const Prompt& prompt : make_prompts(Shape{.segments = 3}, first, 20))
      for (const Passage& passage : prompt.passages) EXPECT_TRUE(ids.insert(passage.id).second);
  EXPECT_EQ(ids.size(), 40 * 4);
}

TEST(Prompts, APoolIsDrawnFromInAnyOrder) {
  std::set<uint64_t> first;
  for (const Prompt& prompt : make_prompts(Shape{.segments = 4, .pool = 6}, 0, 50)) {
    std::set<uint64_t> own;
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_LT(prompt.passages[i].id, 6);
      EXPECT_TRUE(own.insert(prompt.passages[i].id).second);
    }
    first.insert(prompt.passages[0].id);
  }
  EXPECT_EQ(first.size(), 6);
  EXPECT_THROW(make_prompts(Shape{.segments = 4, .pool = 3}, 0, 1), Error);
}

TEST(Prompts, OfATraceKeepIdsAndLengths) {
  Trace trace;
  trace.requests = {{0, {{7, 10}, {8, 0}, {7, 10}}, 5}, {1, {}, 0}};
  const std::vector<Prompt> prompts = make_prompts(trace, 0, 2, 0);
  ASSERT_EQ(prompts[0].passages.size(), 2);
  EXPECT_EQ(prompts[0].passages[1].id, 7);
  EXPECT_EQ(prompts[0].output_tokens, 5);
  EXPECT_EQ(prompts[1].passages.size(), 1);
  EXPECT_EQ(prompts[1].output_tokens, 1);
  EXPECT_EQ(make_prompts(trace, 0, 1, 3)[0].output_tokens, 3);
}

TEST(Prompts, PassagesAreMadeFromTheirIds) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "word" + std::to_string(i) + " ";
  const Words words(text);
  EXPECT_EQ(words.passage({5, 100}, 1), words.passage({5, 100}, 1));
  std::set<std::string> heads;
  for (uint64_t id = 0; id < 5000; ++id) {
    const std::string passage = words.passage({id, 8}, 1);
    EXPECT_EQ(std::count(passage.begin(), passage.end(), ' '), 5);
    heads.insert(passage.substr(0, passage.find(' ')));
  }
  EXPECT_EQ(heads.size(), 5000);  // so no passage begins as another does
  EXPECT_THROW(Words("too short"), Error);
  const std::vector<int32_t> ids = token_ids({5, 50}, 1, 256, 300);
  EXPECT_EQ(ids, token_ids({5, 50}, 1, 256, 300));
  EXPECT_NE(ids, token_ids({6, 50}, 1, 256, 300));
  for (const int32_t id : ids) EXPECT_TRUE(256 <= id && id < 300);
}

TEST(Prompts, BodiesAreWhatEachApiTakes) {
  const std::vector<Prompt> prompts =
      make_prompts(Shape{.segments = 2, .tokens = 8, .question = 4, .output_tokens = 3}, 0, 2);
  const auto body = [&](Api api, Form form) {
    return nlohmann::json::parse(
        Bodies(prompts, {.api = api, .model = "m\"", .separator = "<<\"SEP>>", .form = form}).body(1));
  };
  const nlohmann::json openai = body(Api::openai, Form::text), generate = body(Api::generate, Form::ids);
  EXPECT_EQ(openai["model"], "m\"");
  EXPECT_EQ(openai["max_tokens"], 3);
  EXPECT_EQ(openai["stream_options"]["include_usage"], true);
  const std::string prompt = openai["prompt"];
  EXPECT_NE(prompt.find("<<\"SEP>>"), prompt.npos);
  EXPECT_EQ(generate["input_ids"].size(), 2 * 8 + 4);
  EXPECT_EQ(generate["sampling_params"]["max_new_tokens"], 3);
  EXPECT_TRUE(body(Api::openai, Form::ids)["prompt"].is_array());
  EXPECT_TRUE(body(Api::generate, Form::text)["text"].is_string());
  const nlohmann::json segments = body(Api::openai, Form::segments)["segments"];
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].size(), 8u);
  EXPECT_EQ(segments[2].size(), 4u);
}

}  // namespace
}  // namespace hypic::load
