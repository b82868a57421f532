#include "harness/load/mock_server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/random/gamma_distribution.hpp>
#include <boost/random/mersenne_twister.hpp>
#include <boost/random/uniform_real_distribution.hpp>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "harness/load/clock.h"

namespace hypic::load {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

std::string chunk(const std::string& data) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", data.size());
  return size + data + "\r\n";
}

int64_t words(std::string_view text) {
  int64_t n = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    n += !space && !inside;
    inside = !space;
  }
  return n;
}

}  // namespace

struct MockServer::Impl {
  class Session;

  explicit Impl(const MockOptions& options) : options(options), bits(options.seed), acceptor(context) {
    const tcp::endpoint endpoint(asio::ip::address_v4::loopback(), options.port);
    try {
      acceptor.open(endpoint.protocol());
      acceptor.set_option(tcp::acceptor::reuse_address(true));
      acceptor.bind(endpoint);
      acceptor.listen();
    } catch (const boost::system::system_error& error) {
      fail("127.0.0.1:", options.port, ": ", error.code().message());
    }
    port = acceptor.local_endpoint().port();
    accept();
    thread = std::thread([this] { context.run(); });
  }

  ~Impl() {
    context.stop();
    thread.join();
  }

  void accept();
  void take(const std::shared_ptr<Session>& session);
  void leave();

  double draw(double mean) {
    if (options.cv == 0 || mean == 0) return mean;
    const double shape = 1 / (options.cv * options.cv);
    return boost::random::gamma_distribution<double>(shape, mean / shape)(bits);
  }
  bool happens(double share) { return boost::random::uniform_real_distribution<double>(0, 1)(bits) < share; }

  // Of a prompt: all tokens, and those of passages that came before. Remembers its passages.
  std::pair<int64_t, int64_t> count(const nlohmann::json& prompt) {
    int64_t all = 0, cached = 0;
    const auto passage = [&](const std::string& key, int64_t tokens) {
      all += tokens;
      if (!seen.insert(std::hash<std::string>()(key)).second) cached += tokens;
    };
    if (prompt.is_array()) {
      passage(prompt.dump(), prompt.size());
    } else if (prompt.is_string()) {
      const std::string& text = prompt.get_ref<const std::string&>();
      const std::string& separator = options.separator;
      for (size_t at = 0;;) {
        const size_t end = separator.empty() ? text.npos : text.find(separator, at);
        const std::string part = text.substr(at, end == text.npos ? end : end - at);
        passage(part, words(part));
        if (end == text.npos) break;
        at = end + separator.size();
      }
    }
    return {all, cached};
  }

  MockOptions options;
  boost::random::mt19937_64 bits;
  asio::io_context context{1};
  tcp::acceptor acceptor;
  uint16_t port = 0;
  std::atomic<int64_t> requests = 0;
  int64_t busy = 0;
  std::deque<std::shared_ptr<Session>> waiting;
  std::unordered_set<size_t> seen;
  std::thread thread;
};

class MockServer::Impl::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Impl& server, tcp::socket socket) : server_(server), socket_(std::move(socket)), timer_(server.context) {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
  }

  void read() {
    parser_.emplace();
    parser_->body_limit(std::numeric_limits<uint64_t>::max());  // Boost 1.74 takes none for 0
    http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t) {
      if (!error) self->answer();
    });
  }

  // Has its turn: the first token comes after a while.
  void serve() {
    const double saved = prompt_tokens_ == 0 ? 0 : double(cached_tokens_) / double(prompt_tokens_);
    const double ttft = server_.options.ttft * (1 - saved * (1 - 1 / server_.options.cached_speed));
    sent_ = 0;
    due_ = Clock::now();
    token_after(server_.draw(ttft));
  }

 private:
  void answer() {
    const std::string target(parser_->get().target());
    if (target == "/flush_cache") {
      server_.seen.clear();
      return plain("200 OK", "text/plain", "flushed\n");
    }
    if (target == "/health") return plain("200 OK", "text/plain", "");
    if (target == "/v1/models")
      return plain("200 OK", "application/json", R"({"object":"list","data":[{"id":"mock"}]})");
    generate_ = target == "/generate";
    if (!generate_ && target != "/v1/completions") return plain("404 Not Found", "text/plain", "no such path\n");
    ++server_.requests;
    const nlohmann::json request = nlohmann::json::parse(parser_->get().body(), nullptr, false);
    if (!request.is_object()) return plain("400 Bad Request", "text/plain", "not a JSON object\n");
    if (server_.happens(server_.options.error_share)) return plain("503 Service Unavailable", "text/plain", "mock\n");
    if (server_.happens(server_.options.hang_share)) return hang();
    const nlohmann::json none;
    const auto field = [&](const nlohmann::json& from, const char* key) -> const nlohmann::json& {
      const auto it = from.find(key);
      return it == from.end() ? none : *it;
    };
    const nlohmann::json& sampling = field(request, "sampling_params");
    const nlohmann::json& tokens = !generate_             ? field(request, "max_tokens")
                                   : sampling.is_object() ? field(sampling, "max_new_tokens")
                                                          : none;
    tokens_ = tokens.is_number_integer() ? std::clamp<int64_t>(tokens, 1, 1 << 20) : 16;
    const char* prompt = !generate_ ? "prompt" : request.contains("text") ? "text" : "input_ids";
    std::tie(prompt_tokens_, cached_tokens_) = server_.count(field(request, prompt));
    server_.take(shared_from_this());
  }

  void hang() {  // until the other side has had enough
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code) {});
  }

  void plain(const std::string& status, const std::string& type, const std::string& body) {
    out_ = "HTTP/1.1 " + status + "\r\nContent-Type: " + type + "\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
    write([this] { read(); });
  }

  template <class Then>
  void write(Then then) {
    asio::async_write(socket_, asio::buffer(out_), [self = shared_from_this(), then](error_code error, size_t) {
      if (error) return self->gone();
      then();
    });
  }

  void token_after(double wait) {
    due_ += seconds(wait);
    timer_.expires_at(due_);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error) self->token();
    });
  }

  void token() {
    const bool last = ++sent_ == tokens_;
    out_.clear();
    if (sent_ == 1) out_ = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    if (generate_) {
      text_ = sent_ == 1 ? " a" : text_ + " a";
      nlohmann::json event = {{"text", text_}, {"meta_info", {{"finish_reason", nullptr}}}};
      if (last) event["meta_info"]["finish_reason"] = {{"type", "length"}};
      if (server_.options.usage)
        event["meta_info"].update(
            {{"prompt_tokens", prompt_tokens_}, {"completion_tokens", sent_}, {"cached_tokens", cached_tokens_}});
      out_ += chunk("data: " + event.dump() + "\n\n");
    } else {
      out_ += chunk(last ? "data: {\"choices\":[{\"index\":0,\"text\":\" a\",\"finish_reason\":\"length\"}]}\n\n"
                         : "data: {\"choices\":[{\"index\":0,\"text\":\" a\",\"finish_reason\":null}]}\n\n");
      if (last && server_.options.usage)
        out_ += chunk(str("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":", prompt_tokens_,
                          ",\"completion_tokens\":", tokens_,
                          ",\"prompt_tokens_details\":{\"cached_tokens\":", cached_tokens_, "}}}\n\n"));
    }
    if (!last) return write([this] { token_after(server_.draw(server_.options.itl)); });
    out_ += chunk("data: [DONE]\n\n") + "0\r\n\r\n";
    write([this] {
      server_.leave();
      read();
    });
  }

  void gone() {
    if (sent_ > 0 && sent_ <= tokens_) server_.leave();
    sent_ = tokens_ + 1;
  }

  Impl& server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  boost::optional<http::request_parser<http::string_body>> parser_;
  std::string out_, text_;
  bool generate_ = false;
  int64_t tokens_ = 0, sent_ = 0, prompt_tokens_ = 0, cached_tokens_ = 0;
  Clock::time_point due_;
};

void MockServer::Impl::accept() {
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) std::make_shared<Session>(*this, std::move(socket))->read();
    accept();
  });
}

void MockServer::Impl::take(const std::shared_ptr<Session>& session) {
  if (options.capacity > 0 && busy == options.capacity) {
    waiting.push_back(session);
    return;
  }
  ++busy;
  session->serve();
}

void MockServer::Impl::leave() {
  --busy;
  if (waiting.empty()) return;
  const std::shared_ptr<Session> next = std::move(waiting.front());
  waiting.pop_front();
  ++busy;
  next->serve();
}

MockServer::MockServer(const MockOptions& options) : impl_(std::make_unique<Impl>(options)) {}
MockServer::~MockServer() = default;
uint16_t MockServer::port() const { return impl_->port; }
std::string MockServer::url() const { return "http://127.0.0.1:" + std::to_string(impl_->port); }
int64_t MockServer::requests() const { return impl_->requests; }

}  // namespace hypic::load
