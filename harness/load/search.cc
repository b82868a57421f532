#include "harness/load/search.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "harness/load/summary.h"

namespace hypic::load {

double Probe::share() const { return cut ? 1 : static_cast<double>(misses) / static_cast<double>(requests); }

bool over_saturated(const std::vector<InFlight>& samples, double rate, double wait) {
  const size_t from = samples.size() / 2, n = samples.size() - from;
  if (n < 16 || !std::isfinite(wait)) return false;
  const auto bearable = [&](const InFlight& sample) { return static_cast<double>(sample.count) / rate <= wait; };
  if (std::any_of(samples.end() - static_cast<std::ptrdiff_t>(n / 2), samples.end(), bearable)) return false;
  double mean_t = 0, mean_c = 0;
  for (size_t i = from; i < samples.size(); ++i) {
    mean_t += samples[i].at / static_cast<double>(n);
    mean_c += static_cast<double>(samples[i].count) / static_cast<double>(n);
  }
  double tt = 0, tc = 0, cc = 0;
  for (size_t i = from; i < samples.size(); ++i) {
    const double t = samples[i].at - mean_t, c = static_cast<double>(samples[i].count) - mean_c;
    tt += t * t;
    tc += t * c;
    cc += c * c;
  }
  if (tt == 0 || tc <= 0) return false;
  const double slope = tc / tt, left = std::max(cc - slope * tc, 0.0);
  return slope > 4 * std::sqrt(left / static_cast<double>(n - 2) / tt);
}

SearchResult search_rate(const SearchOptions& o, const ProbeFn& probe) {
  HYPIC_CHECK(o.lowest > 0 && o.lowest <= o.start && o.start <= o.highest && o.precision > 0 && o.verifications > 0);
  SearchResult result;
  // Several tries at the same answer: each has its part of the risk (Bonferroni).
  const double confidence = 1 - (1 - o.confidence) / o.verifications;
  require(misses_to_pass(o.verify_requests, o.allowed, confidence) >= 0, "a verification of ", o.verify_requests,
          " requests can never show that at most ", 100 * o.allowed, " % of requests miss; take more");
  const auto offer = [&](double rate, int64_t requests, bool verification) -> const Probe& {
    Probe made = probe(rate, requests);
    made.rate = rate;
    made.requests = requests;
    made.verification = verification;
    if (verification && made.invalid.empty())
      made.verdict = made.cut ? Verdict::fail : judge(requests, made.misses, o.allowed, confidence);
    return result.probes.emplace_back(std::move(made));
  };
  const auto end = [&](Verdict verdict, const std::string& why) {
    result.verdict = verdict;
    result.why = why;
    return result;
  };
  const auto invalid = [&](const Probe& at) {
    return end(Verdict::invalid, str("at ", at.rate, " requests/s: ", at.invalid));
  };

  std::optional<double> low, high;
  for (double rate = o.start; !low || !high;) {
    const Probe& at = offer(rate, o.probe_requests, false);
    if (!at.invalid.empty()) return invalid(at);
    (at.share() <= o.allowed ? low : high) = rate;
    if (!high) {
      if (rate >= o.highest) break;
      rate = std::min(2 * rate, o.highest);
    } else if (!low) {
      if (rate <= o.lowest) {
        result.fails = rate;
        return end(Verdict::fail, str("too many requests miss at ", rate, " requests/s, the lowest rate"));
      }
      rate = std::max(rate / 2, o.lowest);
    }
  }
  while (high && *high / *low > 1 + o.precision) {
    const double rate = std::sqrt(*low * *high);
    const Probe& at = offer(rate, o.probe_requests, false);
    if (!at.invalid.empty()) return invalid(at);
    (at.share() <= o.allowed ? low : high) = rate;
  }
  result.fails = high;

  double rate = *low;
  int failed = 0;
  for (int i = 0; i < o.verifications; ++i) {
    const Probe& at = offer(rate, o.verify_requests, true);
    if (!at.invalid.empty()) return invalid(at);
    if (at.verdict == Verdict::pass) {
      result.rate = rate;
      return end(Verdict::pass, str(at.misses, " of ", at.requests, " requests missed at ", rate, " requests/s"));
    }
    if (at.verdict == Verdict::fail) {
      ++failed;
      result.fails = rate;
    }
    rate /= 1 + 2 * o.precision;
  }
  return failed == o.verifications
             ? end(Verdict::fail, "every rate that the probes found good failed when it was verified")
             : end(Verdict::undecided, "no verification had few enough misses to pass; ask for more requests in each");
}

}  // namespace hypic::load
