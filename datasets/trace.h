// Request traces, and how much of their prompts a cache could have reused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hypic {

// What a trace can tell of reuse: Azure's has lengths only; in Mooncake's a block's id stands for
// all that comes before it too, so that another place makes it another block.
enum class TraceReuse { none, prefix, independent };

struct TraceSegment {
  uint32_t id;  // equal for equal segments; below Trace::distinct
  int32_t tokens;
};

struct TraceRequest {
  double timestamp;  // seconds
  std::vector<TraceSegment> segments;
  int64_t output_tokens;
};

struct Trace {
  const char* format;
  TraceReuse reuse;
  std::vector<TraceRequest> requests;  // by timestamp
  uint32_t distinct = 0;
};

// Reads, and tells by the first row,
//   pic-trace  {"timestamp": s, "segments": [{"id": "a", "tokens": n}, …], "output_tokens": n}, one
//              request a line; ids are strings or numbers, the same id has the same tokens
//   RAGPulse   {"timestamp": "s", "output_length": n, "hash_ids": {sys_prompt, passages_ids,
//              history, web_search, user_input}}; segments in this order, their tokens from
//              `token_lengths`, a CSV with the columns hash_id and tokens, by default
//              ragpulse_token_lengths.csv beside the trace
//   Mooncake   {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": […]}; blocks of
//              512 tokens, the last one what is left
//   Azure      a CSV TIMESTAMP,ContextTokens,GeneratedTokens; a request is one segment of its own
// Throws Error, with path:line, for a row that is malformed or over 64 MiB or a timestamp that is
// not finite; with the path for a file that cannot be read, is of no known format, or holds no
// request or over 2^27 segments.
Trace load_trace(const std::string& path, const std::string& token_lengths = "");

// What a cached segment takes: K, V of its tokens, and its operator (T and U); under prefix
// caching, in its place, a snapshot of the state after it.
struct ReuseCosts {
  int64_t token_bytes = 0, segment_bytes = 0, snapshot_bytes = 0;
};

enum class TraceAdmission {
  first,  // a segment is cached when it is first computed
  second  // when it is computed for the second time, so that one-off segments take no room
};

struct ReuseShare {
  int64_t hit_tokens = 0, hit_segments = 0;
  int64_t peak_bytes = 0;  // the most that was held at a time
};

// The segments of `trace` found in a cache that starts empty. A request looks all its segments up,
// then adds and touches them. Prefix caching finds the segments up to the first one that did not
// follow just the same ones in an earlier request; position-independent caching finds each that was
// in an earlier request. `budget` is in bytes, none for a cache without bound; beyond it, the least
// recently used go, of one request the last segment first. What is larger than the budget is not
// cached. The question counts as any other segment, so that shares are of all prompt tokens.
ReuseShare prefix_reuse(const Trace& trace, std::optional<int64_t> budget, TraceAdmission admission,
                        const ReuseCosts& costs);
ReuseShare independent_reuse(const Trace& trace, std::optional<int64_t> budget, TraceAdmission admission,
                             const ReuseCosts& costs);

struct TraceSize {
  int64_t segments = 0, input_tokens = 0, output_tokens = 0;
};
TraceSize size_of(const Trace& trace);

}  // namespace hypic
