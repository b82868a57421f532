#include "datasets/trace.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/check.h"
#include "core/temporary_folder.h"
#include "datasets/testing.h"

namespace hypic {
namespace {

std::string write(const std::string& name, const std::string& text) {
  static const TemporaryFolder folder;
  return folder.write(name, text);
}

std::string load_error(const std::string& text, const std::string& lengths = "hash_id,tokens\n") {
  try {
    load_trace(write("bad_trace.jsonl", text), write("bad_lengths.csv", lengths));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// A trace of requests written as strings: a letter is a segment of 10 tokens.
Trace trace_of(const std::vector<std::string>& requests) {
  Trace trace{"test", TraceReuse::independent, {}, 256};
  for (const std::string& request : requests) {
    TraceRequest& out = trace.requests.emplace_back();
    for (const char c : request) out.segments.push_back({uint8_t(c), 10});
  }
  return trace;
}

constexpr ReuseCosts kOneByteATen{.token_bytes = 0, .segment_bytes = 1, .snapshot_bytes = 1};

int64_t prefix_hits(const Trace& trace, std::optional<int64_t> budget = {},
                    TraceAdmission admission = TraceAdmission::first) {
  return prefix_reuse(trace, budget, admission, kOneByteATen).hit_segments;
}
int64_t independent_hits(const Trace& trace, std::optional<int64_t> budget = {},
                         TraceAdmission admission = TraceAdmission::first) {
  return independent_reuse(trace, budget, admission, kOneByteATen).hit_segments;
}

TEST(Reuse, OfPrefixesAndOfSegments) {
  const Trace trace = trace_of({"sabq", "sbar", "sabx"});
  EXPECT_EQ(prefix_hits(trace), 1 + 3);
  EXPECT_EQ(independent_hits(trace), 3 + 3);
  EXPECT_EQ(independent_reuse(trace, {}, TraceAdmission::first, kOneByteATen).hit_tokens, 60);
  EXPECT_EQ(independent_hits(trace_of({"aa"})), 0);  // a request finds what earlier ones left
  EXPECT_EQ(independent_hits(trace_of({"aa", "aa"})), 2);
}

TEST(Reuse, UnderABudget) {
  const Trace trace = trace_of({"ab", "c", "ab"});
  EXPECT_EQ(independent_hits(trace, 3), 2);
  EXPECT_EQ(independent_hits(trace, 2), 1);  // c took the place of b, the last of its request
  EXPECT_EQ(prefix_hits(trace, 2), 1);
  EXPECT_EQ(independent_hits(trace, 0), 0);
  EXPECT_EQ(independent_reuse(trace, 2, TraceAdmission::first, kOneByteATen).peak_bytes, 2);
  const ReuseCosts costs{.token_bytes = 3, .segment_bytes = 100, .snapshot_bytes = 50};
  EXPECT_EQ(independent_reuse(trace, {}, TraceAdmission::first, costs).peak_bytes, 3 * 130);
  EXPECT_EQ(prefix_reuse(trace, {}, TraceAdmission::first, costs).peak_bytes, 3 * 80);
  EXPECT_EQ(independent_reuse(trace, 129, TraceAdmission::first, costs).hit_tokens, 0);
}

TEST(Reuse, AtTheSecondTouch) {
  EXPECT_EQ(independent_hits(trace_of({"a", "a", "a"}), {}, TraceAdmission::second), 1);
  EXPECT_EQ(independent_hits(trace_of({"a", "a", "x", "y", "z", "a"}), 1), 1);
  // One-off segments do not push a out.
  EXPECT_EQ(independent_hits(trace_of({"a", "a", "x", "y", "z", "a"}), 1, TraceAdmission::second), 1);
  EXPECT_EQ(independent_hits(trace_of({"a", "a", "x", "a", "y", "a"}), 1), 1);
  EXPECT_EQ(independent_hits(trace_of({"a", "a", "x", "a", "y", "a"}), 1, TraceAdmission::second), 2);
}

RC_GTEST_PROP(Reuse, GrowsWithTheBudgetAndWithFreedomOfPlace, ()) {
  const Trace trace = trace_of(*rc::gen::container<std::vector<std::string>>(
      rc::gen::container<std::string>(rc::gen::inRange('a', 'g'))));
  const auto admission = *rc::gen::element(TraceAdmission::first, TraceAdmission::second);
  int64_t prefix = 0, independent = 0;
  for (const int64_t budget : {0, 1, 2, 3, 5, 8, 100, 1'000'000}) {
    const auto more = prefix_reuse(trace, budget, admission, kOneByteATen);
    RC_ASSERT(more.peak_bytes <= budget);
    // LRU holds a superset in a larger cache of equal entries.
    RC_ASSERT(more.hit_tokens >= prefix);
    prefix = more.hit_tokens;
    const auto free = independent_reuse(trace, budget, admission, kOneByteATen);
    RC_ASSERT(free.hit_tokens >= independent);
    independent = free.hit_tokens;
  }
  RC_ASSERT(prefix_reuse(trace, {}, admission, kOneByteATen).hit_tokens == prefix);
  RC_ASSERT(independent_reuse(trace, {}, admission, kOneByteATen).hit_tokens == independent);
  RC_ASSERT(prefix <= independent);
  RC_ASSERT(independent <= size_of(trace).input_tokens);
}

RC_GTEST_PROP(Reuse, IsMostWithoutABudget, ()) {
  Trace trace = trace_of(*rc::gen::container<std::vector<std::string>>(
      rc::gen::container<std::string>(rc::gen::inRange('a', 'g'))));
  for (TraceRequest& request : trace.requests)
    for (TraceSegment& segment : request.segments) segment.tokens = 7 * (segment.id - 'a') + 1;
  const ReuseCosts costs{.token_bytes = 1, .segment_bytes = 4, .snapshot_bytes = 2};
  const int64_t budget = *rc::gen::inRange(0, 100);
  RC_ASSERT(prefix_reuse(trace, budget, TraceAdmission::first, costs).hit_tokens <=
            prefix_reuse(trace, {}, TraceAdmission::first, costs).hit_tokens);
  RC_ASSERT(independent_reuse(trace, budget, TraceAdmission::first, costs).hit_tokens <=
            independent_reuse(trace, {}, TraceAdmission::first, costs).hit_tokens);
}

TEST(LoadTrace, ReadsItsOwnFormatSortedByTime) {
  const Trace trace = load_trace(write(
      "pic-trace.jsonl",
      R"({"timestamp": 1.5, "segments": [{"id": "1", "tokens": 3}, {"id": 1, "tokens": 4}], "output_tokens": 7}
{"timestamp": 0, "segments": [{"id": "1", "tokens": 3}], "output_tokens": 1}
{"timestamp": 2, "segments": [], "output_tokens": 0}
)"));
  EXPECT_STREQ(trace.format, "pic-trace");
  EXPECT_EQ(trace.reuse, TraceReuse::independent);
  EXPECT_EQ(trace.distinct, 2);
  ASSERT_EQ(trace.requests.size(), 3);
  EXPECT_EQ(trace.requests[0].timestamp, 0);
  EXPECT_EQ(trace.requests[1].segments[1].tokens, 4);
  EXPECT_EQ(size_of(trace).input_tokens, 10);
  EXPECT_EQ(size_of(trace).output_tokens, 8);
}

TEST(LoadTrace, ReadsRagpulse) {
  const std::string lengths =
      write("lengths.csv", "hash_id,kind,tokens\r\n5,passages,100\n6,history,20\n7,user_input,3\n");
  const Trace trace = load_trace(
      write(
          "ragpulse.jsonl",
          R"({"timestamp": "84", "input_length": 130, "output_length": 9, "hash_ids": {"user_input": [7], "passages_ids": [5, 5], "history": [6]}})"),
      lengths);
  EXPECT_STREQ(trace.format, "RAGPulse");
  ASSERT_EQ(trace.requests[0].segments.size(), 4);
  EXPECT_EQ(trace.requests[0].segments[1].tokens, 100);
  EXPECT_EQ(trace.requests[0].segments[2].tokens, 20);
  EXPECT_EQ(trace.requests[0].segments[3].tokens, 3);
  EXPECT_EQ(trace.requests[0].timestamp, 84);
}

TEST(LoadTrace, ReadsMooncakeAndAzure) {
  const Trace mooncake = load_trace(
      write("mooncake.jsonl",
            R"({"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [3, 9]})"));
  EXPECT_STREQ(mooncake.format, "Mooncake");
  EXPECT_EQ(mooncake.reuse, TraceReuse::prefix);
  EXPECT_EQ(mooncake.requests[0].timestamp, 1.5);
  EXPECT_EQ(mooncake.requests[0].segments[1].tokens, 88);
  const Trace azure = load_trace(write("azure.csv",
                                       "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                       "2023-12-31 23:59:59.5000000,4808,10\n"
                                       "2024-01-01 00:00:01.250000+00:00,3180,8\r\n"));
  EXPECT_STREQ(azure.format, "Azure");
  EXPECT_EQ(azure.reuse, TraceReuse::none);
  EXPECT_EQ(azure.distinct, 2);
  EXPECT_EQ(azure.requests[0].timestamp, 0);
  EXPECT_NEAR(azure.requests[1].timestamp, 1.75, 1e-6);
  EXPECT_EQ(size_of(azure).input_tokens, 4808 + 3180);
}

TEST(Reuse, RefusesMoreBytesThanCanBeCounted) {
  const Trace trace{"test", TraceReuse::independent, {{0, {{0, 1 << 30}, {1, 1 << 30}}, 1}}, 2};
  const ReuseCosts costs{.token_bytes = int64_t{1} << 32};
  EXPECT_THROW(independent_reuse(trace, {}, TraceAdmission::first, costs), Error);
  EXPECT_EQ(independent_reuse(trace, int64_t{1} << 62, TraceAdmission::first, costs).peak_bytes,
            int64_t{1} << 62);
}

TEST(LoadTrace, NamesTheFileTheLineAndTheReason) {
  const auto expect_error = [](const std::string& rows, const char* where, const char* reason,
                               const std::string& lengths = "hash_id,tokens\n") {
    const std::string message = load_error(rows, lengths);
    EXPECT_NE(message.find(std::string("bad_trace.jsonl") + where), message.npos) << message;
    EXPECT_NE(message.find(reason), message.npos) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
  };
  const std::string request =
      R"({"timestamp": 0, "segments": [{"id": "a", "tokens": 3}], "output_tokens": 1})";
  expect_error("", ": ", "holds no request");
  expect_error("{}", ":1: ", "no known trace");
  expect_error("x", ":1: ", "not valid JSON");
  expect_error("[[]]", ":1: ", "must be an object");
  expect_error(request + "\n{\"timestamp\": 0}", ":2: ", "'output_tokens' not found");
  const auto with = [&](const char* was, const char* is) {
    std::string changed = request;
    return request + "\n" + changed.replace(changed.find(was), std::string(was).size(), is);
  };
  expect_error(with("3", "4"), ":2: ", "has 4 tokens, but had 3 before");
  expect_error(with("3", "-3"), ":2: ", "tokens is -3");
  expect_error(with("3", "3.5"), ":2: ", "tokens is 3.5");
  expect_error(with("3", "99999999999999999999"), ":2: ", "not a number of tokens");
  expect_error(with("3", "18446744073709551615"), ":2: ", "not a number of tokens");
  expect_error(with("\"a\"", "[]"), ":2: ", "a segment's id is an array");
  expect_error(with("0", "\"nan\""), ":2: ", "not finite");
  expect_error(with("0", "\"1s\""), ":2: ", "not a number");
  const std::string ragpulse =
      R"({"timestamp": "0", "output_length": 1, "hash_ids": {"history": [4]}})";
  expect_error(ragpulse, ":1: ", "no hash_id 4");
  expect_error(ragpulse, ":1: ", "no column \"tokens\"", "hash_id,n\n");
  expect_error(ragpulse, ":1: ", "bad_lengths.csv:2: tokens is \"x\"", "hash_id,tokens\n4,x\n");
  expect_error(ragpulse, ":1: ", "bad_lengths.csv:2: 1 columns", "hash_id,tokens\n4\n");
  expect_error(R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]})",
               ":1: ", "1 hash_ids for 513 tokens");
  for (const char* ids : {"[1.5]", "[true]", "[1e300]", "[18446744073709551615]", "7", "[[1]]"})
    for (const std::string& field : {str("{\"history\": ", ids, "}"), std::string(ids)})
      expect_error(
          R"({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": )" + field + "}",
          ":1: ", "whole number");
  const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  expect_error(azure, ": ", "holds no request");
  expect_error(azure + "2023-11-31 10:00:00,1,2", ":2: ", "not a UTC time");
  expect_error(azure + "2023-11-16 10:00:00+02:00,1,2", ":2: ", "not a UTC time");
  expect_error(azure + "2023-11-16 10:00:00,1", ":2: ", "2 columns, expected 3");
  expect_error(azure + "2023-11-16 10:00:00,1,-2", ":2: ", "GeneratedTokens is -2");
  EXPECT_THROW(load_trace("no/such/trace.jsonl"), Error);
}

// The definition: all tokens of all chunks, the question's too; a hit is a whole chunk of an
// earlier request, for prefixes one that followed the same chunks from the start.
TEST(SharedTraces, AllowTheKnownReuse) {
  const std::string data = shared_data();
  if (data.empty()) GTEST_SKIP() << kNoSharedData;
  const auto share = [](const Trace& trace, const ReuseShare& reuse) {
    return double(reuse.hit_tokens) / double(size_of(trace).input_tokens);
  };
  const Trace ragpulse = load_trace(data + "/traces/ragpulse_trace.jsonl");
  const double prefix = share(ragpulse, prefix_reuse(ragpulse, {}, TraceAdmission::first, {}));
  const double independent = share(ragpulse, independent_reuse(ragpulse, {}, TraceAdmission::first, {}));
  EXPECT_EQ(ragpulse.requests.size(), 7106);
  EXPECT_NEAR(prefix, 0.315, 0.0005);
  EXPECT_NEAR(independent, 0.720, 0.0005);
  const Trace mooncake = load_trace(data + "/traces/mooncake_conversation.jsonl");
  const ReuseShare blocks = prefix_reuse(mooncake, {}, TraceAdmission::first, {});
  EXPECT_NEAR(double(blocks.hit_segments) / double(size_of(mooncake).segments), 0.366, 0.0005);
  EXPECT_EQ(load_trace(data + "/traces/azure2023_code.csv").requests.size(), 8819);
  std::cout << "RAGPulse " << prefix << " " << independent << "\n";
}

}  // namespace
}  // namespace hypic
