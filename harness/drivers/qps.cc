#include <algorithm>
#include <cmath>
#include <ctime>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "core/check.h"
#include "harness/assets.h"
#include "harness/descriptors.h"
#include "harness/driver.h"
#include "harness/load/client.h"
#include "harness/load/mock_server.h"
#include "harness/load/own_server.h"
#include "harness/load/prompts.h"
#include "harness/load/schedule.h"
#include "harness/load/search.h"
#include "harness/load/summary.h"
#include "harness/load/tally.h"
#include "harness/measure/bootstrap.h"
#include "harness/model_choice.h"
#include "reports/text.h"

namespace hypic {
namespace {

using namespace load;

enum class Cache { any, cold, primed };

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr auto kLook = std::chrono::milliseconds(100);  // between looks at a run
constexpr int64_t kPrimingAtOnce = 4;
constexpr int64_t kDescriptors = 1 << 16;
constexpr double kFewest = 0.01;  // of the answers: what fewer are like decides nothing
constexpr double kGib = double(int64_t{1} << 30);

// A server of this process, one mode after another.
struct Own {
  ModelChoice choice;
  std::vector<Mode> modes;
  OwnServerOptions server;  // but for the mode
};

struct Settings {
  std::string url;         // "mock", "serve", or an address
  std::optional<Own> own;  // "serve"
  std::string missing;     // why nothing can run here
  std::string path, flush;
  MockOptions mock;
  BodyOptions body;
  Shape shape;
  std::shared_ptr<const Trace> trace;
  int64_t trace_first = 0, trace_prime = 0, output_tokens = 0;
  bool trace_times = false;
  Pattern pattern;
  double speed = 1;  // of a trace's own times
  int64_t requests = 0, warmup = 0;
  Cache cache = Cache::any;
  std::optional<Interval> cached_share;
  Slo slo;
  double allowed = 0, confidence = 0, timeout = 0, lag_bound = 0;
  int64_t max_concurrency = 0;
  int threads = 1;
  bool search = false;
  SearchOptions searching;
};

// Requests a second of the trace's own times, over the requests that are measured.
double natural_rate(const Settings& s, int64_t requests) {
  const auto& all = s.trace->requests;
  const double span = all[s.trace_first + requests - 1].timestamp - all[s.trace_first].timestamp;
  return span > 0 ? static_cast<double>(requests - 1) / span : kInfinity;
}

template <class Read>
auto at(const std::string& where, const char* key, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    fail(where, ".parameters.", key, ": ", error.what());
  }
}

// A trace by its path, in the folder of the project, or in that of --data; empty: there is none.
std::string find_trace(const std::string& name, const std::string& data) {
  for (const std::string& path : {asset(name), data + "/" + name})
    if (std::filesystem::exists(path)) return path;
  return "";
}

// Of the prompts of the trace that the case sends.
void describe_prompts(const Settings& s, int64_t most, OwnServerOptions& server) {
  int64_t tokens = 0, segments = 0;
  for (int64_t i = s.trace_first - s.trace_prime; i < s.trace_first + most; ++i) {
    const TraceRequest& request = s.trace->requests[i];
    int64_t prompt = 0;
    for (const TraceSegment& segment : request.segments) prompt += segment.tokens;
    const int64_t answer = s.output_tokens > 0 ? s.output_tokens : std::max<int64_t>(1, request.output_tokens);
    server.longest = std::max(server.longest, prompt + answer);
    const auto count = static_cast<int64_t>(request.segments.size()) - 1;
    server.most_segments = std::max(server.most_segments, count);
    for (int64_t j = 0; j < count; ++j) tokens += request.segments[j].tokens;
    segments += std::max<int64_t>(count, 0);
  }
  server.segment_tokens = static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(segments, 1));
}

Settings read_settings(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters p(suite_case.parameters, where + ".parameters");
  Settings s;
  s.url = p.text("url", "mock");
  if (s.url == "serve") {
    Own& own = s.own.emplace();
    own.choice = read_model_choice(p, context, Ranks::several);
    for (const std::string& mode : p.texts("modes", {"full", "prefix", "transition_rope_seam"}))
      own.modes.push_back(at(where, "modes", [&] { return mode_named(mode); }));
    own.server.cache_bytes = static_cast<int64_t>(p.number("cache_gib", 1, 1e-6, 1e6) * kGib);
    own.server.host_bytes = static_cast<int64_t>(p.number("host_gib", 0, 0, 1e6) * kGib);
    own.server.at_once = p.integer("at_once", 16, 1, 1 << 16);
    own.server.chunk = static_cast<int32_t>(p.integer("chunk", 8192, 1, 1 << 20));
  }
  const std::string api = p.text("api", "openai");
  require(api == "openai" || api == "generate", where, ".parameters.api: must be openai or generate, is \"", api, "\"");
  s.body.api = api == "openai" ? Api::openai : Api::generate;
  s.path = api == "openai" ? "/v1/completions" : "/generate";
  require(!s.own || api == "openai", where, ".parameters.api: hypic's server has openai's alone");
  if (s.url != "mock" && !s.own) {
    const Url url = at(where, "url", [&] { return parse_url(s.url); });
    if (!url.path.empty()) s.path = url.path;
  }
  s.flush = p.text("flush", "/flush_cache");
  require(s.flush == "none" || s.flush.starts_with("/"), where, ".parameters.flush: must be a path or none, is \"",
          s.flush, "\"");
  s.mock.ttft = p.number("mock_ttft_ms", 20, 0, 1e6) / 1e3;
  s.mock.itl = p.number("mock_itl_ms", 5, 0, 1e6) / 1e3;
  s.mock.cv = p.number("mock_cv", 0, 0, 10);
  s.mock.capacity = p.integer("mock_capacity", 0, 0, 1 << 20);
  s.mock.error_share = p.number("mock_errors", 0, 0, 1);
  s.mock.hang_share = p.number("mock_hangs", 0, 0, 1);
  s.mock.cached_speed = p.number("mock_cached_speed", 1, 1, 1e6);

  const uint64_t seed = static_cast<uint64_t>(p.integer("seed", 1, 0, int64_t{1} << 53));
  s.body.seed = s.shape.seed = s.pattern.seed = s.mock.seed = seed;
  s.body.model = p.text("served_model", "");
  s.body.separator = s.mock.separator = p.text("separator", "\n\n");
  const std::string prompts = p.text("prompts", s.own ? "segments" : "text");
  require(prompts == "text" || prompts == "ids" || prompts == "segments", where,
          ".parameters.prompts: must be text, ids or segments, is \"", prompts, "\"");
  require(!s.own || prompts == "segments", where, ".parameters.prompts: hypic's server is asked by segments");
  require(prompts != "segments" || s.body.api == Api::openai, where, ".parameters.prompts: segments need api openai");
  s.body.form = prompts == "text" ? Form::text : prompts == "ids" ? Form::ids : Form::segments;
  if (s.own)
    s.body.vocabulary = at(where, "model", [&] { return spec_of(model_path(s.own->choice.model)).vocabulary; });
  else
    s.body.vocabulary = static_cast<int32_t>(p.integer("vocabulary", 32000, 512, 1 << 30));
  s.shape.segments = p.integer("segments", 4, 0, 4096);
  s.shape.tokens = p.integer("tokens", 512, 1, 1 << 20);
  s.shape.question = p.integer("question", 64, 1, 1 << 20);
  s.shape.pool = p.integer("pool", 0, 0, 1 << 20);
  s.output_tokens = p.integer("output_tokens", 0, 0, 1 << 20);
  s.shape.output_tokens = std::max<int64_t>(s.output_tokens, 1);
  s.requests = p.integer("requests", 200, 1, 1 << 22);
  s.warmup = p.integer("warmup", 1, 0, 1 << 20);
  const int64_t verify = p.integer("verify_requests", 500, 1, 1 << 22);
  s.search = p.integer("search", 0, 0, 1) == 1;

  const std::string arrivals = p.text("arrivals", "poisson");
  s.trace_times = arrivals == "trace";
  if (!s.trace_times) s.pattern.arrivals = at(where, "arrivals", [&] { return arrivals_of(arrivals); });
  s.pattern.rate = p.number("rate", s.trace_times ? 0 : 1, s.trace_times ? 0 : 1e-6, 1e6);
  s.pattern.burstiness = p.number("burstiness", 1, 1e-3, 1e3);
  s.pattern.burst = p.integer("burst", 8, 1, 1 << 20);
  s.speed = p.number("speed", 1, 1e-6, 1e6);

  const std::string cache = p.text("cache", "any");
  require(cache == "any" || cache == "cold" || cache == "primed", where,
          ".parameters.cache: must be any, cold or primed, is \"", cache, "\"");
  s.cache = cache == "cold" ? Cache::cold : cache == "primed" ? Cache::primed : Cache::any;
  const std::string trace = p.text("trace", ""), lengths = p.text("token_lengths", "");
  s.trace_first = p.integer("trace_first", 0, 0, int64_t{1} << 40);
  s.trace_prime = p.integer("trace_prime", s.trace_first, 0, s.trace_first);
  const int64_t most = s.search ? std::max(s.requests, verify) : s.requests;
  const std::string found = find_trace(trace, context.data);
  if (!trace.empty() && found.empty()) {
    require(s.own.has_value(), where, ".parameters.trace: ", trace, ": no such file");
    s.missing = str("no trace ", trace, " here; --data names its folder");
  } else if (!trace.empty()) {
    if (context.data_used && found != asset(trace)) *context.data_used = true;
    s.trace = std::make_shared<const Trace>(load_trace(found, lengths));
    const int64_t have = static_cast<int64_t>(s.trace->requests.size()) - s.trace_first;
    require(have >= most, where, ".parameters.requests: ", most, " from request ", s.trace_first, " on, but the trace ",
            "holds ", s.trace->requests.size());
    require(s.cache != Cache::primed || s.trace_prime > 0, where,
            ".parameters.trace_first: a primed cache needs requests before the measured ones");
    if (s.own) {
      describe_prompts(s, most, s.own->server);
      require(s.trace->reuse == TraceReuse::independent, where, ".parameters.trace: ", trace,
              " does not tell segments apart, so hypic's server cannot be asked by it");
    }
  } else {
    require(!s.own, where, ".parameters.trace: hypic's server is measured on a trace");
    require(!s.trace_times, where, ".parameters.arrivals: trace needs a trace");
    require(s.cache != Cache::primed || s.shape.pool > 0, where,
            ".parameters.pool: a primed cache needs a pool of passages that come again");
    at(where, "pool", [&] { return make_prompts(s.shape, 0, 1); });
  }
  const std::vector<double> share = p.numbers("cached_share", {-1});
  if (share != std::vector<double>{-1}) {
    require(share.size() == 2 && 0 <= share[0] && share[0] <= share[1] && share[1] <= 1, where,
            ".parameters.cached_share: must be [least, most], two shares in 0 … 1");
    s.cached_share = Interval{share[0], share[1]};
  }
  if (!s.cached_share && s.cache == Cache::cold && !s.trace && s.shape.pool == 0) s.cached_share = Interval{0, 0.02};
  if (!s.cached_share && s.cache == Cache::primed && !s.own) s.cached_share = Interval{0.01, 1};

  const std::vector<std::string> slo = p.texts("slo", {"none"});
  if (slo != std::vector<std::string>{"none"}) s.slo = at(where, "slo", [&] { return parse_slo(slo); });
  s.allowed = 1 - p.number("slo_share", 0.9, 0.5, 0.9999);
  s.confidence = p.number("confidence", 0.95, 0.5, 0.9999);
  s.timeout = p.number("timeout", 60, 1e-3, 1e5);
  const double tightest = std::min({s.slo.ttft, s.slo.e2el, 1.0});
  s.lag_bound = p.number("lag_bound_ms", 1e3 * std::max(0.01 * tightest, 1e-3), 1e-3, 1e6) / 1e3;
  s.max_concurrency = p.integer("max_concurrency", 0, 0, 1 << 20);
  s.threads = static_cast<int>(p.integer("threads", 1, 1, 256));

  s.searching.allowed = s.allowed;
  s.searching.confidence = s.confidence;
  s.searching.probe_requests = s.requests;
  s.searching.verify_requests = verify;
  s.searching.precision = p.number("precision", 0.05, 1e-3, 1);
  s.searching.verifications = static_cast<int>(p.integer("verifications", 3, 1, 20));
  s.searching.highest = p.number("highest_rate", 1e5, 1e-3, 1e6);
  if (s.search) {
    require(s.slo.any(), where, ".parameters.slo: a search needs one");
    s.searching.start = s.pattern.rate > 0 ? s.pattern.rate : s.trace ? natural_rate(s, s.requests) : 1;
    s.searching.start = std::clamp(s.searching.start, s.searching.lowest, s.searching.highest);
    const double each = 1 - (1 - s.confidence) / s.searching.verifications;
    require(misses_to_pass(verify, s.allowed, each) >= 0, where, ".parameters.verify_requests: ", verify,
            " can never show that at most ", format_number(100 * s.allowed), " % miss; take more");
  }
  p.refuse_others();
  return s;
}

// Passages of the pool, each in one prompt, with a question that is not asked again.
std::vector<Prompt> pool_prompts(const Shape& shape) {
  const int64_t each = std::max<int64_t>(shape.segments, 1);
  std::vector<Prompt> prompts;
  for (int64_t id = 0; id < shape.pool; ++id) {
    if (id % each == 0) prompts.emplace_back();
    prompts.back().passages.push_back({uint64_t(id), static_cast<int32_t>(shape.tokens)});
  }
  for (size_t i = 0; i < prompts.size(); ++i)
    prompts[i].passages.push_back({(uint64_t{1} << 61) + i, static_cast<int32_t>(shape.question)});
  return prompts;
}

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Phase {
  Summary summary;
  double rate = 0, cpu = 0;  // offered; cores that this process kept busy
  int64_t misses = 0;
  bool decided = false, saturated = false;  // ended early, by the misses or by the number in flight
  std::string invalid, first_error;
};

// Whether hypic's own server answers there, which takes the ids of each passage apart.
bool serves_hypic(const Url& url) {
  try {
    const auto models = nlohmann::json::parse(get(url, "/v1/models").body);
    return models.at("data").at(0).at("owned_by") == "hypic";
  } catch (const std::exception&) {  // no answer, or another one
    return false;
  }
}

// Hears how much of the time of a phase has passed, a share in [0, 1], and what is at hand.
using LookFn = std::function<void(double, const std::string&)>;

class Session {
 public:
  // `url`: where, if not as the settings say; `mode`: for the log of requests.
  Session(const Settings& settings, const std::string& name, ItemLog* items, const std::string& url = "",
          const std::string& mode = "")
      : s_(settings), body_(settings.body), name_(name), mode_(mode), items_(items) {
    if (s_.url == "mock") mock_ = std::make_unique<MockServer>(s_.mock);
    client_.url = parse_url(mock_ ? mock_->url() : url.empty() ? s_.url : url);
    client_.url.path = s_.path;
    client_.api = s_.body.api;
    client_.timeout = s_.timeout;
    client_.threads = s_.threads;
    if (body_.form == Form::ids && body_.api == Api::openai && serves_hypic(client_.url)) body_.form = Form::segments;
    if (items_)
      for (const nlohmann::json& row : items_->earlier(name_))
        if (row.contains("phase") && row["phase"].is_number_integer())
          phase_ = std::max(phase_, row["phase"].get<int64_t>());
  }

  // Brings the cache to its state, then offers `requests` at `rate`; once `enough` of them missed, the rest is not
  // sent. `rate` 0: as fast as the trace.
  Phase measure(double rate, int64_t requests, int64_t enough, const LookFn& say) {
    ++phase_;
    begun_ = Clock::now();
    warm_up(say);
    if (s_.cache != Cache::any && s_.flush != "none") {
      const int status = post(client_.url, s_.flush).status;
      require(status / 100 == 2, "POST ", s_.flush, ": HTTP ", status,
              "; name the server's path by `flush`, or none where it has none");
    }
    if (s_.cache == Cache::primed) {
      const std::vector<Prompt> prompts =
          s_.trace ? make_prompts(*s_.trace, s_.trace_first - s_.trace_prime, s_.trace_prime, 1)
                   : pool_prompts(s_.shape);
      closed_loop(prompts, "priming", say);
    }
    std::vector<double> times;
    std::vector<Prompt> prompts;
    if (s_.trace) {
      prompts = make_prompts(*s_.trace, s_.trace_first, requests, s_.output_tokens);
    } else {
      prompts = make_prompts(s_.shape, next_, requests);
      next_ += requests;
    }
    if (s_.trace_times) {
      const double natural = natural_rate(s_, requests);
      times = schedule(*s_.trace, s_.trace_first, requests, rate > 0 ? rate / natural : s_.speed);
      if (rate == 0) rate = natural * s_.speed;
    } else {
      Pattern pattern = s_.pattern;
      pattern.rate = rate;
      times = schedule(pattern, requests);
    }
    return offer(prompts, times, rate, enough, say);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void warm_up(const LookFn& say) {
    if (s_.warmup == 0) return;
    std::vector<Prompt> prompts;
    if (s_.trace) {
      prompts = make_prompts(*s_.trace, s_.trace_first, std::min<int64_t>(s_.warmup, s_.requests), 1);
    } else {
      prompts = make_prompts(s_.shape, next_, s_.warmup);
      next_ += s_.warmup;
    }
    closed_loop(prompts, "warm-up", say);
  }

  // A few at a time until all are answered. Error: one is not.
  void closed_loop(const std::vector<Prompt>& prompts, const char* what, const LookFn& say) {
    const Bodies bodies(prompts, body_);
    ClientOptions options = client_;
    options.max_concurrency = kPrimingAtOnce;
    options.threads = 1;
    options.timeout = std::max(s_.timeout, 60.0) * static_cast<double>(1 + prompts.size() / kPrimingAtOnce);
    Tally tally(static_cast<int64_t>(prompts.size()), 0, options.timeout);
    const std::vector<Record> records = watched(
        options, std::vector<double>(prompts.size(), 0.0), bodies, [&](const Record& record) { tally.add(record); },
        [&] { say(0, str(what, ": ", tally.text())); }, nullptr);
    for (const Record& record : records) require(record.ok(), what, ": ", record.error);
  }

  Phase offer(const std::vector<Prompt>& prompts, const std::vector<double>& times, double rate, int64_t enough,
              const LookFn& say) {
    const Bodies bodies(prompts, body_);
    ClientOptions options = client_;
    options.max_concurrency = s_.max_concurrency;
    Phase phase;
    phase.rate = rate;
    Tally tally(static_cast<int64_t>(times.size()), times.back(), options.timeout);
    std::vector<InFlight> flights;
    const auto finished = [&](const Record& record) {  // one at a time
      tally.add(record);
      const int64_t ended = tally.ended();
      phase.misses += !meets(record, s_.slo);
      const auto due = std::upper_bound(times.begin(), times.end(), record.ended) - times.begin();
      flights.push_back({record.ended, static_cast<int64_t>(due) - ended});
      if (phase.misses >= enough) phase.decided = stop_ = true;
      if (s_.slo.any() && ended % 64 == 0 && over_saturated(flights, rate, s_.slo.longest_wait()) &&
          !std::exchange(phase.saturated, true))
        stop_ = stop_ || enough <= static_cast<int64_t>(prompts.size());
    };
    const double cpu = cpu_seconds();
    const auto start = Clock::now();
    const auto look = [&] {
      const auto now = Clock::now();
      const double spent = seconds(now - begun_), left = tally.left(seconds(now - start));
      say(spent / (spent + left), str(format_number(rate), " requests/s, ", tally.text()));
    };
    const std::vector<Record> records = watched(options, times, bodies, finished, look, items_);
    phase.summary = summarise(records, s_.slo);
    phase.cpu = (cpu_seconds() - cpu) / std::max(phase.summary.duration, 1e-9);
    for (const Record& record : records)
      if (phase.first_error.empty() && record.released >= 0) phase.first_error = record.error;
    judge_run(phase);
    return phase;
  }

  void judge_run(Phase& phase) const {
    const Summary& sum = phase.summary;
    const double lag = sum.lag.empty() ? 0 : quantile(sum.lag, 0.99);
    if (lag > s_.lag_bound)
      phase.invalid = str("the client lags: 1 % of the requests were taken up ", format_number(1e3 * lag),
                          " ms after their time or later, allowed are ", format_number(1e3 * s_.lag_bound),
                          " ms; use more threads or a lower rate");
    if (std::isfinite(s_.slo.tpot) && static_cast<double>(sum.in_one_piece) > kFewest * double(sum.completed))
      phase.invalid =
          str(sum.in_one_piece, " of ", sum.completed, " answers came in one piece, so what a token of them ",
              "took is not known; leave tpot out of the SLO, or let the server stream each token");
    if (!s_.cached_share || sum.cache_known == 0) return;
    const double share = sum.cached_share();
    if (share < s_.cached_share->low || share > s_.cached_share->high)
      phase.invalid =
          str("the cache is not as declared: the server says that ", format_number(100 * share),
              " % of the prompt tokens were cached, expected are ", format_number(100 * s_.cached_share->low), " to ",
              format_number(100 * s_.cached_share->high), " %");
  }

  // run_load in a thread of its own, while this one writes the log, if there is any, looks at progress and lets the
  // user stop.
  std::vector<Record> watched(ClientOptions options, const std::vector<double>& times, const Bodies& bodies,
                              const RecordFn& finished, const std::function<void()>& look, ItemLog* log) {
    stop_ = false;
    options.stop = &stop_;
    options.output_tokens = [&](int64_t i) { return bodies.output_tokens(i); };
    std::mutex mutex;
    std::vector<Record> fresh;
    std::atomic<bool> over = false;
    std::vector<Record> records;
    std::exception_ptr thrown;
    std::thread thread([&] {
      try {
        records = run_load(
            options, times, [&](int64_t i) { return bodies.body(i); },
            [&](const Record& record) {
              const std::lock_guard lock(mutex);
              finished(record);
              if (log) fresh.push_back(record);
            });
      } catch (...) {
        thrown = std::current_exception();
      }
      over = true;
    });
    const auto keep = [&] {
      std::vector<Record> rows;
      {
        const std::lock_guard lock(mutex);
        rows.swap(fresh);
        look();
      }
      if (rows.empty()) return;
      std::vector<nlohmann::ordered_json> jsons;
      for (const Record& row : rows) {
        jsons.push_back({{"phase", phase_}});
        if (!mode_.empty()) jsons.back()["mode"] = mode_;
        jsons.back().update(row_of(row));
      }
      log->append(name_, jsons);
    };
    try {
      while (!over) {
        std::this_thread::sleep_for(kLook);
        keep();
      }
    } catch (...) {
      stop_ = true;
      thread.join();
      throw;
    }
    thread.join();
    if (thrown) std::rethrow_exception(thrown);
    keep();
    return records;
  }

  const Settings& s_;
  BodyOptions body_;
  std::string name_, mode_;
  ItemLog* items_;
  std::unique_ptr<MockServer> mock_;
  ClientOptions client_;
  std::atomic<bool> stop_ = false;
  int64_t next_ = 0;   // prompts are never sent twice, so that no phase finds its own in the cache
  int64_t phase_ = 0;  // in the log of requests
  Clock::time_point begun_;
};

Table latencies(const Summary& s) {
  Table table{"Latencies, ms from the scheduled time", {"", "mean", "p50", "p90", "p99", "samples"}, {}};
  const auto row = [&](const char* name, const std::vector<double>& samples) {
    if (samples.empty()) return;
    double sum = 0;
    for (const double x : samples) sum += x;
    std::vector<Cell> cells = {name, Cell(1e3 * sum / static_cast<double>(samples.size()), Format::fixed, 2)};
    for (const double q : {0.5, 0.9, 0.99}) cells.emplace_back(1e3 * quantile(samples, q), Format::fixed, 2);
    cells.emplace_back(samples.size());
    table.rows.push_back(std::move(cells));
  };
  row("TTFT", s.ttft);
  row("TPOT", s.tpot);
  row("ITL", s.itl);
  row("E2E", s.e2el);
  row("sent after", s.queue);
  row("client lag", s.lag);
  table.note =
      "TTFT, TPOT, ITL and E2E are of answered requests; errors and time-outs count as misses of the SLO. \"Sent "
      "after\" holds the wait for a connection.";
  return table;
}

void describe(Result& result, const Settings& s, const Phase& phase) {
  result.values = values_of(phase.summary);
  result.values.push_back({"request_rate", phase.rate, "1/s"});
  if (!s.own) result.values.push_back({"client_cpu", phase.cpu, "cores"});
  result.tables.push_back(latencies(phase.summary));
  std::string& note = result.note;
  if (!s.own) note += str("Open loop, ", s.url == "mock" ? "against a server that only waits" : s.url, ". ");
  if (!phase.summary.counted_by_server)
    note += "The server did not count its tokens: a token is a piece of the stream, and input tokens are not known. ";
  if (s.cache == Cache::any)
    note += "The state of the cache was not declared.";
  else
    note +=
        str("The cache was declared ", s.cache == Cache::cold ? "cold" : "primed",
            phase.summary.cache_known == 0 ? "; the server does not say what it found in it, so this is not checked."
            : s.cached_share               ? "; the server's counters agree."
                                           : "; nothing was expected of the server's counters.");
  if (phase.saturated) note += " More requests came than the server could answer: the number in flight kept growing.";
  if (!phase.first_error.empty()) note += " First error: " + one_line(phase.first_error, 300);
}

Result run_once(const Settings& s, Session& session, const ProgressFn& progress) {
  const Phase phase = session.measure(s.pattern.rate, s.requests, s.requests + 1,
                                      [&](double share, const std::string& what) { progress(share, what); });
  Result result;
  describe(result, s, phase);
  if (!phase.invalid.empty()) {
    result.verdict = Verdict::invalid;
    result.why = phase.invalid;
    return result;
  }
  result.verdict = Verdict::pass;
  if (phase.summary.completed == 0) {
    result.verdict = Verdict::fail;
    result.why = "no request was answered: " + one_line(phase.first_error, 300);
  } else if (s.slo.any()) {
    const MissBounds bounds = miss_bounds(s.requests, phase.misses, s.confidence);
    result.values.push_back({"slo_misses_low", bounds.low, ""});
    result.values.push_back({"slo_misses_high", bounds.high, ""});
    result.verdict = judge(s.requests, phase.misses, s.allowed, s.confidence);
    result.why =
        str(phase.misses, " of ", s.requests, " requests missed the SLO; allowed are ", format_number(100 * s.allowed),
            " %, at ", format_number(100 * s.confidence), " % confidence ",
            result.verdict == Verdict::fail ? "it is more than " : "it is at most ",
            format_number(100 * (result.verdict == Verdict::fail ? bounds.low : bounds.high), Format::fixed, 2), " %");
  }
  return result;
}

Result run_search(const Settings& s, Session& session, const ProgressFn& progress) {
  std::vector<Phase> phases;
  const double each = 1 - (1 - s.confidence) / s.searching.verifications;
  const double halvings = std::log2(std::log(2) / std::log1p(s.searching.precision));
  const double most = 4 + halvings + s.searching.verifications;  // probes, about
  const SearchResult found = search_rate(s.searching, [&](double rate, int64_t requests) {
    const auto probed = static_cast<double>(phases.size());
    phases.push_back(session.measure(
        rate, requests, misses_to_fail(requests, s.allowed, each),
        [&](double share, const std::string& what) { progress(std::min((probed + share) / most, 0.95), what); }));
    const Phase& phase = phases.back();
    Probe probe;
    probe.misses = phase.misses;
    probe.cut = phase.decided || phase.saturated;
    // What was cut short need not say that the client kept up, but only the server can have let it down.
    probe.invalid = phase.invalid;
    return probe;
  });
  Result result;
  Table table{"Probes", {"requests/s", "requests", "missed", "share", "TTFT p50, ms", "TTFT p90, ms", ""}, {}};
  Series misses{"missed", {}, {}};
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < found.probes.size(); ++i) {
    const Probe& probe = found.probes[i];
    const Summary& sum = phases[i].summary;
    const auto ms = [&](double q) {
      return sum.ttft.empty() ? Cell("-") : Cell(1e3 * quantile(sum.ttft, q), Format::fixed, 1);
    };
    const std::string verdict = !probe.invalid.empty() ? "INVALID"
                                : probe.verification   ? str(to_string(probe.verdict))
                                                       : "";
    table.rows.push_back({Cell(probe.rate, Format::fixed, 3), Cell(probe.requests), Cell(probe.misses),
                          probe.cut ? Cell("cut") : Cell(probe.share(), Format::percent, 2), ms(0.5), ms(0.9),
                          Cell(verdict)});
    points.push_back({probe.rate, probe.share()});
  }
  table.note =
      str("Allowed to miss: ", format_number(100 * s.allowed),
          " %. \"cut\": ended early, because the misses had decided or the number in flight grew without end.");
  std::sort(points.begin(), points.end());
  for (const auto& [rate, share] : points) {
    misses.x.push_back(rate);
    misses.y.push_back(share);
  }
  const size_t shown = phases.size() - 1;  // the verification that passed, or what it ended with
  describe(result, s, phases[shown]);
  result.tables.insert(result.tables.begin(), std::move(table));
  result.charts.push_back({.title = "Requests that miss the SLO",
                           .x_label = "requests a second",
                           .y_label = "share",
                           .log_x = true,
                           .series = {misses}});
  if (found.rate) result.values.push_back({"max_qps", *found.rate, "1/s"});
  if (found.fails) result.values.push_back({"fails_qps", *found.fails, "1/s"});
  result.verdict = found.verdict;
  result.why = found.why;
  return result;
}

double value_of(const Result& result, const std::string& tag) {
  for (const Value& value : result.values)
    if (value.tag == tag) return value.value;
  return std::nan("");
}

// Of several measurements: the one that leaves the least said.
Verdict weakest(Verdict a, Verdict b) {
  for (const Verdict verdict : {Verdict::invalid, Verdict::fail, Verdict::undecided})
    if (a == verdict || b == verdict) return verdict;
  return a;
}

// One mode after another, each on a server of its own.
Result run_modes(const Settings& s, const std::string& name, ItemLog* items, ModelShelf& shelf,
                 const ProgressFn& progress) {
  const Own& own = *s.own;
  progress(0, "loading " + own.choice.model);
  const Model& model = shelf.open(own.choice);
  const ReuseCosts costs = costs_of(model);
  raise_descriptors(kDescriptors);
  Result result;
  result.verdict = Verdict::pass;
  Table table{"Modes",
              {"mode", "requests/s", "over prefix", "by the trace", "of that", "cached", "by the trace", "missed",
               "TTFT p50, ms", "TTFT p90, ms", "verdict"},
              {}};
  const int64_t measured = s.search ? s.searching.verify_requests : s.requests;
  const auto computed = [&](const Mode& mode) {
    return 1 - trace_share(*s.trace, s.trace_first, measured, s.cache == Cache::primed ? s.trace_prime : 0, mode,
                           own.server.cache_bytes + own.server.host_bytes, costs);
  };
  std::vector<Result> results;
  for (size_t i = 0; i < own.modes.size(); ++i) {
    OwnServerOptions options = own.server;
    options.mode = own.modes[i];
    const OwnServer server(model, options);
    Settings here = s;
    if (options.mode.reuse == Reuse::none) here.cache = Cache::any;  // nothing is kept, so nothing can be primed
    Session session(here, name, items, server.url(), options.mode.name);
    const ProgressFn part = [&](double share, const std::string& what) {
      progress((static_cast<double>(i) + share) / static_cast<double>(own.modes.size()),
               options.mode.name + ": " + what);
    };
    results.push_back(s.search ? run_search(here, session, part) : run_once(here, session, part));
    results.back().values.push_back({"together", server.prompts_together(), "prompts a forward"});
  }
  double prefix_rate = std::nan(""), prefix_computed = prefix_rate;
  for (size_t i = 0; i < own.modes.size(); ++i) {
    if (own.modes[i].name != "prefix") continue;
    prefix_rate = value_of(results[i], "max_qps");
    prefix_computed = computed(own.modes[i]);
  }
  for (size_t i = 0; i < own.modes.size(); ++i) {
    const Mode& mode = own.modes[i];
    Result& one = results[i];
    const double left = computed(mode), rate = value_of(one, "max_qps"), ratio = rate / prefix_rate,
                 limit = prefix_computed / left;
    const auto shown = [](double x, Format format, int digits) {
      return std::isfinite(x) ? Cell(x, format, digits) : Cell("-");
    };
    table.rows.push_back({Cell(mode.name), shown(rate, Format::fixed, 3), shown(ratio, Format::fixed, 2),
                          shown(limit, Format::fixed, 2), shown(ratio / limit, Format::percent, 0),
                          shown(value_of(one, "cached_share"), Format::percent, 1), Cell(1 - left, Format::percent, 1),
                          shown(value_of(one, "slo_misses"), Format::fixed, 0),
                          shown(value_of(one, "median_ttft_ms"), Format::fixed, 1),
                          shown(value_of(one, "p90_ttft_ms"), Format::fixed, 1), Cell(str(to_string(one.verdict)))});
    for (Value& value : one.values) result.values.push_back({value.tag + "." + mode.name, value.value, value.unit});
    for (const auto& [tag, value] : {std::pair("trace_share", 1 - left),
                                     {"over_prefix", ratio},
                                     {"trace_over_prefix", limit},
                                     {"of_trace", ratio / limit}})
      if (std::isfinite(value)) result.values.push_back({str(tag, ".", mode.name), value, ""});
    for (Table& each : one.tables) {
      each.title = mode.name + ": " + each.title;
      result.tables.push_back(std::move(each));
    }
    for (Chart& chart : one.charts) {
      chart.title = mode.name + ": " + chart.title;
      result.charts.push_back(std::move(chart));
    }
    if (one.verdict != Verdict::pass && result.why.empty()) result.why = mode.name + ": " + one.why;
    result.verdict = weakest(result.verdict, one.verdict);
  }
  table.note =
      str("By the trace: what a cache of ", format_number(static_cast<double>(own.server.cache_bytes) / kGib), " GiB",
          own.server.host_bytes > 0
              ? str(" and ", format_number(static_cast<double>(own.server.host_bytes) / kGib), " GiB of host memory")
              : "",
          " can find, by simulation, and the ratio of rates if time were the tokens that are left to compute. "
          "A residue takes ",
          format_number(static_cast<double>(costs.segment_bytes) / kGib * 1024), " MiB beside K, V on the device.");
  result.tables.insert(result.tables.begin(), std::move(table));
  result.note = str(own.choice.model, " on ", own.choice.on(), ", by hypic's own server in this process, open loop.");
  return result;
}

}  // namespace

// Parameters: url ("mock", "serve", or http://…), api (openai, generate), flush, served_model, prompts (text, ids,
// segments), vocabulary,
// separator, segments, tokens, question, pool, output_tokens, trace, token_lengths, trace_first, trace_prime, requests,
// warmup, arrivals (constant, poisson, gamma, burst, trace), rate, burstiness, burst, speed, cache (any, cold, primed),
// cached_share [least, most], slo, slo_share, confidence, timeout, lag_bound_ms, max_concurrency, threads, seed;
// search (1), verify_requests, verifications, precision, highest_rate; mock_{ttft_ms, itl_ms, cv, capacity, errors,
// hangs, cached_speed}; of "serve" model, backend, tensor_parallel, devices, modes, cache_gib, host_gib, at_once,
// chunk. docs/load.md says what they mean.
// Values: those of values_of (harness/load/summary.h), request_rate, client_cpu, slo_misses_{low, high}; of a search
// max_qps and fails_qps beside those of its last verification. Of "serve" the same by mode, NAME.MODE, and trace_share,
// over_prefix, trace_over_prefix, of_trace. Items: a line for each request.
Work prepare_qps(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  const auto settings = std::make_shared<const Settings>(read_settings(suite_case, where, context));
  return [settings, name = suite_case.name, items = context.items,
          shelf = ModelShelf::shared()](const ProgressFn& progress) {
    if (!settings->missing.empty()) {
      Result skipped;
      skipped.verdict = Verdict::skip;
      skipped.why = settings->missing;
      return skipped;
    }
    progress(0, settings->url);
    if (settings->own) return run_modes(*settings, name, items, *shelf, progress);
    Session session(*settings, name, items);
    return settings->search ? run_search(*settings, session, progress) : run_once(*settings, session, progress);
  };
}

}  // namespace hypic
