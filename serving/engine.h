// Runs requests on one model: looks segments up, plans, runs the forwards, stores what they leave,
// decodes.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/tap.h"
#include "models/forward.h"
#include "models/model.h"
#include "models/pools.h"
#include "serving/mode.h"
#include "serving/planner.h"
#include "serving/rank_threads.h"
#include "serving/residue_stream.h"
#include "serving/segment_cache.h"
#include "serving/slots.h"

namespace hypic {

struct EngineOptions {
  PoolSizes pools{.state_slots = 64, .operator_slots = 64, .pages = 1024, .page_size = 16};
  int32_t max_rows = 8192;  // rows of one forward
  // That weights, pools and the activations of one forward may take together; 0: what the backend has.
  int64_t memory_bytes = 0;
  Faults faults;  // tests only
  CacheOptions cache;
};

// How tokens are chosen; core/backend.h SampleArgs says what the first three mean.
struct Sampling {
  double temperature = 0;  // 0: greedy
  int top_k = 0;           // 0: all
  double top_p = 1;
  uint64_t seed = 0;  // a token depends on it, its position and its logits, never on the batch
};

struct Request {
  std::vector<Tokens> segments;  // in prompt order, the question last; empty ones are dropped
  int32_t max_tokens = 1;
  Sampling sampling;
  bool logits = true;  // fill Response::logits: a whole row of the vocabulary goes to the host
  Tokens stop = {};    // any of these ends the answer before max_tokens, and stays in it
  bool gaps = false;   // fill Response::gaps: as many rows of the vocabulary as tokens go to the host
};

// Tokens of a prompt that were in the cache when it came.
struct Reused {
  int64_t prefix = 0;      // of a cached prefix
  int64_t segments = 0;    // of cached segments, without their seams
  int64_t recomputed = 0;  // seams of cached segments, computed again in full context
};

struct Response {
  Tokens tokens;
  Reused reused;
  std::vector<double> logits;  // of the first token; on demand
  std::vector<double> gaps;    // by token: the largest logit less the second largest, 0 where they tie; on demand
  // By layer, for linear layers [Hv · d_k · d_v]: the state before the question. On demand.
  std::vector<std::vector<double>> state_before_question;
};

struct RunOptions {
  bool keep_state = false;  // fill Response::state_before_question
  Tap* tap = nullptr;
  LayerHooks* hooks = nullptr;
  RouteHook* routes = nullptr;  // of the prefill
  bool host_times = false;  // fill RunResult::host
  ResidueSink* sink = nullptr;  // warm: sees the residues asked for, but those too short to be any
};

// What a run spends on the host while the device has nothing to do, in seconds.
struct HostSeconds {
  double match = 0;  // looking segments up, slots, the plan
  double load = 0;   // bringing residues back to the device, upload of the first chain table
  double store = 0;  // handing what the request leaves to the cache
};

struct RunResult {
  std::vector<Response> responses;
  HostSeconds host;                // on demand
  Counters counters;               // of the prefill, from the plan that ran
  std::vector<ChainTable> tables;  // the prefill's forwards
};

// A request that was submitted.
struct Submitted {
  uint64_t ticket = 0;  // never 0, never used again
  Reused reused;
};

// What a step brought for such a request: its next token.
struct Progress {
  uint64_t ticket = 0;
  int32_t token = 0;
  bool last = false;  // the ticket is of no more use
};

// Of a model with peers, the engine of a tensor-parallel group: one such engine a rank, each on a thread of its own with
// its own pools and cache, which all do the same. What is told, watched and counted is the first rank's; what comes
// from elsewhere comes for all. What fails on one rank ends on all, and empties all caches unless all failed alike.
class Engine {
 public:
  // OutOfMemory, with the arithmetic, where weights, pools and the activations of one forward are more
  // than options.memory_bytes or what the backend has. Error: tiers below the device in a tensor-parallel group.
  Engine(const Model& model, const EngineOptions& options);
  ~Engine();

  // Prefills all requests at once, then decodes each to its end. Equal misses are computed
  // once. What a request finds in the cache stays on the device until its last token; entries that
  // are not in use make room where slots run short. Error: a prompt without a question, tokens
  // outside the vocabulary, sampling out of bounds. OutOfMemory: the pools are too small for all
  // requests together; nothing has run then. Not beside requests that were submitted.
  RunResult run(const std::vector<Request>& requests, const Mode& mode,
                const RunOptions& options = {});

  // Before the first call on a thread that did not make it.
  void enter_thread() const { model_.backend().enter_thread(); }

  // The same step by step. submit plans the requests together and takes what they need of the pools; steps then run
  // them beside those that came before. In their order. Errors as above; nothing has been submitted then.
  std::vector<Submitted> submit(const std::vector<Request>& requests, const Mode& mode);
  // One forward of the oldest prompts that are not through yet, and one token of every request whose prompt is, by the
  // same forward where it has room for their rows. What throws ends all that was submitted; the engine is as good as
  // new then.
  std::vector<Progress> step();
  // Ends a request before its last token; one that has ended already is none.
  void cancel(uint64_t ticket);
  bool idle() const { return live_.empty(); }  // nothing that was submitted still runs
  bool prefilling() const;                     // the next step runs a part of a prompt
  // Whether submit is likely to find room for them beside what runs: by what is cached now. Looks only; what could not
  // run alone either does not fit.
  bool fits(const std::vector<Request>& requests, const Mode& mode) const;
  // What a request is likely to compute, by what is cached now. Looks only.
  struct Expected {
    int64_t rows = 0;        // of its prompt; of segments that are missed the seams not counted
    bool is_cached = false;  // all its segments that could be reused are
  };
  Expected expected(const Request& request, const Mode& mode) const;

  // For requests that wait: what submit would have to wait for, files, is read while others run.
  SegmentCache::Ahead wanted(const Request& request, const Mode& mode) const;
  void read_ahead(SegmentCache::Ahead& ahead, bool begin) { cache_.read_ahead(ahead, begin); }
  void on_read(std::function<void()> call) { cache_.on_read(std::move(call)); }  // see SegmentCache

  // Computes and stores the residues of segments as `mode` needs them, whatever the admission rule;
  // nothing else runs. Of the options tap, hooks, routes and sink count. Errors as above.
  Counters warm(const std::vector<Tokens>& segments, const Mode& mode, const RunOptions& options = {});

  // Where run and submit ask for the residues that are not cached, from now on; nullptr: nowhere. What comes from there
  // is placed layer by layer, while the forward that needs it runs; what does not come after all is computed here, and
  // the prompts that are under way with it begin anew. Answers never depend on it. It outlives what was submitted.
  void receive_from(ResidueSource* source);
  int64_t restarts() const { return restarts_; }  // for what did not come

  // Also while a request runs, from its tap or hooks, but in a tensor-parallel group: see SegmentCache.
  void flush();
  bool evict_one();
  void persist() { cache_.persist(); }
  void drain() { cache_.drain(); }
  CacheUsage usage() const { return cache_.usage(); }
  const SegmentCache& cache() const { return cache_; }
  const Pools& pools() const { return pools_; }

  // InternalError where slots or pages are neither free nor owned by the cache, an entry is still
  // pinned, or the cache contradicts itself; call when nothing runs.
  void check_integrity() const;

 private:
  struct Running;  // a request from admission to its last token
  class Batch;     // the requests of one run or submission and the slots they hold
  struct Room;     // slots of each kind
  struct Draws;
  struct Step;
  class Hooks;
  struct NotComing {};

  template <class Work>
  auto on_all_ranks(const Work& work);
  template <class Answer>
  auto agreed(const Answer& answer) const;
  RankPools rank_pools() const { return {model_.spec().rank, model_.backend(), pools_}; }
  RunOptions watched(const RunOptions& options) const;
  RunResult run_own(const std::vector<Request>& requests, const Mode& mode, const RunOptions& options);
  std::vector<Submitted> submit_own(const std::vector<Request>& requests, const Mode& mode);
  std::vector<Progress> step_own();
  void cancel_own(uint64_t ticket);
  Counters warm_own(const std::vector<Tokens>& segments, const Mode& mode, const RunOptions& options);
  void want(std::span<const Tokens> segments, const Mode& mode, SegmentCache::Ahead& ahead) const;
  std::unique_ptr<Batch> plan(const std::vector<Request>& requests, const Mode& mode, const RunOptions& options);
  std::vector<Progress> advance();
  void make_room_ahead();
  PlanInput plan_input(const Mode& mode) const;
  void check_tokens(const Tokens& tokens) const;
  Room room_for(const std::vector<Request>& requests, const Mode& mode) const;
  void require_room(const std::vector<Request>& requests, const Mode& mode, bool keep_state) const;
  int64_t shared_pages(const std::vector<Request>& requests) const;
  void admit(const Request& request, bool keep_state, Batch& batch);
  int32_t residue_for(const Tokens& tokens, int32_t position, bool warm,
                      std::vector<SegmentCache::Pin>& pins, Batch& batch);
  void start_from_prefix(Running& running, PlanRequest& plan, Batch& batch);
  void plan_saves(Running& running, PlanRequest& plan);
  int32_t take(Slots& slots);
  std::vector<int32_t> take(Slots& slots, int64_t count);
  void plan_tables(Batch& batch);
  void restart(Batch& batch);
  bool receives(Batch& batch) const;
  void run_table(Batch& batch, const std::vector<Running*>& joining, std::vector<Progress>& progress);
  void end_prefill(Batch& batch);
  void store_builds(Batch& batch);
  void store_prefixes(Batch& batch);
  void sample(const Tensor& logits, const std::vector<Running*>& rows, std::vector<Progress>& progress);
  void follow_first_rank(const Tensor& tokens) const;
  void append(const std::vector<Running*>& rows, const int32_t* tokens, const Tensor& logits,
              std::vector<Progress>& progress);
  void decode(std::vector<Progress>& progress);
  std::vector<Running*> answering() const;
  ChainTable decode_table(const std::vector<Running*>& rows, int32_t ahead) const;
  std::unique_ptr<Step> plan_step(const std::vector<Running*>& rows, const Step* before);
  void begin(Step& step);

  void copy_state(int32_t to, int32_t from);
  void copy_page(int32_t to, int32_t from);
  void zero_state(int32_t slot);
  void zero_operator(int32_t slot);
  std::vector<std::vector<double>> download_state(int32_t slot) const;

  const uint64_t serial_;  // of this engine in the process
  const Model& model_;
  EngineOptions options_;
  Pools pools_;
  Slots pages_, operators_, states_;
  SegmentCache cache_;
  std::map<const Slots*, int64_t> taken_;  // by the batch at hand, beside what snapshots hold
  // [requests, vocabulary], [requests] and those of draws, kept so that a recorded step finds them in place.
  Buffer decode_logits_, decode_tokens_;
  std::unique_ptr<Draws> decode_draws_;
  struct ReleaseHost {
    Backend* backend;
    void operator()(int32_t* memory) const noexcept { backend->release_host(memory); }
  };
  std::unique_ptr<int32_t[], ReleaseHost> host_tokens_;  // of two steps
  ResidueSource* source_ = nullptr;
  int64_t restarts_ = 0;
  uint64_t last_ticket_ = 0;
  std::list<std::unique_ptr<Batch>> live_;  // the oldest first
  std::unique_ptr<Step> next_;              // of decode, where it is planned or begun ahead

  std::vector<std::unique_ptr<Engine>> peers_;  // of the first rank: those of the others
  std::unique_ptr<RankThreads> threads_;
  std::shared_ptr<Agreement> agreement_;  // of a group
};

}  // namespace hypic
