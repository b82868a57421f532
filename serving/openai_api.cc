#include "serving/openai_api.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "models/text_segments.h"

namespace hypic {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMostStops = 16, kMostStopBytes = 1024;

template <class... Parts>
[[noreturn]] void refuse(const std::string& param, const Parts&... parts) {
  throw ApiError(400, str(param, ": ", parts...), param);
}

json object_of(std::string_view body) {
  json parsed;
  try {
    parsed = parse_json(body, "the body", {.depth = 16, .keys = 256});
  } catch (const Error& error) {
    throw ApiError(400, error.what());
  }
  if (!parsed.is_object()) throw ApiError(400, str("the body: must be a JSON object, is ", shown(parsed)));
  return parsed;
}

// The field, or null where it is absent or null.
const json* field(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool flag(const json& object, const char* name, bool missing = false) {
  const json* value = field(object, name);
  if (!value) return missing;
  if (!value->is_boolean()) refuse(name, "must be true or false, is ", shown(*value));
  return value->get<bool>();
}

std::optional<int64_t> integer(const json& object, const char* name, int64_t low, int64_t high) {
  const json* value = field(object, name);
  if (!value) return {};
  if (!is_integer_in(*value, low, high))
    refuse(name, "must be an integer from ", low, " to ", high, ", is ", shown(*value));
  return value->get<int64_t>();
}

double number(const json& object, const char* name, double missing) {
  const json* value = field(object, name);
  if (!value) return missing;
  if (!value->is_number()) refuse(name, "must be a number, is ", shown(*value));
  return value->get<double>();
}

std::string text(const json& value, const std::string& name) {
  if (!value.is_string()) refuse(name, "must be a text, is ", shown(value));
  return value.get<std::string>();
}

Tokens ids(const json& value, const std::string& name) {
  if (!value.is_array()) refuse(name, "must be an array of token ids, is ", shown(value));
  Tokens tokens;
  tokens.reserve(value.size());
  for (const json& id : value) {
    if (!is_integer_in(id, 0, INT32_MAX)) refuse(name, shown(id), " is no token id");
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

// Fields whose only supported value is the default, for any other would change the answer.
void refuse_unsupported(const json& body) {
  for (const char* name : {"n", "best_of"})
    if (integer(body, name, INT64_MIN, INT64_MAX).value_or(1) != 1)
      refuse(name, "only 1 is supported; send one request for each answer");
  for (const char* name : {"presence_penalty", "frequency_penalty", "min_p"})
    if (number(body, name, 0) != 0) refuse(name, "only 0 is supported");
  if (number(body, "repetition_penalty", 1) != 1) refuse("repetition_penalty", "only 1 is supported");
  for (const char* name : {"logit_bias", "tools", "functions", "suffix"})
    if (const json* value = field(body, name); value && !value->empty() && *value != "")
      refuse(name, "is not supported");
  for (const char* name : {"logprobs", "top_logprobs", "echo"})
    if (const json* value = field(body, name); value && *value != false && !(value->is_number() && *value == 0))
      refuse(name, "is not supported");
  if (const json* format = field(body, "response_format"))
    if (!format->is_object() || format->value("type", json()) != "text")
      refuse("response_format", "only {\"type\": \"text\"} is supported");
}

// What both endpoints share.
ApiRequest common(const json& body) {
  refuse_unsupported(body);
  ApiRequest request;
  if (const json* model = field(body, "model")) request.model = text(*model, "model");
  request.max_tokens = integer(body, "max_tokens", 1, INT32_MAX);
  if (!request.max_tokens) request.max_tokens = integer(body, "max_completion_tokens", 1, INT32_MAX);
  Sampling& sampling = request.sampling;
  sampling.temperature = number(body, "temperature", 1);
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0)
    refuse("temperature", "must be at least 0, is ", sampling.temperature);
  sampling.top_p = number(body, "top_p", 1);
  if (!(0 < sampling.top_p && sampling.top_p <= 1))
    refuse("top_p", "must be above 0 and at most 1, is ", sampling.top_p);
  sampling.top_k = static_cast<int>(std::max<int64_t>(integer(body, "top_k", -1, INT32_MAX).value_or(0), 0));
  if (const auto seed = integer(body, "seed", INT64_MIN, INT64_MAX)) {
    sampling.seed = static_cast<uint64_t>(*seed);
    request.seeded = true;
  }
  if (const json* stop = field(body, "stop")) {
    if (stop->is_array())
      for (const json& one : *stop) request.stop.push_back(text(one, "stop"));
    else
      request.stop.push_back(text(*stop, "stop"));
    if (request.stop.size() > kMostStops) refuse("stop", "at most ", kMostStops, " texts");
    for (const std::string& one : request.stop)
      if (one.empty() || one.size() > kMostStopBytes) refuse("stop", "a text has 1 to ", kMostStopBytes, " bytes");
  }
  if (const json* stop = field(body, "stop_token_ids")) request.stop_ids = ids(*stop, "stop_token_ids");
  if (request.stop_ids.size() > kMostStops) refuse("stop_token_ids", "at most ", kMostStops, " tokens");
  request.ignore_eos = flag(body, "ignore_eos");
  request.stream = flag(body, "stream");
  request.token_ids = flag(body, "return_token_ids");
  if (const json* options = field(body, "stream_options")) {
    if (!options->is_object()) refuse("stream_options", "must be an object, is ", shown(*options));
    if (!request.stream) refuse("stream_options", "is only of use with \"stream\": true");
    request.include_usage = flag(*options, "include_usage");
  }
  return request;
}

void add_text(const std::string& content, const ApiOptions& options, ApiRequest& request) {
  for (std::string& part : split_segments(content, options.separator)) request.segments.push_back(std::move(part));
}

void require_question(const ApiRequest& request, const char* name) {
  if (request.segments.empty()) refuse(name, "holds no text and no token");
}

// A message's content: a text, or parts of which each {"type": "text", "segment": true} is a segment of its own.
std::string content_of(const json& message, const ApiOptions& options) {
  const json* content = field(message, "content");
  if (!content) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse("messages", "content must be a text or an array of parts, is ", shown(*content));
  std::string all;
  for (const json& part : *content) {
    if (!part.is_object() || part.value("type", json()) != "text" || !part.contains("text"))
      refuse("messages", "parts must be {\"type\": \"text\", \"text\": …}; images and sound are not supported");
    const bool segment = flag(part, "segment");
    all += str(segment ? options.separator : "", text(part["text"], "messages"), segment ? options.separator : "");
  }
  return all;
}

ordered_json usage_json(const Usage& usage) {
  const Reused& reused = usage.reused;
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.answer},
          {"total_tokens", usage.prompt + usage.answer},
          {"prompt_tokens_details",
           {{"cached_tokens", reused.prefix + reused.segments},
            {"prefix_tokens", reused.prefix},
            {"segment_tokens", reused.segments},
            {"recomputed_tokens", reused.recomputed}}}};
}

ordered_json head(const Answer& answer, bool chunk) {
  return {{"id", answer.id},
          {"object", !answer.chat ? "text_completion"
                     : chunk      ? "chat.completion.chunk"
                                  : "chat.completion"},
          {"created", answer.created},
          {"model", answer.model}};
}

ordered_json choice(const Answer& answer, ordered_json content) {
  ordered_json one = {{"index", 0}};
  one.update(content);
  one["logprobs"] = nullptr;
  one["finish_reason"] = answer.finish_reason.empty() ? ordered_json() : ordered_json(answer.finish_reason);
  if (answer.token_ids) one["token_ids"] = *answer.token_ids;
  return one;
}

std::string dumped(const ordered_json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string error_body(const ApiError& error) {
  const int status = error.status;
  const char* type = status == 401   ? "authentication_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  return dumped({{"error",
                  {{"message", error.what()},
                   {"type", type},
                   {"param", error.param.empty() ? ordered_json() : ordered_json(error.param)},
                   {"code", status}}}});
}

ApiRequest parse_completion(std::string_view body, const ApiOptions& options) {
  const json parsed = object_of(body);
  ApiRequest request = common(parsed);
  const json *prompt = field(parsed, "prompt"), *segments = field(parsed, "segments");
  if (!prompt == !segments) refuse("prompt", "give either prompt or segments");
  if (segments) {
    if (!segments->is_array()) refuse("segments", "must be an array of texts and arrays of token ids");
    for (const json& one : *segments) {
      if (!one.is_string() && !one.is_array()) refuse("segments", shown(one), " is no text and no array of token ids");
      if (one.empty() || one == "") continue;
      if (one.is_string())
        request.segments.push_back(one.get<std::string>());
      else
        request.segments.push_back(ids(one, "segments"));
    }
    require_question(request, "segments");
    return request;
  }
  const bool one_of_many = prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number();
  if (one_of_many && prompt->size() > 1)
    refuse("prompt", "only one is supported; send one request for each, or its segments as \"segments\"");
  const json& only = one_of_many ? (*prompt)[0] : *prompt;
  if (only.is_string())
    add_text(only.get<std::string>(), options, request);
  else if (Tokens tokens = ids(only, "prompt"); !tokens.empty())
    request.segments.push_back(std::move(tokens));
  require_question(request, "prompt");
  return request;
}

ApiRequest parse_chat(std::string_view body, const ApiOptions& options) {
  const json parsed = object_of(body);
  ApiRequest request = common(parsed);
  const json* messages = field(parsed, "messages");
  if (!messages || !messages->is_array()) refuse("messages", "must be an array of {\"role\": …, \"content\": …}");
  std::vector<ChatMessage> chat;
  for (const json& message : *messages) {
    if (!message.is_object() || !message.contains("role"))
      refuse("messages", "must be an array of {\"role\": …, \"content\": …}");
    chat.push_back({text(message["role"], "messages"), content_of(message, options)});
  }
  std::optional<bool> thinking;
  if (const json* arguments = field(parsed, "chat_template_kwargs")) {
    if (!arguments->is_object()) refuse("chat_template_kwargs", "must be an object, is ", shown(*arguments));
    if (field(*arguments, "enable_thinking")) thinking = flag(*arguments, "enable_thinking");
  }
  try {
    add_text(render_chat(options.chat, chat, thinking), options, request);
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "messages");
  }
  return request;
}

std::string answer_body(const Answer& answer, const Usage& usage) {
  ordered_json body = head(answer, false);
  ordered_json content = {{"text", answer.text}};
  if (answer.chat) content = {{"message", {{"role", "assistant"}, {"content", answer.text}}}};
  body["choices"] = ordered_json::array({choice(answer, std::move(content))});
  body["usage"] = usage_json(usage);
  return dumped(body);
}

std::string chunk_body(const Answer& part, bool first) {
  ordered_json body = head(part, true);
  ordered_json content = {{"text", part.text}};
  if (part.chat) {
    ordered_json delta = ordered_json::object();
    if (first) delta["role"] = "assistant";
    if (first || !part.text.empty()) delta["content"] = part.text;
    content = {{"delta", std::move(delta)}};
  }
  body["choices"] = ordered_json::array({choice(part, std::move(content))});
  return dumped(body);
}

std::string usage_chunk_body(const Answer& answer, const Usage& usage) {
  ordered_json body = head(answer, true);
  body["choices"] = ordered_json::array();
  body["usage"] = usage_json(usage);
  return dumped(body);
}

std::vector<std::string> parse_tokenize(std::string_view body, const ApiOptions& options) {
  const json parsed = object_of(body);
  const json* prompt = field(parsed, "prompt");
  if (!prompt) refuse("prompt", "is missing; give a text");
  const std::string whole = text(*prompt, "prompt");
  if (flag(parsed, "segments")) return split_segments(whole, options.separator);
  return {whole};
}

}  // namespace hypic
