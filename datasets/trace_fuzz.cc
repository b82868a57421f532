// Parts: a trace of any format; RAGPulse's token lengths.
#include <algorithm>
#include <cmath>

#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "datasets/trace.h"

namespace hypic {
namespace {

void check_reuse(const Trace& trace, std::optional<int64_t> budget, TraceAdmission admission,
                 const ReuseCosts& costs) {
  const TraceSize size = size_of(trace);
  for (const auto reuse : {prefix_reuse, independent_reuse}) {
    const ReuseShare share = reuse(trace, budget, admission, costs);
    HYPIC_CHECK(0 <= share.hit_tokens && share.hit_tokens <= size.input_tokens);
    HYPIC_CHECK(0 <= share.hit_segments && share.hit_segments <= size.segments);
    HYPIC_CHECK(0 <= share.peak_bytes && (!budget || share.peak_bytes <= *budget));
  }
}

void check(const TemporaryFolder& folder, std::string_view input) {
  const auto [text, lengths] = parts_of<2>(input);
  folder.write("ragpulse_token_lengths.csv", lengths);
  const Trace trace = load_trace(folder.write("trace", text));
  double last = -HUGE_VAL;
  for (const TraceRequest& request : trace.requests) {
    HYPIC_CHECK(last <= request.timestamp && request.output_tokens >= 0);
    last = request.timestamp;
    for (const TraceSegment& segment : request.segments)
      HYPIC_CHECK(segment.id < trace.distinct && segment.tokens >= 0);
  }
  for (const TraceAdmission admission : {TraceAdmission::first, TraceAdmission::second}) {
    check_reuse(trace, {}, admission, {.token_bytes = 1, .segment_bytes = 9, .snapshot_bytes = 5});
    check_reuse(trace, 600, admission, {.token_bytes = 1});
    // The most that `hypic trace` takes.
    constexpr int64_t kMost = int64_t{1} << 32;
    takes([&] { check_reuse(trace, {}, admission, {kMost, kMost, kMost}); });
    check_reuse(trace, int64_t{1} << 50, admission, {kMost, kMost, kMost});
  }
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::takes([&] { hypic::check(folder, hypic::as_text(data, size)); });
  return 0;
}
