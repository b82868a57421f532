#include "serving/engine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "core/philox.h"
#include "serving/memory.h"

namespace hypic {
namespace {

int64_t pages_for(int64_t tokens, int32_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

// A record of one engine's steps must never be replayed for another, which may have its address.
uint64_t next_serial() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

const EngineOptions& checked(const Model& model, const EngineOptions& options) {
  const PoolSizes& pools = options.pools;
  require(pools.page_size > 0 && options.max_rows > 0,
          "a page and a forward need at least one token");
  require(pools.state_slots >= 0 && pools.operator_slots >= 0 && pools.pages >= 0,
          "pools cannot be negative");
  constexpr int64_t kMostSlots = std::numeric_limits<int32_t>::max(), kMostTokens = int64_t{1} << 40;
  require(std::max({pools.state_slots, pools.operator_slots, pools.pages}) <= kMostSlots &&
              pools.pages <= kMostTokens / pools.page_size,
          "pools of ", pools.state_slots, " state slots, ", pools.operator_slots, " operator slots and ", pools.pages,
          " pages of ", pools.page_size, " tokens are too large");
  // When a copy to another tier arrives is not the same on all ranks, so neither would be what they find.
  require(model.spec().ranks == 1 || (options.cache.host_bytes == 0 && options.cache.disk_folder.empty()),
          "a tensor-parallel group caches on its devices only: no --host-cache and no --disk-cache");
  const Backend& backend = model.backend();
  const MemoryNeed need = memory_need(model.spec(), backend.compute_dtype(), backend.state_dtype(),
                                      pools, options.max_rows);
  // The weights are there already.
  const auto available = static_cast<int64_t>(
      std::min<uint64_t>(backend.available_bytes(), INT64_MAX - need.weights));
  require_memory(model.spec().name, need,
                 options.memory_bytes > 0 ? options.memory_bytes : available + need.weights);
  return options;
}

const Sampling& checked(const Sampling& sampling) {
  const auto& [temperature, top_k, top_p, seed] = sampling;
  require(std::isfinite(temperature) && temperature >= 0,
          "temperature must be finite and at least 0, is ", temperature);
  require(top_k >= 0, "top_k must be at least 0, is ", top_k);
  require(0 < top_p && top_p <= 1, "top_p must be above 0 and at most 1, is ", top_p);
  return sampling;
}

// Adds the time of a scope to `seconds`; does nothing without.
class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds_(seconds) {
    if (seconds_) start_ = Clock::now();
  }
  ~Stopwatch() {
    if (seconds_) *seconds_ += elapsed();
  }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double* const seconds_;
  Clock::time_point start_{};
};

double* in(HostSeconds* host, double HostSeconds::*part) { return host ? &(host->*part) : nullptr; }

// A lookup within `match`: where it brought something back to the device, its time is load.
class Lookup {
 public:
  Lookup(HostSeconds* host, const SegmentCache& cache)
      : host_(host), cache_(cache), promoted_(cache.promoted()), watch_(host ? &seconds_ : nullptr) {}
  ~Lookup() {
    if (!host_ || cache_.promoted() == promoted_) return;
    const double seconds = watch_.elapsed();
    host_->load += seconds;
    host_->match -= seconds;
  }

 private:
  HostSeconds* const host_;
  const SegmentCache& cache_;
  const int64_t promoted_;
  double seconds_ = 0;
  const Stopwatch watch_;
};

std::span<const Tokens> before_question(const Request& request) {
  return std::span(request.segments).first(std::max<size_t>(request.segments.size(), 1) - 1);
}

// By how much the largest of `n` numbers leads the second largest.
double lead(const double* numbers, int64_t n) {
  double first = -std::numeric_limits<double>::infinity(), second = first;
  for (int64_t i = 0; i < n; ++i) {
    second = std::max(second, std::min(first, numbers[i]));
    first = std::max(first, numbers[i]);
  }
  return first == second ? 0 : first - second;
}

// Whether all of these running requests take the likeliest token.
bool greedy(const auto& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const auto* r) { return r->sampling.temperature == 0; });
}

}  // namespace

struct Engine::Running {
  uint64_t ticket = 0;
  bool cancelled = false;
  std::vector<Tokens> segments;
  Response response;
  int32_t max_tokens = 0;
  Sampling sampling;
  bool logits = true;
  Tokens stop;
  bool gaps = false;
  int32_t state = kNone;
  int32_t kept_state = kNone;  // the state before the question
  int32_t kept_from = kNone;   // where the forwards leave it, if not there
  std::vector<int32_t> pages;
  std::vector<PagedResidue> residues;
  int32_t position = 0;                               // of the next token
  int32_t own = 0;                                    // own tokens in the pages
  std::vector<SegmentCache::Pin> pins;                // what its prompt uses of the cache
  std::vector<int32_t> hit_pages;                     // a share in the pages of these, for decoding
  size_t prefix_segments = 0;                         // found in the cache as one prefix
  std::vector<SegmentCache::Prefix> prefixes;         // before the question
  std::vector<std::pair<size_t, int32_t>> snapshots;  // prefixes to store: which, state slot

  bool finished() const {
    const Tokens& tokens = response.tokens;
    return cancelled || static_cast<int32_t>(tokens.size()) >= max_tokens ||
           (!tokens.empty() && std::find(stop.begin(), stop.end(), tokens.back()) != stop.end());
  }
};

// The parameters of draws on the device, of up to n rows.
struct Engine::Draws {
  Draws(Backend& backend, int64_t n)
      : temperature(backend, backend.state_dtype(), {n}),
        top_k(backend, DType::i32, {n}),
        top_p(backend, backend.state_dtype(), {n}),
        uniform(backend, backend.state_dtype(), {n}) {}

  // For the tokens `ahead` behind the rows' positions.
  void upload(Backend& backend, const std::vector<Running*>& rows, int32_t ahead) const {
    std::vector<double> temperatures, top_ps, uniforms;
    std::vector<int32_t> top_ks;
    for (const Running* r : rows) {
      temperatures.push_back(r->sampling.temperature);
      top_ks.push_back(r->sampling.top_k);
      top_ps.push_back(r->sampling.top_p);
      uniforms.push_back(philox_uniform(r->sampling.seed, r->position + ahead));
    }
    const int64_t n = static_cast<int64_t>(rows.size());
    const auto numbers = [&](const Buffer& to, const std::vector<double>& from) {
      const std::vector<float> single(from.begin(), from.end());
      const bool wide = backend.state_dtype() == DType::f64;
      backend.upload(to.tensor().rows(0, n), wide ? static_cast<const void*>(from.data()) : single.data());
    };
    numbers(temperature, temperatures);
    backend.upload(top_k.tensor().rows(0, n), top_ks.data());
    numbers(top_p, top_ps);
    numbers(uniform, uniforms);
  }
  SampleArgs args(const Tensor& logits, const Tensor& out) const {
    const auto rows = [n = logits[0]](const Buffer& buffer) { return buffer.tensor().rows(0, n); };
    return {logits, rows(temperature), rows(top_k), rows(top_p), rows(uniform), out};
  }

  Buffer temperature, top_k, top_p, uniform;
};

// A step of decode, from its plan until its tokens are taken.
struct Engine::Step {
  Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step() {  // the device may still write its tokens
    try {
      if (arrived) arrived->wait();
    } catch (...) {  // it failed, which the next operation says
    }
  }

  std::vector<Running*> rows;  // nullptr: cancelled since it began
  ChainTable table;
  Rows inputs;
  bool begun = false;              // the device has been given it
  std::unique_ptr<Event> arrived;  // then: its tokens are in `tokens`; none: they are there at once
  int32_t* tokens = nullptr;       // in host_tokens_
};

struct Engine::Room {
  int64_t states = 0, build_states = 0, operators = 0, pages = 0;
  bool too_long = false;  // some request has more tokens than the model positions
};

// Gives back what is still held at the end, also when something threw on the way.
class Engine::Batch {
 public:
  Batch(Engine& engine, const Mode& mode, const RunOptions& options = {})
      : input(engine.plan_input(mode)), options(options), engine_(engine) {}
  ~Batch() {
    for (Running& r : running) release(r);
    release_build_states();
    for (const Build& build : input.builds) {
      give_back(engine_.operators_, input.residues[build.residue].op);
      engine_.pages_.give_back(input.residues[build.residue].pages);
    }
  }

  // What a request needs no more after its last token.
  void release(Running& r) {
    r.pins.clear();
    give_back(engine_.states_, std::exchange(r.state, kNone));
    give_back(engine_.states_, std::exchange(r.kept_state, kNone));
    engine_.pages_.give_back(std::exchange(r.pages, {}));
    engine_.pages_.give_back(std::exchange(r.hit_pages, {}));
    for (const auto& [which, state] : std::exchange(r.snapshots, {})) give_back(engine_.states_, state);
  }
  void release_build_states() { engine_.states_.give_back(std::exchange(build_states, {})); }

  bool builds(int32_t residue) const {
    return std::any_of(input.builds.begin(), input.builds.end(), [&](const Build& b) { return b.residue == residue; });
  }
  bool prefilled() const { return next_table == plan.tables.size(); }
  bool finished() const {
    return prefilled() && std::all_of(running.begin(), running.end(), [](const Running& r) { return r.finished(); });
  }

  PlanInput input;
  RunOptions options;
  Plan plan;
  std::vector<size_t> planned;  // which running requests those of the plan are
  std::vector<Plan> given_up;   // whose tables the device may still read
  size_t next_table = 0;        // of the plan's
  std::vector<Running> running;
  struct Built {
    bool admitted;
    size_t request;  // the first one that needs it
    std::shared_ptr<Arrival> arrival = {};  // it comes from elsewhere
    bool arrived = false;
    bool elsewhere() const { return arrival || arrived; }
  };
  std::vector<Built> built;  // by build
  bool receives = false;     // some of them came from elsewhere, or were to
  std::vector<int32_t> build_states;  // slots, by their number
  HostSeconds times;
  HostSeconds* host() { return options.host_times ? &times : nullptr; }  // where times go; nullptr: nobody asked

 private:
  static void give_back(Slots& slots, int32_t slot) {
    if (slot != kNone) slots.give_back(slot);
  }
  Engine& engine_;
};

Engine::Engine(const Model& model, const EngineOptions& options)
    : serial_(next_serial()),
      model_(model),
      options_(checked(model, options)),
      pools_(model.backend(), model.spec(), options.pools),
      pages_("K, V page", options.pools.pages),
      operators_("operator slot", options.pools.operator_slots),
      states_("state slot", options.pools.state_slots),
      cache_(str(model.identity(), "|", hex(Sha256().add(model.spec().config).digest()), "|",
                 model.backend().name(), "|", name_of(model.backend().compute_dtype()), "|",
                 name_of(options.cache.format), "|numerics ", kResidueNumerics, "|rank ", model.spec().rank, " of ",
                 model.spec().ranks),
             model, pools_, pages_, operators_, states_, options.cache) {
  if (model.peers().empty()) return;
  std::vector<Backend*> ranks = {&model.backend()};
  for (const Model& peer : model.peers()) ranks.push_back(&peer.backend());
  threads_ = std::make_unique<RankThreads>(std::move(ranks));
  peers_.resize(model.peers().size());
  EngineOptions of_peer = options;
  of_peer.cache.on_change = {};
  agreement_ = std::make_shared<Agreement>(1 + peers_.size());
  const auto errors = threads_->run([&](int rank) {
    if (rank == 0) return;
    auto& peer = peers_[rank - 1] = std::make_unique<Engine>(model.peers()[rank - 1], of_peer);
    peer->agreement_ = agreement_;
  });
  if (const std::exception_ptr error = cause(errors)) std::rethrow_exception(error);
}

Engine::~Engine() {
  if (threads_)
    threads_->run([&](int rank) {
      if (rank > 0) peers_[rank - 1].reset();
    });
}

namespace {

// What the ranks of a group must have in common.
Tokens in_common(const RunResult& result) {
  Tokens tokens;
  for (const Response& response : result.responses)
    tokens.insert(tokens.end(), response.tokens.begin(), response.tokens.end());
  return tokens;
}
std::vector<uint64_t> in_common(const std::vector<Submitted>& submitted) {
  std::vector<uint64_t> tickets;
  for (const Submitted& one : submitted) tickets.push_back(one.ticket);
  return tickets;
}
std::vector<std::tuple<uint64_t, int32_t, bool>> in_common(const std::vector<Progress>& progress) {
  std::vector<std::tuple<uint64_t, int32_t, bool>> all;
  for (const Progress& one : progress) all.emplace_back(one.ticket, one.token, one.last);
  return all;
}
int64_t in_common(const Counters& counters) { return counters.computed(); }
bool in_common(bool one) { return one; }

// In place of a watcher, on ranks that nobody watches: they enqueue what the watched one does.
class Unwatched final : public Tap, public RouteHook {
  void see(const std::string&, const Tensor&) override {}
  void begin(const ChainTable&) override {}
  void routed(int, const Tensor&, const Tensor&) override {}
};

}  // namespace

RunOptions Engine::watched(const RunOptions& options) const {
  if (model_.spec().rank == 0) return options;
  static Unwatched nobody;
  RunOptions own = options;
  own.hooks = nullptr;
  if (own.tap) own.tap = &nobody;
  if (own.routes) own.routes = &nobody;
  return own;
}

// work(engine) of every rank's engine; the first one's result.
template <class Work>
auto Engine::on_all_ranks(const Work& work) {
  if (!threads_) return work(*this);
  const auto engine = [&](int rank) -> Engine& { return rank == 0 ? *this : *peers_[rank - 1]; };
  std::vector<std::optional<decltype(work(*this))>> results(1 + peers_.size());
  const auto errors = threads_->run([&](int rank) { results[rank].emplace(work(engine(rank))); });
  agreement_->end();
  const std::exception_ptr error = cause(errors);
  const bool agree = !error && std::all_of(results.begin(), results.end(), [&](const auto& result) {
    return in_common(*result) == in_common(*results[0]);
  });
  if (agree) return std::move(*results[0]);
  if (!error || !all_alike(errors))
    threads_->run([&](int rank) {
      Engine& own = engine(rank);
      own.next_.reset();
      own.live_.clear();
      own.cache_.flush();
    });
  if (error) std::rethrow_exception(error);
  throw InternalError("the ranks of a tensor-parallel group have come to different results");
}

// What comes from elsewhere is there for all ranks or for none.
template <class Answer>
auto Engine::agreed(const Answer& answer) const {
  return agreement_ ? (*agreement_)(model_.spec().rank, answer) : answer();
}

RunResult Engine::run(const std::vector<Request>& requests, const Mode& mode, const RunOptions& options) {
  return on_all_ranks([&](Engine& own) { return own.run_own(requests, mode, own.watched(options)); });
}

std::vector<Submitted> Engine::submit(const std::vector<Request>& requests, const Mode& mode) {
  return on_all_ranks([&](Engine& own) { return own.submit_own(requests, mode); });
}

std::vector<Progress> Engine::step() {
  return on_all_ranks([](Engine& own) { return own.step_own(); });
}

void Engine::cancel(uint64_t ticket) {
  on_all_ranks([&](Engine& own) { return own.cancel_own(ticket), true; });
}

Counters Engine::warm(const std::vector<Tokens>& segments, const Mode& mode, const RunOptions& options) {
  return on_all_ranks([&](Engine& own) { return own.warm_own(segments, mode, own.watched(options)); });
}

void Engine::flush() {
  on_all_ranks([](Engine& own) { return own.cache_.flush(), true; });
}

bool Engine::evict_one() {
  return on_all_ranks([](Engine& own) { return own.cache_.evict_one(); });
}

void Engine::receive_from(ResidueSource* source) {
  source_ = source;
  for (const auto& peer : peers_) peer->receive_from(source);
}

// Free slots; entries that are not in use make room.
std::vector<int32_t> Engine::take(Slots& slots, int64_t count) {
  cache_.make_room(slots, count);
  taken_[&slots] += std::max<int64_t>(count, 0);
  return slots.take(count);
}

int32_t Engine::take(Slots& slots) { return take(slots, 1)[0]; }

PlanInput Engine::plan_input(const Mode& mode) const {
  PlanInput input;
  input.mode = mode;
  input.page_size = options_.pools.page_size;
  input.max_rows = options_.max_rows;
  input.faults = options_.faults;
  return input;
}

RunResult Engine::run_own(const std::vector<Request>& requests, const Mode& mode, const RunOptions& options) {
  HYPIC_CHECK(idle(), "run() beside requests that were submitted");
  Batch& batch = *live_.emplace_back(plan(requests, mode, options));
  while (!batch.finished()) advance();
  RunResult result;
  for (Running& r : batch.running) result.responses.push_back(std::move(r.response));
  result.host = batch.times;
  result.counters = batch.plan.counters;
  result.tables = std::move(batch.plan.tables);
  live_.clear();
  make_room_ahead();
  return result;
}

std::vector<Submitted> Engine::submit_own(const std::vector<Request>& requests, const Mode& mode) {
  Batch& batch = *live_.emplace_back(plan(requests, mode, {}));
  std::vector<Submitted> submitted;
  for (const Running& r : batch.running) submitted.push_back({r.ticket, r.response.reused});
  return submitted;
}

std::vector<Progress> Engine::step_own() {
  const std::vector<Progress> progress = advance();
  if (std::erase_if(live_, [](const auto& batch) { return batch->finished(); }) > 0) make_room_ahead();
  return progress;
}

void Engine::cancel_own(uint64_t ticket) {
  for (auto batch = live_.begin(); batch != live_.end(); ++batch) {
    std::vector<Running>& running = (*batch)->running;
    const auto found =
        std::find_if(running.begin(), running.end(), [&](const Running& r) { return r.ticket == ticket; });
    if (found == running.end()) continue;
    found->cancelled = true;
    if (next_ && next_->begun)
      std::replace(next_->rows.begin(), next_->rows.end(), &*found, static_cast<Running*>(nullptr));
    else
      next_.reset();
    if ((*batch)->prefilled()) (*batch)->release(*found);
    // A prompt that is not through takes its companions along; without any left it need not go on.
    if (std::all_of(running.begin(), running.end(), [](const Running& r) { return r.finished(); })) live_.erase(batch);
    return;
  }
}

bool Engine::prefilling() const {
  return std::any_of(live_.begin(), live_.end(), [](const auto& batch) { return !batch->prefilled(); });
}

bool Engine::fits(const std::vector<Request>& requests, const Mode& mode) const {
  const Room need = room_for(requests, mode);
  return need.states + need.build_states <= cache_.most_available(states_) &&
         need.operators <= cache_.most_available(operators_) && need.pages <= cache_.most_available(pages_);
}

Engine::Expected Engine::expected(const Request& request, const Mode& mode) const {
  Expected found{.is_cached = mode.reuse != Reuse::none};
  for (const Tokens& tokens : request.segments) found.rows += static_cast<int64_t>(tokens.size());
  const std::span<const Tokens> before = before_question(request);
  if (mode.reuse == Reuse::prefix) {
    const auto prefixes = cache_.prefixes(before);
    const auto longest = std::find_if(prefixes.rbegin(), prefixes.rend(),
                                      [&](const SegmentCache::Prefix& prefix) { return cache_.has_prefix(prefix); });
    found.is_cached = longest == prefixes.rbegin();
    if (longest != prefixes.rend()) found.rows -= static_cast<int64_t>(longest->length);
  } else if (mode.reuse == Reuse::segments) {
    const int64_t seams = mode.head + mode.tail;
    for (const Tokens& tokens : before) {
      const auto n = static_cast<int64_t>(tokens.size());
      if (n <= seams) continue;
      if (cache_.has_residue(tokens, mode.operator_first(), mode.tail))
        found.rows -= n - seams;
      else
        found.is_cached = false;
    }
  }
  return found;
}

// What a plan with these segments before the question looks up.
void Engine::want(std::span<const Tokens> segments, const Mode& mode, SegmentCache::Ahead& ahead) const {
  if (!cache_.reads_ahead()) return;  // hashing takes a while
  if (mode.reuse == Reuse::prefix) cache_.want_prefix(ahead, cache_.prefixes(segments));
  if (mode.reuse != Reuse::segments) return;
  for (const Tokens& tokens : segments)
    if (static_cast<int64_t>(tokens.size()) > mode.head + mode.tail)
      cache_.want_residue(ahead, tokens, mode.operator_first(), mode.tail);
}

SegmentCache::Ahead Engine::wanted(const Request& request, const Mode& mode) const {
  SegmentCache::Ahead ahead;
  want(before_question(request), mode, ahead);
  return ahead;
}

// What runs next is done; what threw has left nothing behind.
std::vector<Progress> Engine::advance() {
  try {
    std::vector<Progress> progress;
    const auto next = std::find_if(live_.begin(), live_.end(), [](const auto& batch) { return !batch->prefilled(); });
    std::vector<Running*> joining;  // answers that go on in the same forward: it reads the weights once for both
    if (next != live_.end()) {
      const auto rows = static_cast<size_t>((*next)->plan.tables[(*next)->next_table].row_count());
      if (!next_ || !next_->begun) joining = answering();
      if (rows + joining.size() > static_cast<size_t>(options_.max_rows) || receives(**next)) joining.clear();
      run_table(**next, joining, progress);
    }
    if (joining.empty()) decode(progress);
    for (const auto& batch : live_)
      for (Running& r : batch->running)
        if (batch->prefilled() && r.finished()) batch->release(r);
    return progress;
  } catch (...) {
    next_.reset();
    live_.clear();
    throw;
  }
}

// Copies of what makes room for a request go to lower tiers ahead of its first operation. So that they seldom have to,
// as much as the last batch took is free when the next one comes, up to a share of each pool.
void Engine::make_room_ahead() {
  constexpr int64_t kShare = 8;
  if (!cache_.has_lower_tiers()) return;
  const PoolSizes& pools = options_.pools;
  for (const auto& [slots, size] : {std::pair(&pages_, pools.pages), {&operators_, pools.operator_slots},
                                    {&states_, pools.state_slots}})
    cache_.make_room(*slots, std::min(taken_[slots], size / kShare));
}

std::unique_ptr<Engine::Batch> Engine::plan(const std::vector<Request>& requests, const Mode& mode,
                                            const RunOptions& options) {
  taken_.clear();
  auto planned = std::make_unique<Batch>(*this, mode, options);
  Batch& batch = *planned;
  require_room(requests, mode, options.keep_state);
  const Stopwatch match(in(batch.host(), &HostSeconds::match));
  SegmentCache::Ahead ahead;  // files are read side by side, while those that are there are brought to the device
  for (const Request& request : requests) want(before_question(request), mode, ahead);
  cache_.read_ahead(ahead);
  for (const Request& request : requests) admit(request, options.keep_state, batch);
  // Only now: what is worth storing must not take the slots that a request needs.
  for (size_t i = 0; i < batch.running.size(); ++i)
    plan_saves(batch.running[i], batch.input.requests[i]);
  plan_tables(batch);
  for (Running& r : batch.running) r.ticket = ++last_ticket_;
  return planned;
}

// The forwards of the requests that have no token yet, and of the builds that neither come from elsewhere nor have come.
// Each build gets a state to run in. Where something comes from elsewhere, how many that takes was not known when there
// was room for the request: then those for which there is none run first, in forwards of their own.
void Engine::plan_tables(Batch& batch) {
  batch.planned.clear();
  for (size_t i = 0; i < batch.running.size(); ++i)
    if (batch.running[i].response.tokens.empty()) batch.planned.push_back(i);
  PlanInput part = plan_input(batch.input.mode);
  part.residues = batch.input.residues;
  batch.plan = {};
  batch.next_table = 0;
  const auto add = [&] {
    Plan plan = plan_prefill(part);
    std::move(plan.tables.begin(), plan.tables.end(), std::back_inserter(batch.plan.tables));
    std::move(plan.logit_owners.begin(), plan.logit_owners.end(), std::back_inserter(batch.plan.logit_owners));
    batch.plan.residues = std::move(plan.residues);
    batch.plan.counters += plan.counters;
    part.builds.clear();
  };
  std::optional<BuildStates> which(batch.input.max_rows);
  for (size_t i = 0; i < batch.built.size(); ++i) {
    if (batch.built[i].elsewhere()) continue;
    Build build = batch.input.builds[i];
    const auto tokens = static_cast<int64_t>(build.tokens.size());
    auto state = static_cast<size_t>(BuildStates(*which).next(tokens));
    if (state == batch.build_states.size()) {
      if (batch.receives && state > 0 && cache_.most_available(states_) == 0) {
        add();
        which.emplace(batch.input.max_rows);
        state = 0;
      } else {
        batch.build_states.push_back(take(states_));
      }
    }
    which->next(tokens);
    build.state = batch.build_states[state];
    part.builds.push_back(std::move(build));
  }
  // One at least for what does not come after all.
  if (batch.receives && batch.build_states.empty()) batch.build_states.push_back(take(states_));
  for (const size_t i : batch.planned) part.requests.push_back(batch.input.requests[i]);
  add();
  for (size_t i = 0; i < batch.planned.size(); ++i)
    batch.running[batch.planned[i]].residues = batch.plan.residues[i];
}

// After something does not come: it is computed here. Prompts that are through have their tokens and go on.
void Engine::restart(Batch& batch) {
  ++restarts_;
  for (Batch::Built& built : batch.built)
    if (built.arrival && agreed([&] { return built.arrival->fails(); })) built.arrival.reset();
  batch.given_up.push_back(std::move(batch.plan));
  plan_tables(batch);
}

// What the prompts leave goes to the cache at once, for those that come next. Decoding needs no operators, and shares
// in the pages that it reads, so nothing is pinned meanwhile: what is new may push out what was used.
void Engine::end_prefill(Batch& batch) {
  for (Running& r : batch.running) {
    if (r.kept_state != kNone)
      r.response.state_before_question = download_state(r.kept_from == kNone ? r.kept_state : r.kept_from);
    for (const SegmentCache::Pin& pin : r.pins)
      for (const int32_t page : pin.pages()) {
        pages_.share(page);
        r.hit_pages.push_back(page);
      }
    r.pins.clear();
  }
  const Stopwatch store(in(batch.host(), &HostSeconds::store));
  if (options_.faults.stored_twice && std::any_of(batch.running.begin(), batch.running.end(),
                                                  [](const Running& r) { return r.max_tokens > 1; })) {
    const auto residues = batch.input.residues;
    store_builds(batch);
    batch.input.residues = residues;
  }
  store_builds(batch);
  store_prefixes(batch);
  batch.release_build_states();
}

Counters Engine::warm_own(const std::vector<Tokens>& segments, const Mode& mode, const RunOptions& options) {
  Batch batch(*this, mode, options);
  std::vector<SegmentCache::Pin> pins;
  std::vector<int32_t> residues;  // by segment
  SegmentCache::Ahead ahead;
  want(segments, mode, ahead);
  cache_.read_ahead(ahead);
  int32_t position = 0;
  for (const Tokens& tokens : segments) {
    check_tokens(tokens);
    const int32_t n = static_cast<int32_t>(tokens.size()), most = model_.spec().max_positions;
    require(n < most, "a segment of ", n, " tokens exceeds the model's ", most, " positions");
    if (position > most - n) position = 0;  // a corpus may be longer than any prompt
    residues.push_back(residue_for(tokens, position, true, pins, batch));
    position += n;
  }
  plan_tables(batch);
  for (size_t i = 0; options.sink && i < segments.size(); ++i) {
    if (residues[i] == kNone) continue;
    const Residue& residue = batch.input.residues[residues[i]];
    options.sink->begin(rank_pools(), i, {residue.pages, residue.op}, !batch.builds(residues[i]));
  }
  std::vector<Progress> none;
  while (!batch.prefilled()) run_table(batch, {}, none);
  if (options_.faults.warm_without_state && segments.size() == 1)
    for (const Build& build : batch.input.builds)
      zero_operator(batch.input.residues[build.residue].op);
  pins.clear();  // what is new may push out what was used
  store_builds(batch);
  return batch.plan.counters;
}

// What requests take; of pages and operators what they would if nothing of them were cached, for what is found is not
// free for others either. Equal segments share a residue.
Engine::Room Engine::room_for(const std::vector<Request>& requests, const Mode& mode) const {
  const int32_t page_size = options_.pools.page_size;
  Room room;
  std::set<Tokens> reused;
  BuildStates build_states(options_.max_rows);
  for (const Request& request : requests) {
    room.states += 1;
    int64_t own = request.max_tokens, total = own;
    for (size_t i = 0; i < request.segments.size(); ++i) {
      const Tokens& tokens = request.segments[i];
      const auto n = static_cast<int64_t>(tokens.size());
      const bool residue =
          mode.reuse == Reuse::segments && i + 1 < request.segments.size() && n > mode.head + mode.tail;
      own += residue ? mode.head + mode.tail : n;
      total += n;
      if (!residue || !reused.insert(tokens).second) continue;
      room.pages += pages_for(n, page_size);
      if (!cache_.has_residue(tokens, mode.operator_first(), mode.tail)) build_states.next(n);
    }
    room.pages += pages_for(own, page_size);
    room.too_long = room.too_long || total > model_.spec().max_positions;
  }
  room.operators = static_cast<int64_t>(reused.size());
  room.build_states = build_states.count();
  return room;
}

// Refuses a batch that the pools could not hold if nothing else were in them, before it pushes anything out.
void Engine::require_room(const std::vector<Request>& requests, const Mode& mode, bool keep_state) const {
  const PoolSizes& pools = options_.pools;
  Room need = room_for(requests, mode);
  if (keep_state) need.states *= 2;
  if (need.too_long) return;  // for admit to refuse
  if (options_.faults.hits_not_pinned) return;
  if (mode.reuse == Reuse::prefix && need.pages > pools.pages) need.pages -= shared_pages(requests);
  for (const auto& [what, needed, there] : {std::tuple{"state slots", need.states, pools.state_slots},
                                            {"operator slots", need.operators, pools.operator_slots},
                                            {"K, V pages", need.pages, pools.pages}})
    if (needed > there)
      throw OutOfMemory(str(needed, " ", what, " are needed, there are ", there,
                            "; raise the pool or run fewer requests at once"));
}

// Pages that the requests of a batch need not have of their own, for they start from the same cached prefixes.
int64_t Engine::shared_pages(const std::vector<Request>& requests) const {
  int64_t shared = 0;
  std::set<Sha256::Digest> counted;
  for (const Request& request : requests) {
    if (request.segments.empty()) continue;
    const auto prefixes = cache_.prefixes(std::span(request.segments).first(request.segments.size() - 1));
    const auto longest = std::find_if(prefixes.rbegin(), prefixes.rend(),
                                      [&](const SegmentCache::Prefix& prefix) { return cache_.has_prefix(prefix); });
    if (longest == prefixes.rend()) continue;
    const auto length = static_cast<int64_t>(longest->length);
    shared += length / options_.pools.page_size;
    if (counted.insert(longest->key).second) shared -= pages_for(length, options_.pools.page_size);
  }
  return shared;
}

void Engine::check_tokens(const Tokens& tokens) const {
  const int32_t vocabulary = model_.spec().vocabulary;
  for (const int32_t token : tokens)
    require(0 <= token && token < vocabulary, "token ", token, " is outside the vocabulary of ",
            vocabulary, "; does the tokenizer belong to the model?");
}

void Engine::admit(const Request& request, bool keep_state, Batch& batch) {
  const Mode& mode = batch.input.mode;
  Running& running = batch.running.emplace_back();
  int64_t total = 0;
  for (const Tokens& tokens : request.segments) {
    if (tokens.empty()) continue;
    check_tokens(tokens);
    total += static_cast<int64_t>(tokens.size());
    running.segments.push_back(tokens);
  }
  require(!request.segments.empty() && !request.segments.back().empty(),
          "a request ends in a question of at least one token");
  require(request.max_tokens >= 1, "max_tokens must be at least 1, is ", request.max_tokens);
  require(total + request.max_tokens <= model_.spec().max_positions, "the prompt of ", total,
          " tokens and ", request.max_tokens, " new ones exceed the model's ",
          model_.spec().max_positions, " positions");
  running.max_tokens = request.max_tokens;
  running.sampling = checked(request.sampling);
  running.logits = request.logits;
  running.stop = request.stop;
  running.gaps = request.gaps;
  running.position = static_cast<int32_t>(total);
  running.state = take(states_);
  if (keep_state) running.kept_state = take(states_);

  PlanRequest plan;
  plan.state = running.state;
  const size_t question = running.segments.size() - 1;
  int32_t position = 0;
  for (size_t i = 0; i <= question; ++i) {
    const Tokens& tokens = running.segments[i];
    const int32_t n = static_cast<int32_t>(tokens.size());
    const int32_t residue =
        i < question ? residue_for(tokens, position, false, running.pins, batch) : kNone;
    plan.segments.push_back({tokens, residue, kNone});
    if (residue != kNone && !batch.builds(residue)) {
      running.response.reused.segments += n - mode.head - mode.tail;
      running.response.reused.recomputed += mode.head + mode.tail;
    }
    running.own += residue == kNone ? n : mode.head + mode.tail;
    position += n;
  }
  if (mode.reuse == Reuse::prefix) start_from_prefix(running, plan, batch);
  const int64_t needed = pages_for(running.own + request.max_tokens, options_.pools.page_size);
  const std::vector<int32_t> more =
      take(pages_, needed - static_cast<int64_t>(running.pages.size()));
  running.pages.insert(running.pages.end(), more.begin(), more.end());
  plan.pages = running.pages;
  batch.input.requests.push_back(std::move(plan));
}

// Starts from the longest cached prefix of whole segments.
void Engine::start_from_prefix(Running& running, PlanRequest& plan, Batch& batch) {
  running.prefixes = cache_.prefixes(std::span(running.segments).first(running.segments.size() - 1));
  if (running.prefixes.empty()) return;
  const auto find = [&] {
    const Lookup lookup(batch.host(), cache_);
    return cache_.find_prefix(running.prefixes);
  };
  auto found = find();
  if (!found) return;
  SegmentCache::Pin& hit = running.pins.emplace_back(std::move(found->second));
  running.prefix_segments = found->first + 1;
  plan.segments.erase(plan.segments.begin(), plan.segments.begin() + running.prefix_segments);
  plan.fresh = false;
  plan.prefix = static_cast<int32_t>(hit.tokens().size());
  running.response.reused.prefix = plan.prefix;
  copy_state(running.state, hit.slot());
  const int32_t page_size = options_.pools.page_size;
  for (int32_t i = 0; i < plan.prefix / page_size; ++i) {
    pages_.share(hit.pages()[i]);
    running.pages.push_back(hit.pages()[i]);
  }
  if (plan.prefix % page_size != 0) {  // this request appends behind the prefix: its own copy
    running.pages.push_back(take(pages_));
    copy_page(running.pages.back(), hit.pages().back());
  }
}

// Which states the forwards save: the one before the question, and prefixes that are worth storing
// as far as slots go.
void Engine::plan_saves(Running& running, PlanRequest& plan) {
  for (size_t i = running.prefix_segments; i < running.prefixes.size(); ++i) {
    if (cache_.admits(running.prefixes[i])) {
      cache_.make_room(states_, 1);
      if (states_.available() > 0) {
        const int32_t state = states_.take();
        plan.segments[i - running.prefix_segments].save = state;
        running.snapshots.emplace_back(i, state);
        continue;
      }
    }
    cache_.count_refused();
  }
  if (running.kept_state == kNone) return;
  if (plan.segments.size() == 1) {  // nothing is computed before the question
    plan.fresh ? zero_state(running.kept_state) : copy_state(running.kept_state, running.state);
    return;
  }
  int32_t& save = plan.segments[plan.segments.size() - 2].save;
  if (save == kNone)
    save = running.kept_state;
  else
    running.kept_from = save;
}

// The residue of a segment in this plan: cached, already planned, or a new build. kNone where the
// mode reuses no segments or this one is too short.
int32_t Engine::residue_for(const Tokens& tokens, int32_t position, bool warm,
                            std::vector<SegmentCache::Pin>& pins, Batch& batch) {
  PlanInput& input = batch.input;
  const Mode& mode = input.mode;
  const int32_t n = static_cast<int32_t>(tokens.size());
  if (mode.reuse != Reuse::segments || n <= mode.head + mode.tail) return kNone;
  const size_t request = input.requests.size();
  for (size_t i = 0; i < input.builds.size(); ++i) {
    if (input.builds[i].tokens != tokens) continue;
    // Another request for it is its second touch; the same request once more is not.
    Batch::Built& built = batch.built[i];
    if (built.request != request && cache_.admits(tokens)) built.admitted = true;
    return input.builds[i].residue;
  }

  const int32_t index = static_cast<int32_t>(input.residues.size());
  const auto find = [&] {
    const Lookup lookup(batch.host(), cache_);
    return cache_.find_residue(tokens, mode.operator_first(), mode.tail);
  };
  SegmentCache::ResiduePins hit = find();
  const bool admitted = cache_.admits(tokens) || warm;
  Residue& residue = input.residues.emplace_back();
  residue.length = n;
  if (hit) {
    residue.built_at = hit.kv.built_at();
    residue.pages = hit.kv.pages();
    residue.op = hit.op.slot();
    if (options_.faults.hits_not_pinned) return index;
    pins.push_back(std::move(hit.kv));
    pins.push_back(std::move(hit.op));
    return index;
  }
  // Where only one of the two is cached both are built; the one in excess is given back afterwards.
  residue.built_at = cache_.built_at(tokens).value_or(position);
  Build& build = input.builds.emplace_back();
  Batch::Built& built = batch.built.emplace_back(Batch::Built{admitted, request});
  build.residue = index;
  build.tokens = tokens;
  residue.op = take(operators_);
  residue.pages = take(pages_, pages_for(n, options_.pools.page_size));
  if (source_ && !warm)
    built.arrival = agreed([&] { return source_->accept(tokens, mode.operator_first(), mode.tail); });
  batch.receives = batch.receives || built.arrival;
  return index;
}

// Hands what the builds left to the cache; the batch keeps a share of the pages. Operators that are handed over are the
// batch's no more, whatever throws.
void Engine::store_builds(Batch& batch) {
  const Mode& mode = batch.input.mode;
  for (size_t i = 0; i < batch.input.builds.size(); ++i) {
    const Build& build = batch.input.builds[i];
    Residue& residue = batch.input.residues[build.residue];
    const int32_t op = std::exchange(residue.op, kNone);
    if (op == kNone) continue;
    if (batch.built[i].admitted && !batch.built[i].arrival) {
      for (const int32_t page : residue.pages) pages_.share(page);
      cache_.insert_residue(build.tokens, mode.operator_first(), mode.tail, residue.pages, op, residue.built_at);
    } else {
      cache_.count_refused();
      operators_.give_back(op);
    }
  }
}

void Engine::store_prefixes(Batch& batch) {
  for (Running& r : batch.running) {
    std::reverse(r.snapshots.begin(), r.snapshots.end());  // the shortest is stored first
    while (!r.snapshots.empty()) {
      const auto [which, state] = r.snapshots.back();
      const SegmentCache::Prefix& prefix = r.prefixes[which];
      const int64_t held = pages_for(static_cast<int64_t>(prefix.length), options_.pools.page_size);
      std::vector<int32_t> shared(r.pages.begin(), r.pages.begin() + held);
      for (const int32_t page : shared) pages_.share(page);
      r.snapshots.pop_back();
      cache_.insert_prefix(prefix, std::move(shared), state);
    }
  }
}

// What a forward of the prefill does around each layer.
class Engine::Hooks final : public LayerHooks {
 public:
  // Of the batch's table t.
  Hooks(const Engine& engine, Batch& batch, size_t t)
      : engine_(engine), options_(batch.options), last_(t + 1 == batch.plan.tables.size()) {
    for (const ChainItem& item : batch.plan.tables[t].items)
      for (size_t i = 0; i < batch.built.size() && item.kind == ChainItem::Kind::jump; ++i) {
        const Residue& residue = batch.input.residues[batch.input.builds[i].residue];
        if (batch.built[i].arrival && residue.op == item.op &&
            std::none_of(awaited_.begin(), awaited_.end(), [&](const auto& a) { return a.first == &batch.built[i]; }))
          awaited_.emplace_back(&batch.built[i], Placement{residue.pages, residue.op});
      }
  }
  bool awaits() const { return !awaited_.empty(); }
  bool needed() const { return options_.hooks || !awaited_.empty() || (options_.sink && last_); }

  void before(int layer) override {
    for (const auto& [built, to] : awaited_) {
      Arrival& arrival = *built->arrival;
      if (!engine_.agreed([&] { return arrival.comes(layer); })) throw NotComing();
      arrival.place(layer, engine_.rank_pools(), to);
    }
    if (options_.hooks) options_.hooks->before(layer);
  }
  void after(int layer) override {
    if (options_.hooks) options_.hooks->after(layer);
    if (options_.sink && last_) options_.sink->after(engine_.rank_pools(), layer);
  }
  void all_arrived() {
    for (const auto& [built, to] : awaited_) {
      built->arrived = true;
      built->arrival.reset();
    }
  }

 private:
  const Engine& engine_;
  const RunOptions& options_;
  std::vector<std::pair<Batch::Built*, Placement>> awaited_;  // and where to
  const bool last_;
};

// Whether the next forward of a batch waits for something from elsewhere: it may be given up then, half done.
bool Engine::receives(Batch& batch) const {
  return batch.receives && Hooks(*this, batch, batch.next_table).awaits();
}

// The next forward of a batch's prompts, with a step of the answers that join it.
void Engine::run_table(Batch& batch, const std::vector<Running*>& joining, std::vector<Progress>& progress) {
  const RunOptions& options = batch.options;
  const size_t t = batch.next_table;
  ChainTable joined;
  if (!joining.empty()) {
    joined = decode_table(joining, 0);
    join(joined, batch.plan.tables[t]);
    for (Running* r : joining) ++r->position, ++r->own;
  }
  const ChainTable& table = joining.empty() ? batch.plan.tables[t] : joined;
  const int64_t n = static_cast<int64_t>(table.logit_rows.size());
  const Buffer logits(model_.backend(), model_.backend().compute_dtype(),
                      {n, model_.spec().vocabulary});
  check_table(pools_, table);
  if (next_ && !next_->begun) next_.reset();  // its table would not be the backend's any more
  const auto upload = [&] {
    const Stopwatch load(in(t == 0 ? batch.host() : nullptr, &HostSeconds::load));
    return model_.backend().begin(table);
  };
  if (options.routes) options.routes->begin(table);
  Hooks hooks(*this, batch, t);
  try {
    enqueue_forward(model_, pools_, upload(), logits, {options.tap, hooks.needed() ? &hooks : nullptr, options.routes});
  } catch (const NotComing&) {
    restart(batch);
    return;
  }
  hooks.all_arrived();
  std::vector<Running*> owners = joining;
  for (const int32_t owner : batch.plan.logit_owners[t]) {
    Running& r = batch.running[batch.planned[owner]];
    const auto row = static_cast<int64_t>(owners.size());
    if (r.logits) r.response.logits = to_doubles(model_.backend(), logits.tensor().at(row));
    owners.push_back(&r);
  }
  sample(logits, owners, progress);
  ++batch.next_table;
  if (batch.prefilled() && !batch.running.empty()) end_prefill(batch);
}

// The token that comes next in each row.
void Engine::sample(const Tensor& logits, const std::vector<Running*>& rows, std::vector<Progress>& progress) {
  if (rows.empty()) return;
  Backend& backend = model_.backend();
  const int64_t n = static_cast<int64_t>(rows.size());
  const Buffer out(backend, DType::i32, {n});
  if (greedy(rows)) {
    backend.sample({.logits = logits, .out = out});
  } else {
    const Draws draws(backend, n);
    draws.upload(backend, rows, 0);
    backend.sample(draws.args(logits, out));
  }
  follow_first_rank(out);
  Tokens tokens(n);
  backend.download(tokens.data(), out);
  append(rows, tokens.data(), logits, progress);
}

// Ranks go on with one rank's tokens, whatever the others' logits: where one ended earlier, the others would wait for
// it.
void Engine::follow_first_rank(const Tensor& tokens) const {
  if (model_.spec().rank > 0) model_.backend().fill_zero(tokens);
  model_.backend().all_reduce(tokens);
}

// Appends to each row's response its token, sampled from these logits.
void Engine::append(const std::vector<Running*>& rows, const int32_t* tokens, const Tensor& logits,
                    std::vector<Progress>& progress) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i]) continue;
    rows[i]->response.tokens.push_back(tokens[i]);
    progress.push_back({rows[i]->ticket, tokens[i], rows[i]->finished()});
  }
  if (std::none_of(rows.begin(), rows.end(), [](const Running* r) { return r && r->gaps; })) return;
  const std::vector<double> all = to_doubles(model_.backend(), logits);
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] && rows[i]->gaps) rows[i]->response.gaps.push_back(lead(all.data() + i * logits[1], logits[1]));
}

// A token of each request whose prompt is through. It is sampled on the device, where the next step finds it as long as
// the same requests go on and no prompt waits: that step is planned while the device is at work, and begun before the
// tokens are known unless one of them might end a request.
void Engine::decode(std::vector<Progress>& progress) {
  std::unique_ptr<Step> step = std::move(next_);
  if (!step || !step->begun) {
    const std::vector<Running*> active = answering();
    if (active.empty()) return;
    if (!step || step->rows != active) step = plan_step(active, nullptr);
    begin(*step);
  }
  const std::vector<Running*>& rows = step->rows;
  if (!prefilling() && std::all_of(rows.begin(), rows.end(), [](const Running* r) {
        return r && !r->gaps && static_cast<int32_t>(r->response.tokens.size()) + 1 < r->max_tokens;
      })) {
    next_ = plan_step(rows, step.get());
    if (std::all_of(rows.begin(), rows.end(), [](const Running* r) { return r->stop.empty(); })) begin(*next_);
  }
  if (step->arrived) step->arrived->wait();
  for (Running* r : rows)
    if (r) ++r->position, ++r->own;
  append(rows, step->tokens, decode_logits_.tensor().rows(0, static_cast<int64_t>(rows.size())), progress);
  if (std::any_of(rows.begin(), rows.end(), [](const Running* r) { return r && r->finished(); })) next_.reset();
}

// Requests whose prompt is through, the oldest first.
std::vector<Engine::Running*> Engine::answering() const {
  std::vector<Running*> rows;
  for (const auto& batch : live_)
    if (batch->prefilled())
      for (Running& r : batch->running)
        if (!r.finished()) rows.push_back(&r);
  return rows;
}

// The step `ahead` steps after the next one of these requests. Its tokens are the last ones that are known.
ChainTable Engine::decode_table(const std::vector<Running*>& rows, int32_t ahead) const {
  std::vector<DecodeRow> table;
  for (const Running* r : rows)
    table.push_back(
        {r->response.tokens.back(), r->position + ahead, r->state, r->own + ahead, &r->pages, &r->residues});
  return plan_decode(table, options_.pools.page_size);
}

// The next step of these requests; after `before`, which has the same rows, is under way and leaves their tokens on the
// device.
std::unique_ptr<Engine::Step> Engine::plan_step(const std::vector<Running*>& rows, const Step* before) {
  Backend& backend = model_.backend();
  const int64_t n = static_cast<int64_t>(rows.size());
  if (!decode_logits_ || decode_logits_.tensor()[0] < n) {
    const int64_t most = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
    decode_logits_ = Buffer(backend, backend.compute_dtype(), {most, model_.spec().vocabulary});
    decode_tokens_ = Buffer(backend, DType::i32, {most});
    decode_draws_ = std::make_unique<Draws>(backend, most);
    host_tokens_ = decltype(host_tokens_)(
        static_cast<int32_t*>(backend.allocate_host(2 * static_cast<size_t>(most) * sizeof(int32_t))),
        ReleaseHost{&backend});
  }
  const int64_t most = decode_logits_.tensor()[0];
  const auto ahead = static_cast<int32_t>(before != nullptr);
  auto step = std::make_unique<Step>();
  step->rows = rows;
  step->tokens = host_tokens_.get() + (before && before->tokens == host_tokens_.get() ? most : 0);
  step->table = decode_table(rows, ahead);
  check_table(pools_, step->table);
  step->inputs = backend.begin(step->table);
  step->inputs.tokens = decode_tokens_.tensor().rows(0, n);
  if (!before) backend.upload(step->inputs.tokens, step->table.tokens.data());
  if (!greedy(rows)) decode_draws_->upload(backend, rows, ahead + 1);
  return step;
}

void Engine::begin(Step& step) {
  Backend& backend = model_.backend();
  const Tensor tokens = step.inputs.tokens, logits = decode_logits_.tensor().rows(0, tokens[0]);
  const bool drawn = !greedy(step.rows);
  backend.replay(str(drawn ? "decode drawn|" : "decode|", serial_, "|", logits.data, "|", tokens.data), [&] {
    enqueue_forward(model_, pools_, step.inputs, logits);
    backend.sample(drawn ? decode_draws_->args(logits, tokens) : SampleArgs{.logits = logits, .out = tokens});
    follow_first_rank(tokens);
  });
  step.begun = true;
  backend.download_async(step.tokens, tokens);
  step.arrived = backend.record();
}

void Engine::copy_state(int32_t to, int32_t from) {
  for (const LinearPool& pool : pools_.linear) {
    if (!pool.state) continue;
    model_.backend().copy(pool.state.tensor().at(to), pool.state.tensor().at(from));
    model_.backend().copy(pool.window.tensor().at(to), pool.window.tensor().at(from));
  }
}

void Engine::copy_page(int32_t to, int32_t from) {
  for (const AttentionPool& pool : pools_.attention) {
    if (!pool.k) continue;
    model_.backend().copy(pool.k.tensor().at(to), pool.k.tensor().at(from));
    if (pool.v) model_.backend().copy(pool.v.tensor().at(to), pool.v.tensor().at(from));
  }
}

void Engine::zero_state(int32_t slot) {
  for (const LinearPool& pool : pools_.linear) {
    if (!pool.state) continue;
    model_.backend().fill_zero(pool.state.tensor().at(slot));
    model_.backend().fill_zero(pool.window.tensor().at(slot));
  }
}

void Engine::zero_operator(int32_t slot) {
  for (const LinearPool& pool : pools_.linear)
    for (const Buffer* part : {&pool.U, &pool.T, &pool.tail})
      if (*part) model_.backend().fill_zero(part->tensor().at(slot));
}

std::vector<std::vector<double>> Engine::download_state(int32_t slot) const {
  std::vector<std::vector<double>> states;
  for (const LinearPool& pool : pools_.linear) {
    auto& state = states.emplace_back();
    if (!pool.state) continue;
    state = to_doubles(model_.backend(), pool.state.tensor().at(slot));
  }
  return states;
}

void Engine::check_integrity() const {
  for (const auto& peer : peers_) peer->check_integrity();
  cache_.check_integrity();
  const auto [pages, operators, states] = cache_.held();
  HYPIC_CHECK(pages_.in_use() == pages, pages_.in_use(), " pages in use, the cache holds ", pages);
  HYPIC_CHECK(operators_.in_use() == operators, operators_.in_use(), " operators, the cache holds ",
              operators);
  HYPIC_CHECK(states_.in_use() == states, states_.in_use(), " states, the cache holds ", states);
  HYPIC_CHECK(cache_.pinned() == 0, cache_.pinned(), " entries are still pinned");
}

}  // namespace hypic
