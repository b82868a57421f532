#include "serving/chat_template.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace hypic {
namespace {

constexpr std::pair<ChatTemplate, std::string_view> kNames[] = {{ChatTemplate::none, "none"},
                                                                {ChatTemplate::chatml, "chatml"},
                                                                {ChatTemplate::bailing, "bailing"},
                                                                {ChatTemplate::kimi, "kimi"}};

std::string chatml(const std::vector<ChatMessage>& messages, std::optional<bool> thinking) {
  std::string text;
  for (const ChatMessage& m : messages) text += str("<|im_start|>", m.role, "\n", m.content, "<|im_end|>\n");
  text += "<|im_start|>assistant\n";
  if (thinking == false) text += "<think>\n\n</think>\n\n";
  return text;
}

std::string bailing(const std::vector<ChatMessage>& messages, std::optional<bool> thinking) {
  const bool system = messages[0].role == "system";
  std::string text = str("<role>SYSTEM</role>", system ? messages[0].content + "\n" : "", "detailed thinking ",
                         thinking.value_or(false) ? "on" : "off", "<|role_end|>");
  for (size_t i = system; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    text += str("<role>",
                role == "user"        ? "HUMAN"
                : role == "assistant" ? "ASSISTANT"
                                      : "SYSTEM",
                "</role>", messages[i].content, "<|role_end|>");
  }
  return text + "<role>ASSISTANT</role>";
}

std::string kimi(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& m : messages)
    text += str("<|im_", m.role, "|>", m.role, "<|im_middle|>", m.content, "<|im_end|>");
  return text + "<|im_assistant|>assistant<|im_middle|>";
}

}  // namespace

ChatTemplate chat_template_named(std::string_view name) {
  for (const auto& [chat, known] : kNames)
    if (known == name) return chat;
  fail("unknown chat template \"", name, "\"; known: chatml, bailing, kimi, none");
}

std::string_view name_of(ChatTemplate chat) {
  return std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& one) { return one.first == chat; })->second;
}

ChatTemplate chat_template_of(std::string_view model_type) {
  if (model_type.starts_with("qwen")) return ChatTemplate::chatml;
  if (model_type.starts_with("bailing")) return ChatTemplate::bailing;
  if (model_type.starts_with("kimi")) return ChatTemplate::kimi;
  return ChatTemplate::none;
}

std::string render_chat(ChatTemplate chat, const std::vector<ChatMessage>& messages, std::optional<bool> thinking) {
  require(chat != ChatTemplate::none,
          "no chat template is built in for this model; send the rendered text to /v1/completions, or start the server "
          "with --chat-template chatml, bailing or kimi");
  require(!messages.empty(), "messages: needs at least one message");
  for (const ChatMessage& m : messages)
    require(m.role == "system" || m.role == "user" || m.role == "assistant",
            "messages: role must be system, user or assistant, is \"", m.role, "\"");
  if (chat == ChatTemplate::bailing) return bailing(messages, thinking);
  return chat == ChatTemplate::kimi ? kimi(messages) : chatml(messages, thinking);
}

}  // namespace hypic
