// Chat messages as the text that a model was trained on. Templates of checkpoints are programs (Jinja), so the three
// kinds of the models that hypic runs are built in, and any other is refused.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hypic {

enum class ChatTemplate { none, chatml, bailing, kimi };

// none, chatml, bailing, kimi. Error: another name.
ChatTemplate chat_template_named(std::string_view name);
std::string_view name_of(ChatTemplate chat);

// Of a model_type of config.json: Qwen's is chatml, Ling's and Ring's bailing, Kimi's kimi; none of the others.
ChatTemplate chat_template_of(std::string_view model_type);

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

// The text up to where the answer begins. `thinking`: what enable_thinking says, if it does; without it Qwen decides
// for itself, Ling and Ring do not think. Error: `none`, with the way out; no message; a role that is none.
std::string render_chat(ChatTemplate chat, const std::vector<ChatMessage>& messages, std::optional<bool> thinking = {});

}  // namespace hypic
