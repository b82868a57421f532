#include "harness/load/client.h"

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/check.h"
#include "harness/load/clock.h"
#include "harness/load/stream.h"

namespace hypic::load {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kTick = std::chrono::milliseconds(20);  // how soon a stop is seen
constexpr size_t kShownBytes = 200;                    // of an answer that is none

struct Sink {
  AnswerReader* reader;
  double at;          // when the bytes at hand were read
  std::string start;  // of the body
};

// A body that goes to the reader as it is parsed.
struct SinkBody {
  using value_type = Sink;
  struct reader {
    template <bool isRequest, class Fields>
    reader(http::header<isRequest, Fields>&, value_type& sink) : sink_(sink) {}
    void init(const boost::optional<uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      size_t all = 0;
      for (auto it = asio::buffer_sequence_begin(buffers); it != asio::buffer_sequence_end(buffers); ++it) {
        const asio::const_buffer buffer = *it;
        const std::string_view bytes(static_cast<const char*>(buffer.data()), buffer.size());
        if (sink_.start.size() < kShownBytes) sink_.start += bytes.substr(0, kShownBytes - sink_.start.size());
        sink_.reader->feed(bytes, sink_.at);
        all += bytes.size();
      }
      return all;
    }
    void finish(error_code& error) { error = {}; }
    Sink& sink_;
  };
};

struct Shared {
  const ClientOptions& options;
  const std::vector<double>& schedule;
  const std::function<std::string(int64_t)>& body;
  const RecordFn& finished;
  std::vector<Record>& records;
  tcp::resolver::results_type endpoints;
  std::string head;  // of a request, up to the number of its bytes
  Clock::time_point start;
  std::mutex mutex;  // of `finished`
  double now() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
};

class Lane;

// One socket; one request at a time.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::io_context& context, Lane& lane, const Shared& shared)
      : socket_(context), timer_(context), lane_(lane), shared_(shared), bytes_(1 << 16) {}

  void begin(Record& record) {
    record_ = &record;
    ++turn_;
    retried_ = received_ = false;
    cut_ = nullptr;
    body_ = shared_.body(record.index);
    head_ = shared_.head + std::to_string(body_.size()) + "\r\n\r\n";
    timer_.expires_at(shared_.start + seconds(record.scheduled + shared_.options.timeout));
    timer_.async_wait([self = shared_from_this(), turn = turn_](error_code error) {
      if (!error && turn == self->turn_ && self->record_) self->cut("timed out");
    });
    socket_.is_open() ? write() : connect();
  }

  // Ends the request at hand with this error.
  void cut(const char* why) {
    cut_ = why;
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  void connect() {
    asio::async_connect(socket_, shared_.endpoints,
                        [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                          if (error || self->cut_) return self->finish("cannot connect: " + error.message());
                          error_code ignored;
                          self->socket_.set_option(tcp::no_delay(true), ignored);
                          self->fresh_ = true;
                          self->write();
                        });
  }

  void write() {
    reader_.emplace(shared_.options.api);
    parser_.emplace();
    parser_->eager(true);
    parser_->body_limit(std::numeric_limits<uint64_t>::max());  // Boost 1.74 takes none for 0
    parser_->get().body() = {&*reader_, 0, {}};
    buffer_.clear();
    const std::array<asio::const_buffer, 2> parts = {asio::buffer(head_), asio::buffer(body_)};
    asio::async_write(socket_, parts, [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->broken(error);
      self->record_->sent = self->shared_.now();
      self->read();
    });
  }

  void read() {
    socket_.async_read_some(asio::buffer(bytes_), [self = shared_from_this()](error_code error, size_t count) {
      const double at = self->shared_.now();  // before anything is parsed
      self->got(error, count, at);
    });
  }

  void got(error_code error, size_t count, double at) {
    if (error && error != asio::error::eof) return broken(error);
    if (error == asio::error::eof && !received_) return broken(error);
    received_ = true;
    parser_->get().body().at = at;
    error_code bad;
    if (error) {
      parser_->put_eof(bad);
      if (bad || !parser_->is_done()) return finish("the connection closed before the answer ended");
    } else {
      buffer_.commit(asio::buffer_copy(buffer_.prepare(count), asio::buffer(bytes_, count)));
      buffer_.consume(parser_->put(buffer_.data(), bad));
      if (bad && bad != http::error::need_more) return finish("not HTTP: " + bad.message());
    }
    if (!parser_->is_done()) return read();
    const Answer& answer = reader_->answer();
    const int status = parser_->get().result_int();
    const std::string& start = parser_->get().body().start;
    record_->tokens_at = answer.tokens_at;
    record_->prompt_tokens = answer.prompt_tokens;
    record_->output_tokens = answer.output_tokens;
    record_->cached_tokens = answer.cached_tokens;
    if (status != 200) return finish(str("HTTP ", status, start.empty() ? "" : ": ", start));
    if (!answer.error.empty()) return finish(answer.error);
    if (answer.tokens_at.empty()) return finish("no token came: " + start);
    if (!answer.done) return finish("the stream ended without [DONE]");
    const auto& asked = shared_.options.output_tokens;
    if (const int64_t came = answer.output_tokens, want = asked ? asked(record_->index) : came;
        came >= 0 && came != want)
      return finish(str("the server counts ", came, " tokens in its answer, but ", want, " were asked for"));
    finish("");
  }

  // A server may close a connection that it kept; then the request was not looked at, and goes out once more.
  void broken(error_code error) {
    const bool again = !fresh_ && !received_ && !retried_ && !cut_;
    error_code ignored;
    socket_.close(ignored);
    if (!again) return finish(error == asio::error::eof ? "the connection closed without an answer" : error.message());
    retried_ = true;
    connect();
  }

  void finish(const std::string& error);

  tcp::socket socket_;
  asio::steady_timer timer_;
  Lane& lane_;
  const Shared& shared_;
  Record* record_ = nullptr;
  uint64_t turn_ = 0;
  const char* cut_ = nullptr;
  bool fresh_ = true, retried_ = false, received_ = false;  // fresh: no request has been answered on the socket
  std::string head_, body_;
  std::vector<char> bytes_;
  boost::beast::flat_buffer buffer_;
  boost::optional<http::response_parser<SinkBody>> parser_;
  boost::optional<AnswerReader> reader_;
};

// The requests of one thread.
class Lane {
 public:
  Lane(Shared& shared, int64_t first, int64_t step, int64_t cap)
      : shared_(shared), timer_(context_), tick_(context_), next_(first), step_(step), cap_(cap) {
    const int64_t all = shared.schedule.size();
    left_ = first < all ? (all - first + step - 1) / step : 0;
  }

  void run() {
    if (left_ == 0) return;
    if (shared_.options.stop) watch();
    arm();
    context_.run();
  }

  void ended(Record& record, std::shared_ptr<Connection> connection, bool reusable) {
    record.ended = shared_.now();
    active_.erase(std::find(active_.begin(), active_.end(), connection));
    if (reusable && !stopped_) idle_.push_back(std::move(connection));
    done(record);
    if (!waiting_.empty()) {
      Record& next = *waiting_.front();
      waiting_.pop_front();
      start(next);
    }
  }

 private:
  void arm() {
    if (next_ >= static_cast<int64_t>(shared_.schedule.size()) || stopped_) return;
    timer_.expires_at(shared_.start + seconds(shared_.schedule[next_]));
    timer_.async_wait([this](error_code error) {
      if (error) return;
      while (next_ < static_cast<int64_t>(shared_.schedule.size()) && shared_.schedule[next_] <= shared_.now()) {
        Record& record = shared_.records[next_];
        record.released = shared_.now();
        next_ += step_;
        if (cap_ == 0 || static_cast<int64_t>(active_.size()) < cap_)
          start(record);
        else
          waiting_.push_back(&record);
      }
      arm();
    });
  }

  void start(Record& record) {
    std::shared_ptr<Connection> connection;
    if (idle_.empty()) {
      connection = std::make_shared<Connection>(context_, *this, shared_);
    } else {
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    active_.push_back(connection);
    connection->begin(record);
  }

  void done(const Record& record) {
    if (shared_.finished && record.released >= 0) {
      const std::lock_guard lock(shared_.mutex);
      shared_.finished(record);
    }
    if (--left_ == 0) {
      tick_.cancel();
      idle_.clear();
    }
  }

  void watch() {
    tick_.expires_after(kTick);
    tick_.async_wait([this](error_code error) {
      if (error || left_ == 0) return;  // it may have expired just before it was cancelled
      if (!*shared_.options.stop) return watch();
      stopped_ = true;
      timer_.cancel();
      for (Record* record : std::exchange(waiting_, {})) not_sent(*record);
      for (; next_ < static_cast<int64_t>(shared_.schedule.size()); next_ += step_) not_sent(shared_.records[next_]);
      for (const auto& connection : active_) connection->cut("not answered when the run was stopped");
    });
  }

  void not_sent(Record& record) {
    record.error = "not sent";
    record.released = -1;
    done(record);
  }

  Shared& shared_;
  asio::io_context context_{1};
  asio::steady_timer timer_, tick_;
  int64_t next_, step_, cap_, left_ = 0;
  bool stopped_ = false;
  std::deque<Record*> waiting_;
  std::vector<std::shared_ptr<Connection>> active_, idle_;
};

void Connection::finish(const std::string& error) {
  Record& record = *std::exchange(record_, nullptr);
  record.error = cut_ ? cut_ : error;
  timer_.cancel();
  const bool reusable = record.ok() && parser_->keep_alive() && socket_.is_open();
  if (!reusable) {
    error_code ignored;
    socket_.close(ignored);
  }
  fresh_ = false;
  lane_.ended(record, shared_from_this(), reusable);
}

tcp::resolver::results_type resolve(asio::io_context& context, const Url& url) {
  error_code error;
  const auto endpoints = tcp::resolver(context).resolve(url.host, url.port, error);
  require(!error, url.host, ":", url.port, ": ", error.message());
  return endpoints;
}

std::string host_of(const Url& url) {
  const std::string host = url.host.find(':') == url.host.npos ? url.host : "[" + url.host + "]";
  return url.port == "80" ? host : host + ":" + url.port;
}

}  // namespace

Url parse_url(const std::string& text) {
  const std::string_view scheme = "http://";
  require(text.starts_with(scheme), "must begin with http://, is \"", text, "\"");
  const size_t slash = text.find('/', scheme.size());
  const std::string place = text.substr(scheme.size(), slash == text.npos ? slash : slash - scheme.size());
  Url url{.host = place, .port = "80", .path = slash == text.npos ? "" : text.substr(slash)};
  if (url.path == "/") url.path.clear();
  size_t colon = place.rfind(':');
  if (place.starts_with('[')) {  // an IPv6 address
    const size_t close = place.find(']');
    require(close != place.npos, "has no ] after the address: \"", text, "\"");
    url.host = place.substr(1, close - 1);
    if (colon != place.npos && colon < close) colon = place.npos;
  } else if (colon != place.npos) {
    url.host = place.substr(0, colon);
  }
  if (colon != place.npos) {
    url.port = place.substr(colon + 1);
    const bool digits = !url.port.empty() && url.port.size() <= 5 &&
                        url.port.find_first_not_of("0123456789") == url.port.npos && std::stoi(url.port) <= 65535;
    require(digits, "has a bad port: \"", text, "\"");
  }
  require(!url.host.empty() && text.find_first_of(" \r\n") == text.npos, "names no host: \"", text, "\"");
  return url;
}

std::vector<Record> run_load(const ClientOptions& options, const std::vector<double>& schedule,
                             const std::function<std::string(int64_t)>& body, const RecordFn& finished) {
  HYPIC_CHECK(options.threads >= 1 && options.timeout > 0 && options.max_concurrency >= 0);
  std::vector<Record> records(schedule.size());
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].index = static_cast<int64_t>(i);
    records[i].scheduled = schedule[i];
  }
  asio::io_context resolving;
  Shared shared{options, schedule, body, finished, records, resolve(resolving, options.url), "", Clock::now()};
  shared.head =
      str("POST ", options.url.path.empty() ? "/" : options.url.path, " HTTP/1.1\r\nHost: ", host_of(options.url),
          "\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n",
          "Connection: keep-alive\r\nContent-Length: ");
  const int64_t cap = options.max_concurrency;
  const int64_t threads = cap > 0 ? std::min<int64_t>(options.threads, cap) : options.threads;
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int64_t i = 0; i < threads; ++i)
    lanes.push_back(std::make_unique<Lane>(shared, i, threads, cap == 0 ? 0 : cap / threads + (i < cap % threads)));
  shared.start = Clock::now() + std::chrono::milliseconds(20);  // all threads are up by then
  std::vector<std::thread> running;
  std::vector<std::exception_ptr> thrown(threads);
  for (int64_t i = 0; i < threads; ++i)
    running.emplace_back([&, i] {
      try {
        lanes[i]->run();
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    });
  for (std::thread& thread : running) thread.join();
  for (const std::exception_ptr& each : thrown)
    if (each) std::rethrow_exception(each);
  return records;
}

namespace {

Reply ask(http::verb verb, const Url& url, const std::string& path, double timeout) {
  asio::io_context context;
  const auto endpoints = resolve(context, url);
  tcp::socket socket(context);
  http::request<http::empty_body> request(verb, path, 11);
  request.set(http::field::host, host_of(url));
  request.set(http::field::connection, "close");
  if (verb == http::verb::post) request.content_length(0);
  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  error_code result = asio::error::timed_out;
  asio::async_connect(socket, endpoints, [&](error_code error, const tcp::endpoint&) {
    if (error) return void(result = error);
    http::async_write(socket, request, [&](error_code error, size_t) {
      if (error) return void(result = error);
      http::async_read(socket, buffer, parser, [&](error_code error, size_t) { result = error; });
    });
  });
  context.run_for(seconds(timeout));
  require(!result, std::string(http::to_string(verb)), " http://", host_of(url), path, ": ", result.message());
  return {static_cast<int>(parser.get().result_int()), parser.get().body()};
}

}  // namespace

Reply get(const Url& url, const std::string& path, double timeout) { return ask(http::verb::get, url, path, timeout); }
Reply post(const Url& url, const std::string& path, double timeout) {
  return ask(http::verb::post, url, path, timeout);
}

}  // namespace hypic::load
