#include "serving/http_server.h"

#include <openssl/crypto.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <iostream>
#include <list>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "core/check.h"
#include "core/json.h"
#include "serving/text_stream.h"

namespace hypic {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Failure = boost::system::error_code;
using Steady = std::chrono::steady_clock;
using HttpRequest = http::request<http::string_body>;
using HttpResponse = http::response<http::string_body>;

// The client went away, or was too slow: nobody is left to answer.
struct Gone {};

// What the handler says about one request, on its way to the connection.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  explicit Mailbox(const asio::any_io_executor& executor) : timer_(std::in_place, executor) {}

  void put(const Notice& notice) {
    const std::scoped_lock lock(mutex_);
    if (!timer_) return;
    notices_.push_back(notice);
    asio::post(timer_->get_executor(), [self = shared_from_this()] {
      const std::scoped_lock lock(self->mutex_);
      if (self->timer_) self->timer_->cancel();
    });
  }
  // From here on nobody reads; the handler may keep it longer than there is a server.
  void close() {
    const std::scoped_lock lock(mutex_);
    timer_.reset();
  }
  std::vector<Notice> take() {
    const std::scoped_lock lock(mutex_);
    return std::exchange(notices_, {});
  }
  // Cancelled when there is something; only for the executor's thread.
  asio::steady_timer& timer() { return *timer_; }

 private:
  std::mutex mutex_;
  std::optional<asio::steady_timer> timer_;
  std::vector<Notice> notices_;
};

struct Connection {
  enum class State { idle, arriving, answering, leaving };  // between requests; one comes; has come; is closed

  explicit Connection(tcp::socket socket) : stream(std::move(socket)) {}
  beast::tcp_stream stream;
  std::atomic<State> state = State::idle;
  std::atomic<Steady::time_point> since = Steady::now();
  bool streaming = false;  // an answer has begun that cannot be taken back
};

// Also where bytes of it are still unread.
bool peer_is_gone(beast::tcp_stream& stream) {
  pollfd socket{stream.socket().native_handle(), POLLRDHUP, 0};
  return poll(&socket, 1, 0) > 0 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

// A share of what requests may take of memory before they are answered.
class Share {
 public:
  // Nothing where `total` would be exceeded.
  Share(std::atomic<int64_t>& taken, int64_t bytes, int64_t total) : taken_(taken), bytes_(bytes) {
    int64_t before = taken_;
    do {
      if (before + bytes > total) {
        bytes_ = -1;
        return;
      }
    } while (!taken_.compare_exchange_weak(before, before + bytes));
  }
  ~Share() {
    if (*this) taken_ -= bytes_;
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  explicit operator bool() const { return bytes_ >= 0; }

 private:
  std::atomic<int64_t>& taken_;
  int64_t bytes_;
};

std::string new_id(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::ostringstream id;
  id << prefix << std::hex << random() << random();
  return id.str();
}

uint64_t new_seed() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

}  // namespace

struct HttpServer::Impl {
  static constexpr int64_t kToldSo = 256;  // connections above the bound that are told so; others are just closed
  static constexpr size_t kReadAhead = 1 << 16;

  Impl(RequestHandler& handler, Metrics& metrics, ServerOptions given)
      : handler(handler), metrics(metrics), options(std::move(given)), acceptor(asio::make_strand(io)) {
    Failure failure;
    const auto address = asio::ip::make_address(options.address, failure);
    require(!failure, options.address, ": is no IP address; 127.0.0.1 is this machine only, 0.0.0.0 every interface");
    const tcp::endpoint endpoint(address, options.port);
    try {
      acceptor.open(endpoint.protocol());
      acceptor.set_option(asio::socket_base::reuse_address(true));
      acceptor.bind(endpoint);
      acceptor.listen();
      port = acceptor.local_endpoint().port();
    } catch (const boost::system::system_error& error) {
      fail("cannot listen on ", options.address, ", port ", options.port, ": ", error.code().message(),
           "; choose another with --port");
    }
    asio::co_spawn(acceptor.get_executor(), accept(), asio::detached);
    for (int i = 0; i < std::max(options.threads, 1); ++i) threads.emplace_back([this] { io.run(); });
  }

  ~Impl() {
    io.stop();
    for (std::thread& thread : threads) thread.join();
    computing.join();
    flushing.join();
  }

  // What takes long, or waits, without holding up the connections that this thread looks after.
  template <class Work>
  static asio::awaitable<std::invoke_result_t<Work>> beside(asio::thread_pool& pool, Work work) {
    co_return co_await asio::co_spawn(
        pool, [&work]() -> asio::awaitable<std::invoke_result_t<Work>> { co_return work(); }, asio::use_awaitable);
  }

  bool drain(std::chrono::milliseconds grace) {
    handler.drain();
    draining = true;
    asio::post(acceptor.get_executor(), [this] {
      Failure ignored;
      acceptor.close(ignored);
    });
    std::unique_lock lock(mutex);
    for (const auto& connection : connections)
      asio::post(connection->stream.get_executor(), [connection] {
        if (connection->state == Connection::State::idle) connection->stream.close();
      });
    return left.wait_for(lock, grace, [this] { return connections.empty(); });
  }

  asio::awaitable<void> accept() {
    while (!draining) {
      tcp::socket socket(asio::make_strand(io));
      Failure failure;
      co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, failure));
      if (draining || failure == asio::error::operation_aborted) co_return;
      if (failure) {  // of file descriptors, perhaps: some may come back
        asio::steady_timer pause(acceptor.get_executor(), std::chrono::milliseconds(20));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, failure));
        continue;
      }
      const auto connection = std::make_shared<Connection>(std::move(socket));
      connection->stream.socket().set_option(tcp::no_delay(true), failure);
      bool full = false;
      {
        const std::scoped_lock lock(mutex);
        const auto open = static_cast<int64_t>(connections.size());
        if (open >= options.max_connections + kToldSo) continue;
        full = open >= options.max_connections && !make_room();
        connections.push_back(connection);
      }
      asio::co_spawn(connection->stream.get_executor(), serve(connection, full), asio::detached);
    }
  }

  // Closes the connection that has waited longest for a request, or for the rest of one, so that clients that only hold
  // theirs keep nobody out. False: all are being answered. Under the mutex.
  bool make_room() {
    using State = Connection::State;
    std::shared_ptr<Connection> longest;
    for (const auto& connection : connections) {
      const State state = connection->state;
      if ((state == State::idle || state == State::arriving) &&
          (!longest || connection->since.load() < longest->since.load()))
        longest = connection;
    }
    if (!longest) return false;
    State seen = longest->state;
    if (seen == State::answering || !longest->state.compare_exchange_strong(seen, State::leaving)) return false;
    asio::post(longest->stream.get_executor(), [longest] { longest->stream.close(); });
    return true;
  }

  asio::awaitable<void> serve(std::shared_ptr<Connection> connection, bool full) {
    try {
      if (full) {
        connection->state = Connection::State::leaving;
        co_await refuse(*connection, ApiError(503, "too many connections; try again later"));
      } else {
        co_await serve_requests(*connection);
      }
    } catch (const Gone&) {
    } catch (const std::exception& error) {
      std::cerr << "hypic: a connection ended: " << error.what() << std::endl;
    }
    connection->stream.close();
    const std::scoped_lock lock(mutex);
    connections.remove(connection);
    left.notify_all();
  }

  asio::awaitable<void> serve_requests(Connection& connection) {
    using State = Connection::State;
    // Of what is read ahead; bodies are not in it, so it bounds what stands around them, such as chunks' extensions.
    beast::flat_buffer buffer(static_cast<size_t>(options.max_header_bytes) + kReadAhead);
    for (bool keep = true; keep && !draining;) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
      parser.body_limit(static_cast<uint64_t>(options.max_body_bytes));
      connection.stream.expires_after(options.idle_timeout);
      Failure failure;
      if (buffer.size() == 0) {  // the first bytes may take as long as a connection may be idle
        constexpr size_t kBytes = 4096;
        const auto room = buffer.prepare(kBytes);
        const size_t n =
            co_await connection.stream.async_read_some(room, asio::redirect_error(asio::use_awaitable, failure));
        if (failure) co_return;
        buffer.commit(n);
      }
      State before = State::idle;
      if (!connection.state.compare_exchange_strong(before, State::arriving)) co_return;  // makes room for another
      connection.since = Steady::now();
      connection.stream.expires_after(options.io_timeout);
      co_await http::async_read_header(connection.stream, buffer, parser,
                                       asio::redirect_error(asio::use_awaitable, failure));
      const auto length = failure ? boost::optional<uint64_t>(0) : parser.content_length();
      const int64_t most = length ? static_cast<int64_t>(*length) : parser.chunked() ? options.max_body_bytes : 0;
      const Share share(body_bytes, most, options.max_bodies_bytes);
      if (!share) {
        co_await refuse(connection, ApiError(503, "too many large requests at once; try again later"));
        co_return;
      }
      if (!failure && !parser.chunked() && parser.get().count(http::field::transfer_encoding) != 0) {
        co_await refuse(connection, ApiError(501, "the only Transfer-Encoding understood is chunked"));
        co_return;  // nobody knows where the request ends
      }
      if (!failure && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
        http::response<http::empty_body> go_on(http::status::continue_, 11);
        co_await http::async_write(connection.stream, go_on, asio::redirect_error(asio::use_awaitable, failure));
      }
      if (!failure)
        co_await http::async_read(connection.stream, buffer, parser,
                                  asio::redirect_error(asio::use_awaitable, failure));
      if (failure) {
        const std::optional<ApiError> error = of_read(failure);
        if (error) co_await refuse(connection, *error);
        co_return;
      }
      before = State::arriving;
      if (!connection.state.compare_exchange_strong(before, State::answering)) co_return;
      const HttpRequest request = parser.release();
      keep = co_await answer(connection, request);
      connection.since = Steady::now();
      connection.state = State::idle;
    }
  }

  // The last answer on this connection.
  asio::awaitable<void> refuse(Connection& connection, const ApiError& error) {
    HttpResponse refusal = error_response(error);
    refusal.keep_alive(false);
    co_await send(connection, refusal);
    co_await linger(connection);
  }

  std::optional<ApiError> of_read(const Failure& failure) const {
    if (failure == http::error::body_limit)
      return ApiError(413, str("the body is over ", options.max_body_bytes, " bytes"));
    if (failure == http::error::header_limit)
      return ApiError(431, str("the header is over ", options.max_header_bytes, " bytes"));
    if (failure == beast::error::timeout || failure == http::error::end_of_stream ||
        failure == asio::error::connection_reset || failure == asio::error::eof ||
        failure == asio::error::operation_aborted || failure == http::error::partial_message ||
        failure == asio::error::bad_descriptor || failure == asio::error::broken_pipe)
      return {};
    return ApiError(400, str("no HTTP that can be read: ", failure.message()));
  }

  // Lets the client read an answer before it has sent all it wanted to.
  asio::awaitable<void> linger(Connection& connection) {
    Failure failure;
    connection.stream.socket().shutdown(tcp::socket::shutdown_send, failure);
    connection.stream.expires_after(std::chrono::seconds(2));
    std::array<char, 16384> waste;
    for (int64_t read = 0; !failure && read < options.max_body_bytes;)
      read += static_cast<int64_t>(co_await connection.stream.async_read_some(
          asio::buffer(waste), asio::redirect_error(asio::use_awaitable, failure)));
  }

  HttpResponse json_response(int status, std::string body, const char* type = "application/json") const {
    HttpResponse response(static_cast<http::status>(status), 11);
    response.set(http::field::content_type, type);
    response.body() = std::move(body);
    if (status == 401) response.set(http::field::www_authenticate, "Bearer");
    if (status == 429 || status == 503) response.set(http::field::retry_after, "1");
    response.prepare_payload();
    return response;
  }
  HttpResponse error_response(const ApiError& error) const {
    return json_response(error.status, error_body(error) + "\n");
  }

  asio::awaitable<void> send(Connection& connection, HttpResponse& response) {
    metrics.answered(response.result_int());
    connection.stream.expires_after(options.io_timeout);
    Failure failure;
    co_await http::async_write(connection.stream, response, asio::redirect_error(asio::use_awaitable, failure));
    if (failure) throw Gone();
  }

  bool authorised(const HttpRequest& request) const {
    if (options.api_key.empty()) return true;
    const std::string given(request[http::field::authorization]), wanted = "Bearer " + options.api_key;
    return given.size() == wanted.size() && CRYPTO_memcmp(given.data(), wanted.data(), wanted.size()) == 0;
  }

  // Whether the connection goes on.
  asio::awaitable<bool> answer(Connection& connection, const HttpRequest& request) {
    const bool keep = request.keep_alive() && !draining;
    std::string path(request.target());
    path = path.substr(0, path.find('?'));
    const bool chat = path == "/v1/chat/completions";
    std::optional<HttpResponse> response;
    std::optional<ApiError> error;
    try {
      if (chat || path == "/v1/completions") {
        check(request, http::verb::post, true);
        co_return co_await complete(connection, request, chat) && keep;
      }
      if (path == "/tokenize")
        response = co_await beside(computing, [&] { return simple(request, path); });
      else if (path == "/flush_cache")
        response = co_await beside(flushing, [&] { return simple(request, path); });
      else
        response = simple(request, path);
    } catch (const ApiError& refused) {
      error = refused;
    } catch (const Error& refused) {
      error = ApiError(400, refused.what());
    } catch (const std::exception& failed) {
      std::cerr << "hypic: " << path << ": " << failed.what() << std::endl;
      error = ApiError(500, "internal error; the server's log says more");
    }
    if (connection.streaming) throw Gone();
    if (error) response = error_response(*error);
    response->version(request.version());
    response->keep_alive(keep);
    if (request.method() == http::verb::head) response->body().clear();  // its length stays
    co_await send(connection, *response);
    co_return keep;
  }

  void check(const HttpRequest& request, http::verb verb, bool guarded) const {
    if (guarded && !authorised(request))
      throw ApiError(401, "the API key is missing or wrong; send it as Authorization: Bearer KEY");
    const bool head = verb == http::verb::get && request.method() == http::verb::head;
    if (request.method() != verb && !head)
      throw ApiError(405, str("the method must be ", std::string(http::to_string(verb))));
  }

  HttpResponse simple(const HttpRequest& request, const std::string& path) {
    using nlohmann::ordered_json;
    const auto get = http::verb::get, post = http::verb::post;
    if (path == "/livez") {
      check(request, get, false);
      return json_response(200, "{\"status\":\"alive\"}\n");
    }
    if (path == "/health") {
      check(request, get, false);
      const Load load = handler.load();
      if (load.draining) return json_response(503, "{\"status\":\"draining\"}\n");
      if (load.ready()) return json_response(200, "{\"status\":\"ready\"}\n");
      return json_response(503, ordered_json{{"status", "not ready"}, {"reason", load.why_not_ready}}.dump() + "\n");
    }
    if (path == "/metrics") {
      check(request, get, false);
      return json_response(200, metrics.text(handler.load()), "text/plain; version=0.0.4");
    }
    if (path == "/v1/models") {
      check(request, get, true);
      const ordered_json model = {{"id", options.model},
                                  {"object", "model"},
                                  {"created", started},
                                  {"owned_by", "hypic"},
                                  {"max_model_len", options.max_positions}};
      return json_response(200, ordered_json{{"object", "list"}, {"data", ordered_json::array({model})}}.dump());
    }
    if (path == "/server_info") {
      check(request, get, true);
      ordered_json info = ordered_json::parse(options.info);
      const Load load = handler.load();
      info["running"] = load.running;
      info["waiting"] = load.waiting;
      return json_response(200, info.dump());
    }
    if (path == "/flush_cache") {
      check(request, post, true);
      handler.flush();
      return json_response(200, "{\"status\":\"flushed\"}\n");
    }
    if (path == "/tokenize") {
      check(request, post, true);
      const std::vector<std::string> texts = parse_tokenize(request.body(), options.api);
      ordered_json segments = ordered_json::array();
      Tokens all;
      for (const std::string& text : texts) {
        const Tokens tokens = encode(text);
        all.insert(all.end(), tokens.begin(), tokens.end());
        segments.push_back(tokens);
      }
      ordered_json body = {{"count", all.size()}, {"max_model_len", options.max_positions}, {"tokens", all}};
      if (texts.size() > 1) body["segments"] = std::move(segments);
      return json_response(200, body.dump());
    }
    throw ApiError(404, str("there is no ", path.substr(0, 100),
                            "; there are /v1/completions, /v1/chat/completions, /v1/models, /health, /livez, /metrics, "
                            "/flush_cache, /server_info, /tokenize"));
  }

  Tokens encode(const std::string& text) const {
    if (!options.tokenizer)
      throw ApiError(400, "this model has no tokenizer: send token ids, as in \"prompt\": [1, 2, 3]", "prompt");
    return options.tokenizer->encode(text);
  }

  Request engine_request(const ApiRequest& asked) const {
    if (!asked.model.empty() && asked.model != options.model)
      throw ApiError(404, str("the model ", shown(asked.model), " is not served here; ", options.model, " is"),
                     "model");
    if (!asked.stop.empty() && !options.tokenizer)
      throw ApiError(400, "this model has no tokenizer: use stop_token_ids", "stop");
    Request request;
    int64_t prompt = 0;
    for (const auto& segment : asked.segments) {
      const auto* text = std::get_if<std::string>(&segment);
      Tokens tokens = text ? encode(*text) : std::get<Tokens>(segment);
      for (const int32_t token : tokens)
        if (token >= options.vocabulary)
          throw ApiError(400, str("token ", token, " is outside the vocabulary of ", options.vocabulary), "prompt");
      prompt += static_cast<int64_t>(tokens.size());
      if (!tokens.empty()) request.segments.push_back(std::move(tokens));
    }
    if (prompt == 0) throw ApiError(400, "the prompt holds no token", "prompt");
    const int64_t room = options.max_positions - prompt;
    constexpr int64_t kUnasked = 256;
    const int64_t wanted =
        asked.max_tokens.value_or(std::min({kUnasked, options.max_new_tokens, std::max<int64_t>(room, 1)}));
    if (wanted > options.max_new_tokens)
      throw ApiError(400, str("max_tokens: at most ", options.max_new_tokens, ", is ", wanted), "max_tokens");
    if (wanted > room)
      throw ApiError(400,
                     str("the prompt of ", prompt, " tokens and ", wanted, " new ones exceed the model's ",
                         options.max_positions, " positions"),
                     "max_tokens");
    request.max_tokens = static_cast<int32_t>(wanted);
    request.sampling = asked.sampling;
    if (!asked.seeded) request.sampling.seed = new_seed();
    request.logits = false;
    request.stop = asked.stop_ids;
    if (!asked.ignore_eos)
      request.stop.insert(request.stop.end(), options.end_tokens.begin(), options.end_tokens.end());
    return request;
  }

  // A request with the handler; cancelled if it has not ended.
  struct Asked {
    Asked(RequestHandler& handler, Request request, const asio::any_io_executor& executor)
        : handler(handler), mailbox(std::make_shared<Mailbox>(executor)) {
      id = handler.submit(std::move(request), [box = mailbox](const Notice& event) { box->put(event); });
    }
    ~Asked() {
      if (id != 0 && !ended) handler.cancel(id);
      mailbox->close();
    }
    Asked(const Asked&) = delete;
    Asked& operator=(const Asked&) = delete;

    RequestHandler& handler;
    const std::shared_ptr<Mailbox> mailbox;
    uint64_t id = 0;
    bool ended = false;
  };

  // At least one. ApiError 504 behind the deadline.
  asio::awaitable<std::vector<Notice>> next(Connection& connection, Asked& asked, Steady::time_point deadline) {
    constexpr std::chrono::milliseconds kLook(250);  // for a client that has gone
    for (;;) {
      std::vector<Notice> events = asked.mailbox->take();
      if (!events.empty()) {
        asked.ended = events.back().last;
        co_return events;
      }
      const auto now = Steady::now();
      if (now >= deadline) throw ApiError(504, str("no answer within ", options.request_timeout.count(), " ms"));
      if (peer_is_gone(connection.stream)) throw Gone();
      asio::steady_timer& timer = asked.mailbox->timer();
      timer.expires_at(std::min(deadline, now + kLook));
      Failure woken;
      co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    }
  }

  // Writes the events of a stream, as chunks where the client's HTTP has them.
  class Events {
   public:
    Events(Impl& server, Connection& connection, const HttpRequest& request, bool keep)
        : server_(server),
          connection_(connection),
          stream_(connection.stream),
          chunked_(request.version() >= 11),
          head_(http::status::ok, request.version()) {
      head_.set(http::field::content_type, "text/event-stream");
      head_.set(http::field::cache_control, "no-cache");
      head_.keep_alive(keep && chunked_);
      if (chunked_) head_.chunked(true);
    }
    asio::awaitable<void> begin() {
      server_.metrics.answered(200);
      connection_.streaming = true;
      http::response_serializer<http::empty_body> serializer(head_);
      stream_.expires_after(server_.options.io_timeout);
      Failure failure;
      co_await http::async_write_header(stream_, serializer, asio::redirect_error(asio::use_awaitable, failure));
      if (failure) throw Gone();
    }
    bool begun() const { return connection_.streaming; }
    asio::awaitable<void> write(const std::string& events) {
      stream_.expires_after(server_.options.io_timeout);
      Failure failure;
      const auto buffer = asio::buffer(events);
      if (chunked_) {
        const auto chunk = http::make_chunk(buffer);
        co_await asio::async_write(stream_, chunk, asio::redirect_error(asio::use_awaitable, failure));
      } else {
        co_await asio::async_write(stream_, buffer, asio::redirect_error(asio::use_awaitable, failure));
      }
      if (failure) throw Gone();
    }
    asio::awaitable<void> end() {
      if (chunked_) {
        Failure failure;
        const auto last = http::make_chunk_last();
        co_await asio::async_write(stream_, last, asio::redirect_error(asio::use_awaitable, failure));
        if (failure) throw Gone();
      }
      connection_.streaming = false;
    }
    bool keeps() const { return chunked_; }  // the connection can go on

   private:
    Impl& server_;
    Connection& connection_;
    beast::tcp_stream& stream_;
    const bool chunked_;
    http::response<http::empty_body> head_;
  };

  asio::awaitable<bool> complete(Connection& connection, const HttpRequest& request, bool chat) {
    const auto deadline = Steady::now() + options.request_timeout;
    const bool keep = request.keep_alive() && !draining;
    ApiRequest wanted;
    Request prompt = co_await beside(computing, [&] {
      wanted = chat ? parse_chat(request.body(), options.api) : parse_completion(request.body(), options.api);
      return engine_request(wanted);
    });
    Usage usage;
    for (const Tokens& segment : prompt.segments) usage.prompt += static_cast<int64_t>(segment.size());
    const Tokens stops = prompt.stop;
    const bool with_ids = wanted.token_ids || !options.tokenizer;
    Answer answer{.chat = chat,
                  .id = new_id(chat ? "chatcmpl-" : "cmpl-"),
                  .model = options.model,
                  .created = std::time(nullptr)};
    if (with_ids) answer.token_ids.emplace();
    std::optional<TextStream> text;
    if (options.tokenizer) text.emplace(*options.tokenizer, wanted.stop);
    if (const Load load = handler.load(); !load.ready())
      throw ApiError(503, str("not ready: ", load.why_not_ready, "; /health says when it is"));
    Asked asked(handler, std::move(prompt), connection.stream.get_executor());
    if (asked.id == 0)
      throw draining ? ApiError(503, "the server is shutting down")
                     : ApiError(429, "too many requests are waiting; try again later");

    Events events(*this, connection, request, keep);
    Tokens all;
    std::string whole;
    std::optional<ApiError> failed;
    bool first = true;
    while (answer.finish_reason.empty()) {
      std::vector<Notice> come;
      try {
        come = co_await next(connection, asked, deadline);
        if (come.front().kind == Notice::Kind::failed) throw ApiError(come.front().status, come.front().error);
      } catch (const ApiError& error) {
        if (!events.begun()) throw;
        failed = error;
      }
      if (failed) break;
      std::string out;
      for (const Notice& event : come) {
        if (event.kind == Notice::Kind::failed) {
          failed = ApiError(event.status, event.error);
          break;
        }
        Answer part = answer;
        usage.reused = event.reused;
        ++usage.answer;
        const bool stop = std::find(stops.begin(), stops.end(), event.token) != stops.end();
        if (text && !stop) part.text = text->add(event.token);
        if (text && (event.last || stop)) part.text += text->finish();
        if (stop || (text && text->stopped()))
          part.finish_reason = "stop";
        else if (event.last)
          part.finish_reason = "length";
        if (with_ids) part.token_ids = Tokens{event.token};
        answer.finish_reason = part.finish_reason;
        if (wanted.stream) {
          if (!part.text.empty() || with_ids || !part.finish_reason.empty()) {
            out += "data: " + chunk_body(part, first) + "\n\n";
            first = false;
          }
        } else {
          whole += part.text;
          all.push_back(event.token);
        }
        if (!answer.finish_reason.empty()) break;
      }
      if (failed && !events.begun() && out.empty()) throw *failed;
      if (!wanted.stream) {
        if (failed) throw *failed;
        continue;
      }
      if (!events.begun()) co_await events.begin();
      if (!out.empty()) co_await events.write(out);
      if (failed) break;
    }
    if (!wanted.stream) {
      answer.text = std::move(whole);
      if (with_ids) answer.token_ids = std::move(all);
      HttpResponse response = json_response(200, answer_body(answer, usage) + "\n");
      response.version(request.version());
      response.keep_alive(keep);
      co_await send(connection, response);
      co_return keep;
    }
    std::string end;
    if (failed)
      end = "data: " + error_body(*failed) + "\n\n";
    else if (wanted.include_usage)
      end = "data: " + usage_chunk_body(answer, usage) + "\n\n";
    end += "data: [DONE]\n\n";
    co_await events.write(end);
    co_await events.end();
    co_return events.keeps();
  }

  RequestHandler& handler;
  Metrics& metrics;
  const ServerOptions options;
  const int64_t started = std::time(nullptr);
  asio::io_context io;
  asio::thread_pool computing{static_cast<size_t>(std::max(options.threads, 1))}, flushing{1};
  tcp::acceptor acceptor;
  uint16_t port = 0;
  std::atomic<bool> draining = false;
  std::mutex mutex;  // of what follows
  std::condition_variable left;
  std::list<std::shared_ptr<Connection>> connections;
  std::atomic<int64_t> body_bytes = 0;  // of requests that arrive or are being answered
  std::vector<std::thread> threads;
};

HttpServer::HttpServer(RequestHandler& handler, Metrics& metrics, ServerOptions options)
    : impl_(std::make_unique<Impl>(handler, metrics, std::move(options))) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return impl_->port; }
bool HttpServer::drain(std::chrono::milliseconds grace) { return impl_->drain(grace); }

}  // namespace hypic
