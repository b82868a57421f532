#include "serving/openai_api.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace hypic {
namespace {

using nlohmann::json;

std::string refused(const json& body, bool chat = false) {
  try {
    chat ? parse_chat(body.dump(), {.chat = ChatTemplate::chatml}) : parse_completion(body.dump(), {});
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.what();
  }
  return "taken";
}

TEST(OpenAiApi, DefaultsAreOpenAis) {
  const ApiRequest request = parse_completion(R"({"prompt": "x"})", {});
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_FALSE(request.seeded || request.stream || request.include_usage || request.ignore_eos);
  EXPECT_FALSE(request.max_tokens.has_value());
}

TEST(OpenAiApi, FieldsAreRead) {
  const ApiRequest request = parse_completion(
      R"({"prompt": "x", "temperature": 0, "top_k": -1, "top_p": 0.5, "seed": 9, "stop": "end",
          "max_completion_tokens": 3,
          "stream": true, "stream_options": {"include_usage": true}, "user": "unknown fields are let through"})",
      {});
  EXPECT_EQ(request.sampling.top_k, 0);  // as vLLM has it
  EXPECT_EQ(request.sampling.seed, 9u);
  EXPECT_TRUE(request.seeded && request.stream && request.include_usage);
  EXPECT_EQ(request.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(request.max_tokens, 3);
}

TEST(OpenAiApi, PromptsBecomeSegments) {
  const auto texts = [](const ApiRequest& request) {
    std::vector<std::string> all;
    for (const auto& segment : request.segments) all.push_back(std::get<std::string>(segment));
    return all;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts(parse_completion(R"({"prompt": "a<<PIC_SEP>><<PIC_SEP>>b"})", {})), (Texts{"a", "b"}));
  EXPECT_EQ(texts(parse_completion(R"({"prompt": ["a|b"]})", {.separator = "|"})), (Texts{"a", "b"}));
  EXPECT_EQ(texts(parse_completion(R"({"segments": ["a<<PIC_SEP>>b", "", "c"]})", {})), (Texts{"a<<PIC_SEP>>b", "c"}));
  EXPECT_EQ(std::get<Tokens>(parse_completion(R"({"prompt": [[1, 2]]})", {}).segments[0]), (Tokens{1, 2}));
  EXPECT_EQ(texts(parse_chat(R"({"messages": [{"role": "user", "content": "a<<PIC_SEP>>b"}]})",
                             {.chat = ChatTemplate::chatml})),
            (Texts{"<|im_start|>user\na", "b<|im_end|>\n<|im_start|>assistant\n"}));
}

TEST(OpenAiApi, SaysWhatIsWrong) {
  const auto says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << text;
  };
  says(refused({{"prompt", {"a", "b"}}}), "prompt: only one is supported");
  says(refused({{"prompt", ""}}), "prompt: holds no text and no token");
  says(refused({{"prompt", json::array()}}), "prompt: holds no text and no token");
  says(refused({{"prompt", "a"}, {"segments", {"b"}}}), "give either prompt or segments");
  says(refused({{"segments", {1}}}), "segments: 1 is no text");
  says(refused({{"prompt", "a"}, {"logprobs", 2}}), "logprobs: is not supported");
  says(refused({{"prompt", "a"}, {"stream_options", {{"include_usage", true}}}}), "only of use with \"stream\": true");
  says(refused({{"prompt", "a"}, {"stop", {""}}}), "stop: a text has 1 to");
  says(refused({{"prompt", "a"}, {"seed", 0.5}}), "seed: must be an integer");
  says(refused({{"messages", json::array()}}, true), "at least one message");
  says(refused({{"messages", {{{"role", "tool"}, {"content", "x"}}}}}, true), "role must be system, user or assistant");
  says(refused({{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}}, true), "images and sound");
  EXPECT_EQ(refused({{"prompt", "a"}, {"logprobs", nullptr}, {"n", 1}, {"echo", false}, {"tools", json::array()}}),
            "taken");
}

TEST(OpenAiApi, AnswersHaveOpenAisShape) {
  Answer answer{.id = "cmpl-1", .model = "m", .created = 7, .text = "x", .finish_reason = "stop"};
  const Usage usage{.prompt = 10, .answer = 2, .reused = {.prefix = 1, .segments = 4, .recomputed = 3}};
  EXPECT_EQ(json::parse(answer_body(answer, usage)), json::parse(R"({
    "id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m",
    "choices": [{"index": 0, "text": "x", "logprobs": null, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12, "prompt_tokens_details":
      {"cached_tokens": 5, "prefix_tokens": 1, "segment_tokens": 4, "recomputed_tokens": 3}}})"));
  answer.chat = true;
  answer.finish_reason.clear();
  EXPECT_EQ(json::parse(chunk_body(answer, true)), json::parse(R"({
    "id": "cmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "x"}, "logprobs": null, 
      "finish_reason": null}]})"));
  EXPECT_EQ(json::parse(answer_body(answer, usage))["choices"][0]["message"],
            json::parse(R"({"role": "assistant", "content": "x"})"));
  EXPECT_EQ(
      json::parse(error_body(ApiError(429, "full", "model"))),
      json::parse(R"({"error": {"message": "full", "type": "rate_limit_error", "param": "model", "code": 429}})"));
}

}  // namespace
}  // namespace hypic
