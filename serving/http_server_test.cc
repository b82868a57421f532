// Over a real socket: answers are the engine's, whatever else runs; what is wrong is said; overload and an end are
// orderly.
#include "serving/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>

#include "reference/cpu_backend.h"
#include "serving/scheduler.h"
#include "serving/small_model.h"

namespace hypic {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

// What came back of a request: everything until the server closed, or as long as one answer is.
struct Reply {
  int status = 0;
  std::string header, body;
  json parsed() const { return json::parse(body); }
  // The payloads of server-sent events.
  std::vector<std::string> events() const {
    std::vector<std::string> all;
    for (size_t at = 0; (at = body.find("data: ", at)) != body.npos;) {
      const size_t end = body.find("\n\n", at);
      all.push_back(body.substr(at + 6, end - at - 6));
      at = end;
    }
    return all;
  }
};

class Client {
 public:
  explicit Client(uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool is_answered() const {
    char byte;
    return recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
  }
  void send_raw(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }
  // The next answer on this connection; status 0: the server closed it.
  Reply read() {
    Reply reply;
    size_t end = 0;
    while ((end = bytes_.find("\r\n\r\n")) == bytes_.npos)
      if (!more()) return reply;
    reply.header = bytes_.substr(0, end);
    bytes_.erase(0, end + 4);
    reply.status = std::stoi(reply.header.substr(9, 3));
    const size_t length = reply.header.find("Content-Length: ");
    if (length != reply.header.npos) {
      const size_t n = std::stoul(reply.header.substr(length + 16));
      while (bytes_.size() < n && more()) {
      }
      reply.body = bytes_.substr(0, n);
      bytes_.erase(0, n);
    } else if (reply.header.find("chunked") != reply.header.npos) {
      for (;;) {
        size_t line = 0;
        while ((line = bytes_.find("\r\n")) == bytes_.npos)
          if (!more()) return reply;
        const size_t n = std::stoul(bytes_.substr(0, line), nullptr, 16);
        while (bytes_.size() < line + 2 + n + 2 && more()) {
        }
        reply.body += bytes_.substr(line + 2, n);
        bytes_.erase(0, line + 2 + n + 2);
        if (n == 0) break;
      }
    } else {
      while (more()) {
      }
      reply.body = std::exchange(bytes_, {});
    }
    return reply;
  }
  // All bytes up to and with the text, or to the end.
  std::string read_until(const std::string& text) {
    while (bytes_.find(text) == bytes_.npos && more()) {
    }
    return std::exchange(bytes_, {});
  }
  Reply ask(const std::string& method, const std::string& path, const std::string& body = {},
            const std::string& header = {}) {
    send_raw(method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + header +
             "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return read();
  }

 private:
  bool more() {
    char buffer[65536];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    if (n <= 0) return false;
    bytes_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  int socket_;
  std::string bytes_;
};

constexpr char kTokenizer[] = "datasets/models/tokenizer";

constexpr int kVocabulary = 4096;

ModelSpec spec_of() { return small_spec({.vocabulary = kVocabulary, .max_positions = 4096}); }

struct Given {
  ServerOptions server;
  SchedulerOptions scheduler{.mode = mode_named("transition_rope_seam")};
  EngineOptions engine;
  bool tokenizer = true;
};

ServerOptions complete(ServerOptions options, const Model& model, bool tokenizer) {
  options.port = 0;
  options.model = "test";
  options.vocabulary = model.spec().vocabulary;
  options.max_positions = model.spec().max_positions;
  if (tokenizer) options.tokenizer = Tokenizer::load(kTokenizer);
  return options;
}

// Before a scheduler. While it is shut nothing gets past its first token, so that what was submitted is under way
// however fast the machine is.
class Gate final : public RequestHandler {
 public:
  explicit Gate(RequestHandler& inner) : inner_(inner) {}
  uint64_t submit(Request request, Listener listener) override {
    const uint64_t id = inner_.submit(std::move(request), [this, listener = std::move(listener)](const Notice& notice) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return open_; });
      }
      listener(notice);
    });
    count(submitted_);
    return id;
  }
  void cancel(uint64_t id) override {
    inner_.cancel(id);
    count(cancelled_);
  }
  void flush() override {
    count(flushes_);
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return open_; });
    }
    inner_.flush();
  }
  void drain() override {
    inner_.drain();
    set(true);
  }
  Load load() const override { return inner_.load(); }

  void set(bool open) {
    const std::scoped_lock lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  // Since the beginning.
  void wait_for_submitted(int n) { wait_for(submitted_, n); }
  void wait_for_cancelled(int n) { wait_for(cancelled_, n); }
  void wait_for_flushes(int n) { wait_for(flushes_, n); }

 private:
  void count(int& of) {
    const std::scoped_lock lock(mutex_);
    ++of;
    changed_.notify_all();
  }
  void wait_for(const int& of, int n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return of >= n; });
  }
  RequestHandler& inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int submitted_ = 0, cancelled_ = 0, flushes_ = 0;
};

class Server {
 public:
  explicit Server(Given given = {})
      : backend(reference::make_cpu_backend()),
        model(Model::random(*backend, spec_of(), 3)),
        engine(model, given.engine),
        scheduler(std::in_place, engine, metrics, given.scheduler),
        gate(*scheduler),
        http(std::in_place, gate, metrics, complete(given.server, model, given.tokenizer)) {
    scheduler->wait_until_warm();
  }
  ~Server() {
    gate.set(true);
    http.reset();
    scheduler.reset();
    while (!engine.idle()) engine.step();
    EXPECT_NO_THROW(engine.check_integrity());
  }
  Reply ask(const std::string& method, const std::string& path, const json& body = nullptr,
            const std::string& header = {}) {
    return Client(http->port()).ask(method, path, body.is_null() ? "" : body.dump(), header);
  }
  Reply completion(const json& body) { return ask("POST", "/v1/completions", body); }

  std::unique_ptr<Backend> backend;
  Model model;
  Engine engine;
  Metrics metrics;
  std::optional<Scheduler> scheduler;
  Gate gate;
  std::optional<HttpServer> http;
};

std::vector<Tokens> prompt(int seed) {
  return {random_tokens(19, 1, kVocabulary), random_tokens(33, 2 + seed % 3, kVocabulary),
          random_tokens(5 + seed, 100 + seed, kVocabulary)};
}

// What Engine::run says, alone and with nothing cached.
Tokens expected(const std::vector<Tokens>& segments, int max_tokens, const Sampling& sampling = {}) {
  const auto backend = reference::make_cpu_backend();
  const Model model = Model::random(*backend, spec_of(), 3);
  Engine engine(model, {});
  return engine
      .run({{.segments = segments, .max_tokens = max_tokens, .sampling = sampling}}, mode_named("transition_rope_seam"))
      .responses[0]
      .tokens;
}

json request(const std::vector<Tokens>& segments, int max_tokens, bool stream = false) {
  json body = {{"model", "test"},
               {"segments", segments},
               {"max_tokens", max_tokens},
               {"temperature", 0},
               {"return_token_ids", true}};
  if (stream) body["stream"] = true;
  return body;
}

TEST(Server, AnswersAreTheEngines) {
  Server server;
  const Reply reply = server.completion(request(prompt(0), 6));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const json body = reply.parsed();
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["token_ids"].get<Tokens>(), expected(prompt(0), 6));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 57);
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  // Sampled tokens depend on the seed alone.
  json sampled = request(prompt(0), 6);
  sampled.update({{"temperature", 0.8}, {"top_k", 50}, {"top_p", 0.9}, {"seed", 7}});
  EXPECT_EQ(server.completion(sampled).parsed()["choices"][0]["token_ids"].get<Tokens>(),
            expected(prompt(0), 6, {.temperature = 0.8, .top_k = 50, .top_p = 0.9, .seed = 7}));
}

TEST(Server, CachedTokensAreCounted) {
  Server server;
  server.completion(request(prompt(0), 1));
  const json details = server.completion(request(prompt(0), 1)).parsed()["usage"]["prompt_tokens_details"];
  const int seam = mode_named("transition_rope_seam").head;
  EXPECT_EQ(details["segment_tokens"], 52 - 2 * seam);
  EXPECT_EQ(details["recomputed_tokens"], 2 * seam);
  EXPECT_EQ(details["prefix_tokens"], 0);
  EXPECT_EQ(details["cached_tokens"], 52 - 2 * seam);
  EXPECT_EQ(server.ask("POST", "/flush_cache").status, 200);
  EXPECT_EQ(server.completion(request(prompt(0), 1)).parsed()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST(Server, CachedPrefixesAreCounted) {
  Given given;
  given.scheduler.mode = mode_named("prefix");
  Server server(given);
  const Reply cold = server.completion(request(prompt(0), 3)), warm = server.completion(request(prompt(0), 3));
  EXPECT_EQ(warm.parsed()["usage"]["prompt_tokens_details"]["prefix_tokens"], 52);
  EXPECT_EQ(warm.parsed()["choices"], cold.parsed()["choices"]);
}

TEST(Server, ManyAtOnceGetWhatEachGetsAlone) {
  Given given;
  given.engine.max_rows = 40;  // prompts take several forwards
  given.engine.pools = {.state_slots = 9, .operator_slots = 10, .pages = 60, .page_size = 4};
  given.scheduler.prompt_rows = 150;
  Server server(given);
  constexpr int kClients = 24;
  std::vector<std::thread> clients;
  std::vector<Tokens> got(kClients);
  for (int i = 0; i < kClients; ++i)
    clients.emplace_back([&, i] {
      const Reply reply = server.completion(request(prompt(i % 8), 3 + i % 5, i % 2));
      if (reply.status != 200) {
        ADD_FAILURE() << reply.status << " " << reply.body;
      } else if (i % 2 == 0) {
        got[i] = reply.parsed()["choices"][0]["token_ids"].get<Tokens>();
      } else {
        for (const std::string& event : reply.events())
          if (event != "[DONE]")
            for (const int32_t token : json::parse(event)["choices"][0]["token_ids"].get<Tokens>())
              got[i].push_back(token);
      }
    });
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < kClients; ++i) EXPECT_EQ(got[i], expected(prompt(i % 8), 3 + i % 5)) << i;
}

TEST(Server, Streams) {
  Server server;
  json body = request(prompt(0), 5, true);
  body["stream_options"] = {{"include_usage", true}};
  Client client(server.http->port());
  for (int again = 0; again < 2; ++again) {  // the connection goes on
    const Reply reply = client.ask("POST", "/v1/completions", body.dump());
    ASSERT_EQ(reply.status, 200);
    EXPECT_NE(reply.header.find("text/event-stream"), reply.header.npos);
    const std::vector<std::string> events = reply.events();
    ASSERT_EQ(events.size(), 7u) << reply.body;  // tokens, usage, end
    EXPECT_EQ(events.back(), "[DONE]");
    Tokens tokens;
    for (int i = 0; i < 5; ++i) {
      const json choice = json::parse(events[i])["choices"][0];
      tokens.push_back(choice["token_ids"][0]);
      EXPECT_EQ(choice["finish_reason"], i < 4 ? json() : json("length"));
    }
    EXPECT_EQ(tokens, expected(prompt(0), 5));
    const json usage = json::parse(events[5]);
    EXPECT_TRUE(usage["choices"].empty());
    EXPECT_EQ(usage["usage"]["completion_tokens"], 5);
  }
  // HTTP/1.0 knows no chunks.
  Client old(server.http->port());
  const std::string text = body.dump();
  old.send_raw("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text);
  EXPECT_EQ(old.read().events().back(), "[DONE]");
}

TEST(Server, TextsAreSplitAndChatsRendered) {
  Given given;
  given.server.api.chat = ChatTemplate::chatml;
  Server server(given);
  const Tokenizer tokenizer = Tokenizer::load(kTokenizer);
  const json text = {{"prompt", "The first document is about rivers.<<PIC_SEP>>Which river?"},
                     {"max_tokens", 4},
                     {"temperature", 0},
                     {"return_token_ids", true}};
  const json body = server.completion(text).parsed();
  const Tokens tokens =
      expected({tokenizer.encode("The first document is about rivers."), tokenizer.encode("Which river?")}, 4);
  EXPECT_EQ(body["choices"][0]["token_ids"].get<Tokens>(), tokens);
  EXPECT_EQ(body["choices"][0]["text"], tokenizer.decode(tokens, true));

  const json chat = {
      {"messages",
       {{{"role", "user"},
         {"content",
          {{{"type", "text"}, {"text", "A document."}, {"segment", true}}, {{"type", "text"}, {"text", "What?"}}}}}}},
      {"max_tokens", 4},
      {"temperature", 0}};
  const json answer = server.ask("POST", "/v1/chat/completions", chat).parsed();
  const Tokens said = expected({tokenizer.encode("<|im_start|>user\n"), tokenizer.encode("A document."),
                                tokenizer.encode("What?<|im_end|>\n<|im_start|>assistant\n")},
                               4);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], tokenizer.decode(said, true));
  json stream = chat;
  stream["stream"] = true;
  std::string streamed;
  for (const std::string& event : server.ask("POST", "/v1/chat/completions", stream).events())
    if (event != "[DONE]") streamed += json::parse(event)["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(streamed, tokenizer.decode(said, true));
  const json counted = server.ask("POST", "/tokenize", {{"prompt", "Which river?"}}).parsed();
  EXPECT_EQ(counted["tokens"].get<Tokens>(), tokenizer.encode("Which river?"));
}

TEST(Server, StopsWhereAsked) {
  Server server;
  const Tokens tokens = expected(prompt(0), 8);
  json body = request(prompt(0), 8);
  body["stop_token_ids"] = {tokens[3]};
  const json stopped = server.completion(body).parsed();
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stopped["usage"]["completion_tokens"],
            std::find(tokens.begin(), tokens.end(), tokens[3]) - tokens.begin() + 1);
  const Tokenizer tokenizer = Tokenizer::load(kTokenizer);
  const std::string whole = tokenizer.decode(tokens, true);
  body = request(prompt(0), 8);
  body["stop"] = whole.substr(whole.size() / 2, 3);
  const json cut = server.completion(body).parsed();
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(cut["choices"][0]["text"], whole.substr(0, whole.find(body["stop"].get<std::string>())));
}

TEST(Server, SaysWhatIsWrong) {
  Given given;
  given.server.max_body_bytes = 10000;
  given.server.max_header_bytes = 2000;
  given.server.max_new_tokens = 100;
  given.engine.pools = {.state_slots = 8, .operator_slots = 8, .pages = 100, .page_size = 4};
  Server server(given);
  const auto expect = [&](int status, const std::string& text, const Reply& reply) {
    EXPECT_EQ(reply.status, status) << reply.body;
    const json error = reply.parsed()["error"];
    EXPECT_NE(error["message"].get<std::string>().find(text), std::string::npos) << reply.body;
    EXPECT_TRUE(error.contains("type") && error.contains("param") && error.contains("code"));
  };
  const auto with = [](const char* name, const json& value) {
    json body = request(prompt(0), 2);
    body[name] = value;
    return body;
  };
  expect(400, "not valid JSON", Client(server.http->port()).ask("POST", "/v1/completions", "{"));
  expect(400, "must be a JSON object", server.completion(json::array()));
  expect(400, "give either prompt or segments", server.completion({{"model", "test"}}));
  expect(400, "token 4096 is outside the vocabulary", server.completion({{"prompt", {4096}}}));
  expect(400, "-1 is no token id", server.completion({{"prompt", {-1}}}));
  expect(400, "n: only 1 is supported", server.completion(with("n", 2)));
  expect(400, "temperature", server.completion(with("temperature", -1)));
  expect(400, "top_p", server.completion(with("top_p", 0)));
  expect(400, "max_tokens: at most 100", server.completion(with("max_tokens", 101)));
  expect(400, "max_tokens: must be an integer", server.completion(with("max_tokens", "1")));
  expect(404, "the model \"other\" is not served here", server.completion(with("model", "other")));
  expect(404, "the model \"\\u0000\" is not served here", server.completion(with("model", std::string(1, '\0'))));
  expect(400, "exceed the model's 4096 positions",
         server.completion({{"prompt", Tokens(4090, 1)}, {"max_tokens", 100}}));
  expect(400, "K, V pages are needed", server.completion({{"prompt", Tokens(450, 1)}}));
  expect(400, "no chat template is built in",
         server.ask("POST", "/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "x"}}}}}));
  expect(404, "there is no /v2", server.ask("GET", "/v2"));
  expect(405, "must be POST", server.ask("GET", "/v1/completions"));
  expect(413, "the body is over 10000 bytes", server.completion({{"prompt", std::string(20000, 'x')}}));
  expect(431, "the header is over 2000 bytes",
         server.ask("GET", "/health", nullptr, "X: " + std::string(5000, 'x') + "\r\n"));
  Client garbage(server.http->port());
  garbage.send_raw("what is this\r\n\r\n");
  expect(400, "no HTTP", garbage.read());
  EXPECT_EQ(server.completion(request(prompt(0), 2)).status, 200);
}

TEST(Server, SaysHowItIs) {
  Given given;
  given.server.info = R"({"mode":"x"})";
  Server server(given);
  server.completion(request(prompt(0), 2));
  EXPECT_EQ(server.ask("GET", "/livez").status, 200);
  EXPECT_EQ(server.ask("GET", "/health").status, 200);
  EXPECT_EQ(server.ask("GET", "/v1/models").parsed()["data"][0]["id"], "test");
  EXPECT_EQ(server.ask("GET", "/server_info").parsed()["mode"], "x");
  const std::string metrics = server.ask("GET", "/metrics").body;
  for (const char* line : {"hypic_ready 1\n", "hypic_prompt_tokens_total 57\n", "hypic_generation_tokens_total 2\n",
                           "hypic_time_to_first_token_seconds_count 1\n", "hypic_http_responses_total{status=\"200\"}",
                           "hypic_cache_lookups_total{result=\"miss\"} 2\n"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
}

TEST(Server, AsksForTheKey) {
  Given given;
  given.server.api_key = "secret";
  Server server(given);
  EXPECT_EQ(server.completion(request(prompt(0), 1)).status, 401);
  EXPECT_EQ(server.ask("POST", "/v1/completions", request(prompt(0), 1), "Authorization: Bearer secres\r\n").status,
            401);
  EXPECT_EQ(server.ask("POST", "/v1/completions", request(prompt(0), 1), "Authorization: Bearer secret\r\n").status,
            200);
  EXPECT_EQ(server.ask("GET", "/v1/models").status, 401);
  EXPECT_EQ(server.ask("GET", "/health").status, 200);
}

// More than it can take: every request is answered, with tokens or with 429.
TEST(Server, OverloadIsTurnedAway) {
  Given given;
  given.engine.pools = {.state_slots = 3, .operator_slots = 4, .pages = 40, .page_size = 4};
  given.scheduler.max_waiting = 2;
  Server server(given);
  std::vector<std::thread> clients;
  std::atomic<int> good = 0, refused = 0;
  for (int i = 0; i < 32; ++i)
    clients.emplace_back([&, i] {
      const Reply reply = server.completion(request(prompt(i % 4), 20));
      if (reply.status == 200) ++good;
      if (reply.status == 429) {
        ++refused;
        EXPECT_EQ(reply.parsed()["error"]["type"], "rate_limit_error");
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good + refused, 32);
  EXPECT_GT(good, 0);
  EXPECT_EQ(server.completion(request(prompt(0), 2)).status, 200);
}

std::string post(const std::string& body) {
  return "POST /v1/completions HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(Server, ConnectionsAreBounded) {
  Given given;
  given.server.max_connections = 2;
  Server server(given);
  server.gate.set(false);
  Client one(server.http->port()), two(server.http->port());
  for (Client* client : {&one, &two}) client->send_raw(post(request(prompt(0), 2).dump()));
  server.gate.wait_for_submitted(2);
  EXPECT_EQ(Client(server.http->port()).ask("GET", "/livez").status, 503);
}

TEST(Server, WhoOnlyHoldsAConnectionMakesRoom) {
  Given given;
  given.server.max_connections = 2;
  Server server(given);
  Client idle(server.http->port()), slow(server.http->port());
  EXPECT_EQ(idle.ask("GET", "/livez").status, 200);
  EXPECT_EQ(slow.ask("GET", "/livez").status, 200);
  slow.send_raw("GET /livez HTTP/1.1\r\nHost: ");
  std::deque<Client> others;  // that stay, so that each needs room
  for (int i = 0; i < 8; ++i) EXPECT_EQ(others.emplace_back(server.http->port()).ask("GET", "/livez").status, 200);
  EXPECT_EQ(idle.read().status, 0);
  EXPECT_EQ(slow.read().status, 0);
}

TEST(Server, MemoryOfRequestsIsBounded) {
  Given given;
  given.server.max_body_bytes = 1000;
  given.server.max_bodies_bytes = 1500;
  Server server(given);
  const std::string body = request({{1, 2, 3}}, 2).dump();
  const std::string full = body + std::string(900 - body.size(), ' ');
  const std::string message = post(full);
  std::optional<Client> first;
  // Until the server has seen it, and still has. An answered request that it has not forgotten yet stands in the way of
  // others for a moment; the first one, too, may have come in it and have been refused.
  for (int refused = 0; refused < 20; std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
    if (!first || first->is_answered())
      first.emplace(server.http->port()).send_raw(message.substr(0, message.size() - 1));
    const Reply reply = Client(server.http->port()).ask("POST", "/v1/completions", full);
    refused = reply.status == 503 && !first->is_answered() ? refused + 1 : 0;
  }
  EXPECT_EQ(server.ask("GET", "/livez").status, 200);
  Client chunked(server.http->port());
  chunked.send_raw("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  EXPECT_EQ(chunked.read().status, 503);
  first->send_raw(" ");
  EXPECT_EQ(first->read().status, 200);
  for (;;) {  // until the server has forgotten it, which may be after the client has its answer
    const Reply reply = Client(server.http->port()).ask("POST", "/v1/completions", full);
    if (reply.status == 200) break;
    EXPECT_EQ(reply.status, 503);
  }
}

// Another coding of the body than its end is known by: what follows must not be taken for a request.
TEST(Server, EncodingsThatHideTheEndOfABodyAreRefused) {
  Server server;
  for (const char* coding : {"gzip", "chunked, gzip", "identity", "x"}) {
    Client client(server.http->port());
    client.send_raw(
        str("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: ", coding, "\r\n\r\nGET /livez HTTP/1.1\r\n\r\n"));
    EXPECT_EQ(client.read().status, 501) << coding;
    EXPECT_EQ(client.read().status, 0) << coding;
  }
}

// However many of them there are.
TEST(Server, WhoWaitsForTheEngineHoldsUpNobodyElse) {
  Server server;
  server.gate.set(false);
  std::deque<Client> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(server.http->port());
    clients.back().send_raw("POST /flush_cache HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
  }
  server.gate.wait_for_flushes(1);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(server.ask("GET", "/livez").status, 200);
    EXPECT_EQ(server.ask("POST", "/tokenize", {{"prompt", "a"}}).status, 200);
  }
  server.gate.set(true);
  for (Client& client : clients) EXPECT_EQ(client.read().status, 200);
}

// What stands around a body is no part of its bound.
TEST(Server, EndlessFramesEnd) {
  Server server;
  const std::string head = "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", much(1 << 20, 'a');
  for (const std::string& frame : {"5;" + much, "2\r\n{}\r\n0\r\nX: " + much}) {
    Client client(server.http->port());
    client.send_raw(head + frame);
    const int status = client.read().status;
    EXPECT_TRUE(status == 400 || status == 431) << status;
  }
  Client client(server.http->port());
  std::string lines;
  for (int i = 0; i < 100'000; ++i) lines += "X: a\r\n";
  client.send_raw("GET /livez HTTP/1.1\r\n" + lines);
  EXPECT_EQ(client.read().status, 431);
}

TEST(Server, HeadHasNoBody) {
  Server server;
  Client client(server.http->port());
  for (const auto& [path, status] : {std::pair("/health", "200"), {"/v1/completions", "405"}}) {
    client.send_raw(str("HEAD ", path, " HTTP/1.1\r\n\r\nGET /livez HTTP/1.1\r\n\r\n"));
    const std::string all = client.read_until("alive");
    EXPECT_EQ(all.find("HTTP/1.1 " + std::string(status)), 0u) << all;
    EXPECT_EQ(all.find("HTTP/1.1 200 OK", 9), all.find("\r\n\r\n") + 4) << all;
  }
}

// Bytes that no text has come through JSON and back.
TEST(Server, BytesThatAreNoTextAreSaidToBe) {
  Server server;
  const auto status = [&](const std::string& bytes) {
    Client client(server.http->port());
    client.send_raw(bytes);
    const Reply reply = client.read();
    EXPECT_NO_THROW(reply.parsed()) << reply.body;
    return reply.status;
  };
  EXPECT_EQ(status(post("{\"prompt\": \"\xff\xfe\"}")), 400);
  EXPECT_EQ(status(post("{\"prompt\": \"\\ud800\"}")), 400);
  EXPECT_EQ(status(post("{\"model\": \"" + std::string(199, 'a') + "\xc3\xa9\", \"prompt\": \"a\"}")),
            404);  // cut in two
  EXPECT_EQ(status("GET /\xff" + std::string(97, 'a') + "\xc3\xa9 HTTP/1.1\r\n\r\n"), 404);
}

TEST(Server, TimeIsBounded) {
  Given given;
  given.server.request_timeout = 1ms;
  given.server.io_timeout = 50ms;
  Server server(given);
  EXPECT_EQ(server.completion(request(prompt(0), 1000)).status, 504);
  Client slow(server.http->port());
  slow.send_raw("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(slow.read().status, 0);  // closed
}

TEST(Server, ClientsThatLeaveAreForgotten) {
  Server server;
  server.gate.set(false);
  int clients = 0;
  for (const bool stream : {true, false}) {
    {
      Client client(server.http->port());
      client.send_raw(post(request(prompt(0), 3000, stream).dump()));
      server.gate.wait_for_submitted(++clients);
      client.send_raw("GET /");  // what is not read yet hides no end
    }
    server.gate.wait_for_cancelled(clients);
  }
  server.gate.set(true);
  EXPECT_EQ(server.completion(request(prompt(0), 2)).status, 200);
}

TEST(Server, DrainsInOrder) {
  Server server;
  Client idle(server.http->port());
  EXPECT_EQ(idle.ask("GET", "/livez").status, 200);
  server.gate.set(false);
  Client streamed(server.http->port());
  streamed.send_raw(post(request(prompt(0), 60, true).dump()));
  server.gate.wait_for_submitted(1);
  EXPECT_TRUE(server.http->drain(60s));
  const std::vector<std::string> events = streamed.read().events();
  ASSERT_EQ(events.size(), 61u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(idle.read().status, 0);
}

TEST(Server, ModelsWithoutATokenizerTakeIds) {
  Given given;
  given.tokenizer = false;
  Server server(given);
  EXPECT_EQ(server.completion({{"prompt", "text"}}).status, 400);
  const json body =
      server.completion({{"prompt", random_tokens(9, 1, kVocabulary)}, {"max_tokens", 3}, {"temperature", 0}}).parsed();
  EXPECT_EQ(body["choices"][0]["token_ids"].get<Tokens>(), expected({random_tokens(9, 1, kVocabulary)}, 3));
}

TEST(Server, RefusesAnAddressThatIsNone) {
  Given given;
  given.server.address = "localhorst";
  EXPECT_THROW(Server{given}, Error);
}

}  // namespace
}  // namespace hypic
