// OpenAI's API as data: bodies of requests in, bodies of answers out. Pure; docs/serving.md lists the fields.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/check.h"
#include "serving/chat_template.h"
#include "serving/engine.h"

namespace hypic {

// What a client is told in place of an answer.
struct ApiError : Error {
  ApiError(int status, const std::string& message, std::string param = {})
      : Error(message), status(status), param(std::move(param)) {}
  int status;         // of HTTP
  std::string param;  // the field that is wrong, if it is one
};

// {"error": {"message", "type", "param", "code"}}, as OpenAI's clients expect it.
std::string error_body(const ApiError& error);

struct ApiOptions {
  std::string separator = "<<PIC_SEP>>";  // between segments in texts
  ChatTemplate chat = ChatTemplate::none;
};

struct ApiRequest {
  std::string model;  // as the client calls it
  // In prompt order, the question last; a text is yet to be tokenised, alone. None is empty, nor is the list.
  std::vector<std::variant<std::string, Tokens>> segments;
  std::optional<int64_t> max_tokens;
  Sampling sampling;
  bool seeded = false;            // the client gave the seed
  std::vector<std::string> stop;  // texts that end the answer and are no part of it
  Tokens stop_ids;
  bool ignore_eos = false;
  bool stream = false, include_usage = false;
  bool token_ids = false;  // of the answer are wanted too
};

// The body of POST /v1/completions or /v1/chat/completions. ApiError 400: no JSON, a field that is wrong, or one that
// would change the answer and is not supported.
ApiRequest parse_completion(std::string_view body, const ApiOptions& options);
ApiRequest parse_chat(std::string_view body, const ApiOptions& options);

struct Usage {
  int64_t prompt = 0, answer = 0;  // tokens
  Reused reused;
};

// An answer, or a part of one that is streamed.
struct Answer {
  bool chat = false;
  std::string id, model;
  int64_t created = 0;  // seconds since 1970
  std::string text;
  std::optional<Tokens> token_ids;
  std::string finish_reason;  // "stop" or "length"; empty: not at its end
};

std::string answer_body(const Answer& answer, const Usage& usage);
// One event of the stream, without "data: ". `first` of a chat names the role; the usage comes in one of its own.
std::string chunk_body(const Answer& part, bool first);
std::string usage_chunk_body(const Answer& answer, const Usage& usage);

// The body of POST /tokenize: {"prompt": text, "segments": bool}. The texts to tokenise, each alone. ApiError as above.
std::vector<std::string> parse_tokenize(std::string_view body, const ApiOptions& options);

}  // namespace hypic
