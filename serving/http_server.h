// A request handler over HTTP, as OpenAI's clients speak it; docs/serving.md lists paths and fields.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "serving/openai_api.h"
#include "serving/request_handler.h"

namespace hypic {

struct ServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 8000;  // 0: any that is free
  std::string api_key;   // clients must send it as a bearer token; empty: anyone may ask
  std::string model;     // its name to clients
  ApiOptions api;
  std::optional<Tokenizer> tokenizer;  // without one prompts are token ids, and so are answers
  Tokens end_tokens;
  int32_t vocabulary = 0, max_positions = 0;
  int64_t max_new_tokens = 4096;  // of an answer; a client may not ask for more
  int64_t max_body_bytes = int64_t{16} << 20;
  int64_t max_bodies_bytes = int64_t{1} << 30;  // of all requests that arrive or are being answered
  int64_t max_header_bytes = int64_t{16} << 10;
  int64_t max_connections = 1024;
  std::chrono::milliseconds io_timeout{30'000};    // for a whole request to arrive, for a part of an answer to leave
  std::chrono::milliseconds idle_timeout{75'000};  // between two requests of a connection
  std::chrono::milliseconds request_timeout{600'000};  // from a request's arrival to the end of its answer
  int threads = 4;
  std::string info = "{}";  // of /server_info, a JSON object
};

class HttpServer {
 public:
  // Listens at once. The handler and the metrics outlive it. Error: the address cannot be used.
  HttpServer(RequestHandler& handler, Metrics& metrics, ServerOptions options);
  ~HttpServer();

  uint16_t port() const;
  // Takes no more requests, lets those that came end their answers, at most as long as `grace`, and closes. Whether all
  // of them ended.
  bool drain(std::chrono::milliseconds grace);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hypic
