#include "harness/load/summary.h"

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "core/check.h"
#include "harness/measure/bootstrap.h"

namespace hypic::load {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double mean(const std::vector<double>& samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

double deviation(const std::vector<double>& samples) {
  const double m = mean(samples);
  double sum = 0;
  for (const double x : samples) sum += (x - m) * (x - m);
  return std::sqrt(sum / static_cast<double>(samples.size()));
}

}  // namespace

bool Slo::any() const { return std::isfinite(ttft) || std::isfinite(tpot) || std::isfinite(e2el); }
double Slo::longest_wait() const { return std::min(ttft, e2el); }

Slo parse_slo(const std::vector<std::string>& parts) {
  Slo slo;
  for (const std::string& part : parts) {
    const size_t colon = part.find(':');
    const std::string name = part.substr(0, colon), number = colon == part.npos ? "" : part.substr(colon + 1);
    double* bound = name == "ttft" ? &slo.ttft : name == "tpot" ? &slo.tpot : name == "e2el" ? &slo.e2el : nullptr;
    char* end = nullptr;
    const double ms = std::strtod(number.c_str(), &end);
    require(bound && !number.empty() && *end == 0 && ms > 0 && std::isfinite(ms),
            "must be ttft:MS, tpot:MS or e2el:MS with milliseconds above 0, is \"", part, "\"");
    require(std::isinf(*bound), "names ", name, " twice");
    *bound = ms / 1e3;
  }
  return slo;
}

double ttft(const Record& record) { return record.tokens_at.empty() ? kNan : record.tokens_at[0] - record.scheduled; }
double e2el(const Record& record) { return record.ended - record.scheduled; }

int64_t output_tokens(const Record& record) {
  return record.output_tokens >= 0 ? record.output_tokens : static_cast<int64_t>(record.tokens_at.size());
}

double tpot(const Record& record) {
  const int64_t tokens = output_tokens(record);
  if (tokens < 2 || record.tokens_at.size() < 2) return kNan;
  return (record.tokens_at.back() - record.tokens_at.front()) / static_cast<double>(tokens - 1);
}

bool meets(const Record& record, const Slo& slo) {
  return record.ok() && !(ttft(record) > slo.ttft) && !(tpot(record) > slo.tpot) && !(e2el(record) > slo.e2el);
}

double Summary::cached_share() const {
  return cache_prompt_tokens == 0 ? kNan
                                  : static_cast<double>(cached_tokens) / static_cast<double>(cache_prompt_tokens);
}

Summary summarise(const std::vector<Record>& records, const Slo& slo) {
  Summary out;
  out.requests = static_cast<int64_t>(records.size());
  std::vector<std::pair<double, int>> changes;  // of the number in flight
  for (const Record& record : records) {
    if (record.released >= 0) {
      out.lag.push_back(record.released - record.scheduled);
      changes.push_back({record.released, 1});
      changes.push_back({record.ended, -1});
      out.duration = std::max(out.duration, record.ended - records.front().scheduled);
    }
    if (record.sent >= 0) out.queue.push_back(record.sent - record.scheduled);
    out.met += meets(record, slo);
    if (!record.ok()) continue;
    ++out.completed;
    out.ttft.push_back(ttft(record));
    out.e2el.push_back(e2el(record));
    if (const double each = tpot(record); !std::isnan(each)) out.tpot.push_back(each);
    out.in_one_piece += output_tokens(record) > 1 && record.tokens_at.size() == 1;
    for (size_t i = 1; i < record.tokens_at.size(); ++i)
      out.itl.push_back(record.tokens_at[i] - record.tokens_at[i - 1]);
    out.input_tokens += std::max<int64_t>(record.prompt_tokens, 0);
    out.output_tokens += output_tokens(record);
    out.counted_by_server = out.counted_by_server && record.prompt_tokens >= 0 && record.output_tokens >= 0;
    if (record.cached_tokens >= 0 && record.prompt_tokens >= 0) {
      ++out.cache_known;
      out.cached_tokens += record.cached_tokens;
      out.cache_prompt_tokens += record.prompt_tokens;
    }
  }
  out.failed = out.requests - out.completed;
  std::sort(changes.begin(), changes.end());  // at the same time those that end first
  int64_t now = 0;
  for (const auto& [at, change] : changes) out.peak_in_flight = std::max(out.peak_in_flight, now += change);
  return out;
}

std::vector<Value> values_of(const Summary& s) {
  const double seconds = std::max(s.duration, 1e-9);
  const auto rate = [&](int64_t n) { return static_cast<double>(n) / seconds; };
  std::vector<Value> values = {{"num_prompts", double(s.requests), "requests"},
                               {"completed", double(s.completed), "requests"},
                               {"failed", double(s.failed), "requests"},
                               {"duration", s.duration, "s"},
                               {"total_input_tokens", double(s.input_tokens), "tokens"},
                               {"total_output_tokens", double(s.output_tokens), "tokens"},
                               {"request_throughput", rate(s.completed), "1/s"},
                               {"request_goodput", rate(s.met), "1/s"},
                               {"output_throughput", rate(s.output_tokens), "tokens/s"},
                               {"total_token_throughput", rate(s.input_tokens + s.output_tokens), "tokens/s"},
                               {"max_concurrent_requests", double(s.peak_in_flight), "requests"}};
  const auto add = [&](const char* name, const std::vector<double>& samples) {
    if (samples.empty()) return;
    const auto value = [&](const std::string& what, double x) {
      values.push_back({what + "_" + name + "_ms", 1e3 * x, "ms"});
    };
    value("mean", mean(samples));
    value("median", median(samples));
    value("std", deviation(samples));
    for (const int p : {50, 90, 99}) value("p" + std::to_string(p), quantile(samples, p / 100.0));
  };
  add("ttft", s.ttft);
  add("tpot", s.tpot);
  add("itl", s.itl);
  add("e2el", s.e2el);
  add("queue", s.queue);
  add("lag", s.lag);
  values.push_back({"slo_misses", double(s.requests - s.met), "requests"});
  if (s.cache_known > 0) values.push_back({"cached_share", s.cached_share(), ""});
  return values;
}

nlohmann::ordered_json row_of(const Record& r) {
  const auto known = [](double value, bool is) -> nlohmann::ordered_json {
    if (!is || std::isnan(value)) return nullptr;
    return value;
  };
  nlohmann::ordered_json gaps = nlohmann::ordered_json::array();
  for (size_t i = 1; i < r.tokens_at.size(); ++i) gaps.push_back(1e3 * (r.tokens_at[i] - r.tokens_at[i - 1]));
  nlohmann::ordered_json row = {{"request", r.index},
                                {"scheduled", r.scheduled},
                                {"released", known(r.released, r.released >= 0)},
                                {"sent", known(r.sent, r.sent >= 0)},
                                {"ended", known(r.ended, r.ended >= 0)},
                                {"ttft_ms", known(1e3 * ttft(r), true)},
                                {"tpot_ms", known(1e3 * tpot(r), true)},
                                {"e2el_ms", known(1e3 * e2el(r), r.ended >= 0)},
                                {"itl_ms", gaps},
                                {"prompt_tokens", known(double(r.prompt_tokens), r.prompt_tokens >= 0)},
                                {"output_tokens", output_tokens(r)},
                                {"cached_tokens", known(double(r.cached_tokens), r.cached_tokens >= 0)}};
  if (!r.ok()) row["error"] = r.error;
  return row;
}

MissBounds miss_bounds(int64_t n, int64_t misses, double confidence) {
  HYPIC_CHECK(n > 0 && 0 <= misses && misses <= n && 0.5 <= confidence && confidence < 1);
  using Binomial = boost::math::binomial_distribution<double>;
  const double alpha = 1 - confidence, trials = static_cast<double>(n), found = static_cast<double>(misses);
  MissBounds bounds;
  if (misses > 0) bounds.low = Binomial::find_lower_bound_on_p(trials, found, alpha);
  if (misses < n) bounds.high = Binomial::find_upper_bound_on_p(trials, found, alpha);
  return bounds;
}

Verdict judge(int64_t n, int64_t misses, double allowed, double confidence) {
  const MissBounds bounds = miss_bounds(n, misses, confidence);
  return bounds.high <= allowed ? Verdict::pass : bounds.low > allowed ? Verdict::fail : Verdict::undecided;
}

int64_t misses_to_fail(int64_t n, double allowed, double confidence) {
  int64_t low = 0, high = n + 1;  // the bounds rise with the misses
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    judge(n, middle, allowed, confidence) == Verdict::fail ? high = middle : low = middle + 1;
  }
  return low;
}

int64_t misses_to_pass(int64_t n, double allowed, double confidence) {
  int64_t low = -1, high = n;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    judge(n, middle, allowed, confidence) == Verdict::pass ? low = middle : high = middle - 1;
  }
  return low;
}

}  // namespace hypic::load
