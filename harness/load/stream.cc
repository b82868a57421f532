#include "harness/load/stream.h"

#include <nlohmann/json.hpp>

#include "core/json.h"

namespace hypic::load {
namespace {

using nlohmann::json;

const json* find(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// So small that the counts of all requests can be added.
void take(const json& object, const char* key, int64_t& out) {
  const json* value = find(object, key);
  if (value && is_integer_in(*value, 0, INT32_MAX)) out = *value;
}

bool holds_any(const json& object, const char* key) {
  const json* value = find(object, key);
  return value && (value->is_array() || value->is_string()) && !value->empty() && *value != "";
}

}  // namespace

void AnswerReader::feed(std::string_view bytes, double at) {
  events_.feed(bytes, [&](std::string_view data) { read(data, at); });
}

void AnswerReader::read(std::string_view data, double at) {
  if (data == "[DONE]") {
    answer_.done = true;
    return;
  }
  const json event = json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    answer_.error = "an event is not a JSON object";
    return;
  }
  if (const json* error = find(event, "error")) {
    const json* message = find(*error, "message");
    answer_.error = message && message->is_string() ? message->get<std::string>() : error->dump();
    return;
  }
  bool token = false;
  if (api_ == Api::openai) {
    if (const json* choices = find(event, "choices"); choices && choices->is_array() && !choices->empty()) {
      // A model without a tokenizer answers with ids alone.
      token = holds_any((*choices)[0], "text") || holds_any((*choices)[0], "token_ids");
      if (find((*choices)[0], "finish_reason")) {
        answer_.done = true;
        token = token || answer_.tokens_at.empty();  // the only token may have no text of its own
      }
    }
    if (const json* usage = find(event, "usage")) {
      take(*usage, "prompt_tokens", answer_.prompt_tokens);
      take(*usage, "completion_tokens", answer_.output_tokens);
      if (const json* details = find(*usage, "prompt_tokens_details"))
        take(*details, "cached_tokens", answer_.cached_tokens);
    }
  } else {
    const int64_t before = answer_.output_tokens;
    if (const json* meta = find(event, "meta_info")) {
      take(*meta, "prompt_tokens", answer_.prompt_tokens);
      take(*meta, "completion_tokens", answer_.output_tokens);
      take(*meta, "cached_tokens", answer_.cached_tokens);
      if (find(*meta, "finish_reason")) answer_.done = true;
    }
    if (const json* text = find(event, "text"); text && text->is_string()) {
      token = text->get_ref<const std::string&>().size() > text_;
      text_ = std::max(text_, text->get_ref<const std::string&>().size());
    }
    token = token || answer_.output_tokens > std::max<int64_t>(before, 0);  // a token may have no text of its own
  }
  if (token) answer_.tokens_at.push_back(at);
}

}  // namespace hypic::load
