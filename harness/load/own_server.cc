#include "harness/load/own_server.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "serving/engine.h"
#include "serving/http_server.h"
#include "serving/memory.h"
#include "serving/scheduler.h"

namespace hypic::load {
namespace {

constexpr int32_t kPageSize = 16;

EngineOptions engine_options(const Model& model, const OwnServerOptions& options) {
  EngineOptions engine;
  engine.pools = pools_of(options, costs_of(model));
  engine.max_rows = options.chunk;
  engine.cache.budget_bytes = options.cache_bytes;
  engine.cache.host_bytes = options.host_bytes;
  engine.cache.admission = kServerAdmission;
  return engine;
}

ServerOptions server_options(const Model& model) {
  ServerOptions server;
  server.port = 0;
  server.model = model.spec().name;
  server.vocabulary = model.spec().vocabulary;
  server.max_positions = model.spec().max_positions;
  server.max_connections = int64_t{1} << 16;
  return server;
}

}  // namespace

PoolSizes pools_of(const OwnServerOptions& options, const ReuseCosts& costs) {
  PoolSizes pools;
  pools.page_size = kPageSize;
  // A request's own, and one of each segment that a forward builds.
  pools.state_slots = 2 * options.at_once;
  if (options.mode.reuse == Reuse::segments)
    pools.state_slots += static_cast<int64_t>(std::ceil(options.chunk / std::max(options.segment_tokens, 1.0)));
  pools.pages = options.at_once * (options.longest / kPageSize + 2 * (options.most_segments + 1));
  if (options.mode.reuse == Reuse::none) return pools;
  const bool segments = options.mode.reuse == Reuse::segments;
  const double kept = options.segment_tokens * static_cast<double>(costs.token_bytes) +
                      static_cast<double>(segments ? costs.segment_bytes : costs.snapshot_bytes);
  const auto count = static_cast<int64_t>(std::ceil(static_cast<double>(options.cache_bytes) / std::max(kept, 1.0)));
  pools.pages += count * (static_cast<int64_t>(options.segment_tokens) / kPageSize + 1);
  if (segments)
    pools.operator_slots = count + options.at_once * options.most_segments;
  else
    pools.state_slots += count;
  return pools;
}

ReuseCosts costs_of(const Model& model) {
  const Backend& backend = model.backend();
  const PoolSizes one{.state_slots = 1, .operator_slots = 1, .pages = 1, .page_size = kPageSize};
  const MemoryNeed need = memory_need(model.spec(), backend.compute_dtype(), backend.state_dtype(), one, 1);
  return {.token_bytes = need.pages / kPageSize, .segment_bytes = need.operators, .snapshot_bytes = need.states};
}

struct OwnServer::Impl {
  Impl(const Model& model, const OwnServerOptions& options)
      : engine(model, engine_options(model, options)),
        scheduler(engine, metrics,
                  {.mode = options.mode, .max_waiting = int64_t{1} << 20, .prompt_rows = options.chunk}),
        http(scheduler, metrics, server_options(model)) {
    scheduler.wait_until_warm();
  }
  Engine engine;
  Metrics metrics;
  Scheduler scheduler;
  HttpServer http;
};

OwnServer::OwnServer(const Model& model, const OwnServerOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
OwnServer::~OwnServer() = default;
double OwnServer::prompts_together() const { return impl_->metrics.prompts_together(); }
std::string OwnServer::url() const { return str("http://127.0.0.1:", impl_->http.port()); }

double trace_share(const Trace& trace, int64_t first, int64_t count, int64_t prime, const Mode& mode, int64_t budget,
                   const ReuseCosts& costs) {
  HYPIC_CHECK(0 <= prime && prime <= first && first + count <= static_cast<int64_t>(trace.requests.size()));
  if (mode.reuse == Reuse::none) return 0;
  const auto found = [&](int64_t requests) {  // tokens, of the first ones from the priming on
    Trace part = {trace.format, trace.reuse, {}, trace.distinct};
    const auto begin = trace.requests.begin() + (first - prime);
    part.requests.assign(begin, begin + requests);
    if (mode.reuse == Reuse::prefix) return prefix_reuse(part, budget, TraceAdmission::second, costs).hit_tokens;
    const ReuseShare share = independent_reuse(part, budget, TraceAdmission::second, costs);
    return share.hit_tokens - (mode.head + mode.tail) * share.hit_segments;
  };
  int64_t tokens = 0;
  for (int64_t i = first; i < first + count; ++i)
    for (const TraceSegment& segment : trace.requests[i].segments) tokens += segment.tokens;
  return static_cast<double>(found(prime + count) - found(prime)) / static_cast<double>(std::max<int64_t>(tokens, 1));
}

}  // namespace hypic::load
