// The texts are those of the models' own templates for the same messages.
#include "serving/chat_template.h"

#include <gtest/gtest.h>

#include "core/check.h"

namespace hypic {
namespace {

const std::vector<ChatMessage> kChat = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello."}, {"user", "Why?"}};

TEST(ChatTemplate, ChatMl) {
  EXPECT_EQ(render_chat(ChatTemplate::chatml, kChat),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello."
            "<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(render_chat(ChatTemplate::chatml, {{"user", "Hi"}}, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

TEST(ChatTemplate, Bailing) {
  EXPECT_EQ(
      render_chat(ChatTemplate::bailing, {{"user", "Hi"}}),
      "<role>SYSTEM</role>detailed thinking off<|role_end|><role>HUMAN</role>Hi<|role_end|><role>ASSISTANT</role>");
  EXPECT_EQ(render_chat(ChatTemplate::bailing, kChat, true),
            "<role>SYSTEM</role>Be brief.\ndetailed thinking on<|role_end|><role>HUMAN</role>Hi<|role_end|>"
            "<role>ASSISTANT</role>Hello.<|role_end|><role>HUMAN</role>Why?<|role_end|><role>ASSISTANT</role>");
}

TEST(ChatTemplate, Kimi) {
  EXPECT_EQ(render_chat(ChatTemplate::kimi, kChat),
            "<|im_system|>system<|im_middle|>Be brief.<|im_end|><|im_user|>user<|im_middle|>Hi<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>Hello.<|im_end|><|im_user|>user<|im_middle|>Why?<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>");
}

TEST(ChatTemplate, OthersAreRefusedWithTheWayOut) {
  EXPECT_EQ(chat_template_of("qwen3_5_moe"), ChatTemplate::chatml);
  EXPECT_EQ(chat_template_of("bailing_moe_linear"), ChatTemplate::bailing);
  EXPECT_EQ(chat_template_of("kimi_linear"), ChatTemplate::kimi);
  EXPECT_EQ(chat_template_of("falcon_h1"), ChatTemplate::none);
  EXPECT_EQ(chat_template_named("kimi"), ChatTemplate::kimi);
  EXPECT_THROW(chat_template_named("llama"), Error);
  try {
    render_chat(ChatTemplate::none, kChat);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/v1/completions"), std::string::npos);
  }
}

}  // namespace
}  // namespace hypic
