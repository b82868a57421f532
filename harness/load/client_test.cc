// The client against the mock server, over real sockets. Nothing here asks how long anything took.
#include "harness/load/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "core/check.h"
#include "harness/load/mock_server.h"
#include "harness/load/schedule.h"

namespace hypic::load {
namespace {

std::vector<Record> load(const MockServer& server, Api api, int64_t requests, ClientOptions options = {},
                         int64_t tokens = 3, const RecordFn& finished = {}) {
  options.url = parse_url(server.url());
  options.url.path = api == Api::openai ? "/v1/completions" : "/generate";
  options.api = api;
  const std::vector<Prompt> prompts =
      make_prompts(Shape{.segments = 2, .tokens = 16, .question = 8, .output_tokens = tokens}, 0, requests);
  const Bodies bodies(prompts, {.api = api});
  return run_load(
      options, schedule({.arrivals = Arrivals::constant, .rate = 2000}, requests),
      [&](int64_t i) { return bodies.body(i); }, finished);
}

TEST(Client, BothApisTokenByToken) {
  for (const Api api : {Api::openai, Api::generate}) {
    MockServer server({.ttft = 0.002, .itl = 0.001});
    std::set<int64_t> seen;
    const std::vector<Record> records =
        load(server, api, 50, {.threads = 2}, 3, [&](const Record& record) { seen.insert(record.index); });
    ASSERT_EQ(records.size(), 50);
    EXPECT_EQ(seen.size(), 50);
    EXPECT_EQ(server.requests(), 50);
    for (const Record& record : records) {
      ASSERT_EQ(record.error, "");
      EXPECT_GE(record.tokens_at.size(), 1);
      EXPECT_EQ(record.output_tokens, 3);
      EXPECT_EQ(record.prompt_tokens, 12 + 12 + 6);  // words
      EXPECT_EQ(record.cached_tokens, 0);
      EXPECT_LE(record.scheduled, record.released);
      EXPECT_LE(record.released, record.sent);
      EXPECT_LE(record.sent, record.tokens_at.front());
      EXPECT_LE(record.tokens_at.back(), record.ended);
    }
  }
}

TEST(Client, ACapMakesRequestsWait) {
  MockServer server({.ttft = 0.005});
  for (const Record& record : load(server, Api::openai, 12, {.max_concurrency = 2, .threads = 3}, 1))
    EXPECT_EQ(record.error, "");
}

TEST(Client, CachedUntilFlushed) {
  MockServer server({.ttft = 0});
  load(server, Api::openai, 5);
  for (const Record& record : load(server, Api::openai, 5)) EXPECT_EQ(record.cached_tokens, record.prompt_tokens);
  EXPECT_EQ(post(parse_url(server.url()), "/flush_cache").status, 200);
  for (const Record& record : load(server, Api::openai, 5)) EXPECT_EQ(record.cached_tokens, 0);
}

TEST(Client, ErrorsAndTimeoutsAreKept) {
  MockServer refusing({.error_share = 1}), hanging({.hang_share = 1});
  for (const Record& record : load(refusing, Api::openai, 5)) EXPECT_EQ(record.error, "HTTP 503: mock\n");
  for (const Record& record : load(hanging, Api::openai, 5, {.timeout = 0.05})) EXPECT_EQ(record.error, "timed out");
  std::string url;
  {
    MockServer gone({});
    url = gone.url();
  }
  ClientOptions options{.url = parse_url(url + "/generate")};
  const auto records = run_load(options, {0}, [](int64_t) { return "{}"; });
  EXPECT_TRUE(records[0].error.starts_with("cannot connect: ")) << records[0].error;
  EXPECT_THROW(post(options.url, "/flush_cache"), Error);
}

TEST(Client, AnAnswerOfAnotherLengthIsAnError) {
  MockServer server({.ttft = 0, .itl = 0}), silent({.ttft = 0, .itl = 0, .usage = false});
  ClientOptions options;
  options.output_tokens = [](int64_t i) { return i == 1 ? 4 : 3; };
  for (const Api api : {Api::openai, Api::generate})
    for (const Record& record : load(server, api, 3, options))
      EXPECT_EQ(record.error,
                record.index == 1 ? "the server counts 3 tokens in its answer, but 4 were asked for" : "");
  for (const Record& record : load(silent, Api::openai, 3, options)) EXPECT_EQ(record.error, "");
}

TEST(Client, AStoppedRunEnds) {
  MockServer server({.hang_share = 1});
  const std::atomic<bool> stop = true;
  for (const Record& record : load(server, Api::openai, 2000, {.stop = &stop})) EXPECT_NE(record.error, "");
}

TEST(Client, Urls) {
  const Url url = parse_url("http://localhost:8000/v1/completions");
  EXPECT_EQ(url.host + "|" + url.port + "|" + url.path, "localhost|8000|/v1/completions");
  const Url six = parse_url("http://[::1]:81/");
  EXPECT_EQ(six.host + "|" + six.port + "|" + six.path, "::1|81|");
  EXPECT_EQ(parse_url("http://a").port, "80");
  for (const char* bad : {"https://a", "a:80", "http://", "http://a:", "http://a:x", "http://a:99999", "http://[::1"})
    EXPECT_THROW(parse_url(bad), Error) << bad;
}

}  // namespace
}  // namespace hypic::load
