#include "harness/load/summary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/check.h"

namespace hypic::load {
namespace {

Record answered(double scheduled, double first, double last, int64_t tokens) {
  Record record;
  record.scheduled = scheduled;
  record.released = scheduled + 0.001;
  record.sent = scheduled + 0.002;
  record.tokens_at = {first};
  if (last > first) record.tokens_at.push_back(last);
  record.ended = last;
  record.prompt_tokens = 100;
  record.output_tokens = tokens;
  record.cached_tokens = 25;
  return record;
}

Record failed(double scheduled) {
  Record record = answered(scheduled, scheduled + 0.01, scheduled + 0.01, 1);
  record.error = "HTTP 503";
  return record;
}

double value(const std::vector<Value>& values, const std::string& tag) {
  for (const Value& each : values)
    if (each.tag == tag) return each.value;
  return std::nan("");
}

TEST(Summary, TimesCountFromTheSchedule) {
  const Record record = answered(10, 10.5, 11.5, 5);
  EXPECT_DOUBLE_EQ(ttft(record), 0.5);
  EXPECT_DOUBLE_EQ(e2el(record), 1.5);
  EXPECT_DOUBLE_EQ(tpot(record), 0.25);  // by the server's count of tokens, not by the two pieces
  EXPECT_TRUE(std::isnan(tpot(answered(0, 1, 1, 1))));
}

TEST(Summary, AnErrorMisses) {
  const Slo slo = parse_slo({"ttft:600", "tpot:300"});
  EXPECT_TRUE(meets(answered(10, 10.5, 11.5, 5), slo));
  EXPECT_TRUE(meets(answered(10, 10.5, 10.5, 1), slo));  // one token has no time between tokens
  EXPECT_FALSE(meets(answered(10, 10.5, 12.5, 5), slo));
  EXPECT_FALSE(meets(answered(10, 10.7, 11.5, 5), slo));
  EXPECT_FALSE(meets(failed(10), slo));
  EXPECT_FALSE(meets(failed(10), {}));
}

TEST(Summary, OnePieceOfSeveralTokensHasNoTimeBetween) {
  const std::vector<Record> records = {answered(0, 1, 1, 5), answered(0, 1, 1, 1), answered(0, 1, 3, 5)};
  EXPECT_TRUE(std::isnan(tpot(records[0])));
  const Summary s = summarise(records, {});
  EXPECT_EQ(s.in_one_piece, 1);
  EXPECT_EQ(s.tpot, std::vector<double>{0.5});
}

TEST(Summary, SloIsWrittenAsVllms) {
  const Slo slo = parse_slo({"ttft:1000", "e2el:2500.5"});
  EXPECT_DOUBLE_EQ(slo.ttft, 1);
  EXPECT_DOUBLE_EQ(slo.e2el, 2.5005);
  EXPECT_TRUE(std::isinf(slo.tpot));
  for (const char* bad : {"ttft", "ttft:", "ttft:x", "ttft:1x", "ttft:0", "ttft:-1", "p90:3", "ttft:inf"})
    EXPECT_THROW(parse_slo({bad}), Error) << bad;
  EXPECT_THROW(parse_slo({"ttft:1", "ttft:2"}), Error);
}

TEST(Summary, CountsAndRates) {
  Record lost;
  lost.scheduled = 3;
  lost.error = "not sent";
  const std::vector<Record> records = {answered(0, 0.5, 1, 3), answered(0.5, 1, 4, 3), failed(1), lost};
  const Summary s = summarise(records, parse_slo({"e2el:2000"}));
  EXPECT_EQ(s.requests, 4);
  EXPECT_EQ(s.completed, 2);
  EXPECT_EQ(s.failed, 2);
  EXPECT_EQ(s.met, 1);
  EXPECT_EQ(s.peak_in_flight, 2);
  EXPECT_DOUBLE_EQ(s.duration, 4);
  EXPECT_DOUBLE_EQ(s.cached_share(), 0.25);
  const std::vector<Value> values = values_of(s);
  EXPECT_DOUBLE_EQ(value(values, "request_throughput"), 0.5);
  EXPECT_DOUBLE_EQ(value(values, "request_goodput"), 0.25);
  EXPECT_DOUBLE_EQ(value(values, "total_output_tokens"), 6);
  EXPECT_DOUBLE_EQ(value(values, "mean_ttft_ms"), 500);
  EXPECT_DOUBLE_EQ(value(values, "p50_e2el_ms"), 2250);
  EXPECT_DOUBLE_EQ(value(values, "slo_misses"), 3);
  EXPECT_NEAR(value(values, "p99_lag_ms"), 1, 1e-9);
  EXPECT_NEAR(value(values, "p99_queue_ms"), 2, 1e-9);
}

TEST(Summary, RowsSayWhatIsNotKnown) {
  Record lost;
  lost.error = "timed out";
  const auto row = row_of(lost);
  EXPECT_TRUE(row["ttft_ms"].is_null());
  EXPECT_TRUE(row["cached_tokens"].is_null());
  EXPECT_EQ(row["error"], "timed out");
  EXPECT_EQ(row_of(answered(0, 1, 2, 2))["itl_ms"][0], 1000);
}

// The sample sizes of a p99 at 99 % confidence; 662 is also MLPerf's.
TEST(Verdicts, SampleSizesOfAP99) {
  for (const auto& [n, misses] : {std::pair{459, 0}, {662, 1}, {838, 2}, {1307, 5}, {2010, 10}}) {
    EXPECT_EQ(judge(n, misses, 0.01, 0.99), Verdict::pass) << n;
    EXPECT_EQ(judge(n - 1, misses, 0.01, 0.99), Verdict::undecided) << n;
    EXPECT_EQ(misses_to_pass(n, 0.01, 0.99), misses);
    EXPECT_EQ(misses_to_pass(n - 1, 0.01, 0.99), misses - 1);
  }
}

TEST(Verdicts, FailIsTheOtherSide) {
  for (const int64_t n : {50, 500})
    for (const double allowed : {0.01, 0.1}) {
      const int64_t fails = misses_to_fail(n, allowed, 0.95);
      EXPECT_EQ(judge(n, fails, allowed, 0.95), Verdict::fail);
      EXPECT_EQ(judge(n, fails - 1, allowed, 0.95), Verdict::undecided);
      EXPECT_GT(static_cast<double>(fails) / static_cast<double>(n), allowed);
    }
  EXPECT_EQ(miss_bounds(10, 0, 0.95).low, 0);
  EXPECT_EQ(miss_bounds(10, 10, 0.95).high, 1);
}

}  // namespace
}  // namespace hypic::load
