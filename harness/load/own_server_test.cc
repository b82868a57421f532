#include "harness/load/own_server.h"

#include <gtest/gtest.h>

#include "harness/load/client.h"
#include "reference/cpu_backend.h"

namespace hypic::load {
namespace {

Trace trace_of(const std::vector<std::vector<uint32_t>>& requests, int32_t tokens) {
  Trace trace{"test", TraceReuse::independent, {}, 100};
  for (const auto& ids : requests) {
    TraceRequest& request = trace.requests.emplace_back();
    for (const uint32_t id : ids) request.segments.push_back({id, tokens});
  }
  return trace;
}

TEST(TraceShare, CountsTheWindowAloneAndTakesSeamsOff) {
  // Stored at the second touch, found at the third.
  const Trace trace = trace_of({{1, 2, 3}, {2, 1, 4}, {1, 2, 5}, {2, 1, 6}}, 100);
  const ReuseCosts costs{.token_bytes = 1};
  const int64_t all = int64_t{1} << 40;
  const Mode hypic = mode_named("transition_rope_seam");
  EXPECT_EQ(trace_share(trace, 2, 2, 2, mode_named("full"), all, costs), 0);
  EXPECT_DOUBLE_EQ(trace_share(trace, 2, 2, 2, hypic, all, costs), (4.0 * 100 - 4 * hypic.head) / 600);
  EXPECT_DOUBLE_EQ(trace_share(trace, 2, 2, 2, mode_named("transition"), all, costs), 4.0 / 6);
  EXPECT_DOUBLE_EQ(trace_share(trace, 2, 2, 0, mode_named("transition"), all, costs), 0);  // not primed
  EXPECT_DOUBLE_EQ(trace_share(trace, 2, 2, 2, mode_named("transition"), 50, costs), 0);   // holds none
  // In another order no prefix comes again until its own third time.
  EXPECT_DOUBLE_EQ(trace_share(trace, 2, 2, 2, mode_named("prefix"), all, costs), 0);
  const Trace same = trace_of({{1, 2, 3}, {1, 2, 4}, {1, 2, 5}}, 100);
  EXPECT_DOUBLE_EQ(trace_share(same, 2, 1, 2, mode_named("prefix"), all, costs), 2.0 / 3);
}

TEST(OwnServer, PoolsHoldTheBudgetAndWhatRuns) {
  OwnServerOptions options{.mode = mode_named("transition_rope_seam"),
                           .cache_bytes = 1000,
                           .at_once = 4,
                           .chunk = 100,
                           .longest = 320,
                           .most_segments = 5,
                           .segment_tokens = 32};
  const ReuseCosts costs{.token_bytes = 1, .segment_bytes = 68, .snapshot_bytes = 18};
  PoolSizes pools = pools_of(options, costs);
  EXPECT_EQ(pools.operator_slots, 10 + 4 * 5);
  EXPECT_EQ(pools.state_slots, 8 + 4);  // 100 rows are 4 segments of 32 at most
  EXPECT_GE(pools.pages, 10 * 2 + 4 * (320 / 16 + 6));
  options.mode = mode_named("prefix");
  pools = pools_of(options, costs);
  EXPECT_EQ(pools.operator_slots, 0);
  EXPECT_EQ(pools.state_slots, 8 + 20);
  options.mode = mode_named("full");
  EXPECT_EQ(pools_of(options, costs).state_slots, 8);
}

TEST(OwnServer, AnswersUntilItIsGone) {
  const auto backend = reference::make_cpu_backend();
  const Model model = Model::open(*backend, "random:qwen3.5-tiny:7");
  const OwnServerOptions options{.mode = mode_named("transition_rope_seam"),
                                 .cache_bytes = 8 << 20,
                                 .longest = 200,
                                 .most_segments = 2,
                                 .segment_tokens = 40};
  const std::vector<Prompt> prompts(3, Prompt{{{1, 40}, {2, 40}, {3, 8}}, 2});
  const Bodies bodies(prompts, {.form = Form::segments, .vocabulary = model.spec().vocabulary});
  ClientOptions client;
  client.max_concurrency = 1;
  {
    const OwnServer server(model, options);
    client.url = parse_url(server.url());
    client.url.path = "/v1/completions";
    const std::vector<Record> records = run_load(client, {0, 0, 0}, [&](int64_t i) { return bodies.body(i); });
    for (const Record& record : records) {
      EXPECT_TRUE(record.ok()) << record.error;
      EXPECT_EQ(record.prompt_tokens, 88);
      EXPECT_EQ(record.output_tokens, 2);
      EXPECT_EQ(record.tokens_at.size(), 2);  // it has no text
    }
    EXPECT_EQ(records[0].cached_tokens, 0);
    EXPECT_EQ(records[2].cached_tokens, 2 * (40 - options.mode.head));
  }
  EXPECT_FALSE(run_load(client, {0}, [&](int64_t i) { return bodies.body(i); })[0].ok());
}

}  // namespace
}  // namespace hypic::load
