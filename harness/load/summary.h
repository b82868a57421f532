// From what became of each request to numbers and a verdict.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/load/client.h"
#include "reports/report.h"

namespace hypic::load {

// Seconds, each from the scheduled time; infinite: not asked for.
struct Slo {
  double ttft = std::numeric_limits<double>::infinity();  // time to first token
  double tpot = std::numeric_limits<double>::infinity();  // a token after the first, mean of a request
  double e2el = std::numeric_limits<double>::infinity();  // the whole answer
  bool any() const;
  double longest_wait() const;  // for a first token: min(ttft, e2el)
};
// From "ttft:1000", "tpot:50", "e2el:5000", milliseconds, as vLLM's --goodput. Error: another form, a name twice.
Slo parse_slo(const std::vector<std::string>& parts);

// Of an answer. Seconds.
double ttft(const Record& record);
double e2el(const Record& record);
int64_t output_tokens(const Record& record);  // by the server's count, else the pieces of text that came
double tpot(const Record& record);            // NaN for one token, and for several in one piece

// Whether a request was answered in time; one that ended in an error was not.
bool meets(const Record& record, const Slo& slo);

struct Summary {
  int64_t requests = 0, completed = 0, failed = 0, met = 0;  // failed: errors, time-outs, those not sent
  double duration = 0;                                       // seconds from the first scheduled time to the last end
  int64_t input_tokens = 0, output_tokens = 0;               // of those completed
  bool counted_by_server = true;                             // both, of all completed
  int64_t in_one_piece = 0;                                  // of those completed: several tokens, and no time between
  std::vector<double> ttft, tpot, itl, e2el;                 // seconds, of those completed
  std::vector<double> queue, lag;  // seconds from the scheduled time until sent, and until the client took it up
  int64_t cache_known = 0, cached_tokens = 0, cache_prompt_tokens = 0;  // requests whose cached tokens the server told
  int64_t peak_in_flight = 0;
  double cached_share() const;  // NaN where no server told
};
Summary summarise(const std::vector<Record>& records, const Slo& slo);

// Under the names of vLLM's benchmark (mean_ttft_ms, p99_itl_ms, request_throughput, …), and our own where it has
// none: queue, lag, cached_share, slo_misses.
std::vector<Value> values_of(const Summary& summary);

// One line of the log of requests: times in seconds from the start, latencies in milliseconds.
nlohmann::ordered_json row_of(const Record& record);

// One-sided bounds of the share of misses behind `misses` of `n`, each of this confidence (Clopper, Pearson 1934).
struct MissBounds {
  double low = 0, high = 1;
};
MissBounds miss_bounds(int64_t n, int64_t misses, double confidence);

// Whether no more than `allowed` of all requests miss: pass where the upper bound says so, fail where the lower bound
// denies it, else undecided. n must be chosen before the run.
Verdict judge(int64_t n, int64_t misses, double allowed, double confidence);

// The fewest misses of n that make judge() fail: with these a run can end before all n, for the rest changes nothing.
// n + 1: there is no such number.
int64_t misses_to_fail(int64_t n, double allowed, double confidence);
// The most that let it pass; −1: n is too small for any.
int64_t misses_to_pass(int64_t n, double allowed, double confidence);

}  // namespace hypic::load
