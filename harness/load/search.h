// The highest rate at which few enough requests miss their SLO: double to bracket, halve the bracket (of log rates),
// then verify the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reports/report.h"

namespace hypic::load {

struct Probe {
  double rate = 0;
  int64_t requests = 0;  // fixed beforehand
  int64_t misses = 0;    // in a run that ended early: so far
  bool cut = false;      // ended early: the misses already decided it, or the server was over-saturated
  std::string invalid;   // why it measured nothing; empty: it did
  bool verification = false;
  Verdict verdict = Verdict::undecided;  // by judge(), of verifications
  double share() const;                  // of misses; 1 where cut
};
// Offers `requests` at `rate`; a new schedule and new requests at each call.
using ProbeFn = std::function<Probe(double rate, int64_t requests)>;

struct SearchOptions {
  double start = 1;  // requests a second, of the first probe
  double lowest = 1e-3, highest = 1e5;
  double allowed = 0.1;      // share of requests that may miss
  double confidence = 0.99;  // of the whole answer: split over the verifications
  double precision = 0.05;   // halve until the bracket is this narrow
  int64_t probe_requests = 200;
  int64_t verify_requests = 500;
  int verifications = 3;  // at most, each at a lower rate than the one before
};

struct SearchResult {
  std::vector<Probe> probes;  // in order
  // pass: `rate` holds. undecided: no verification passed, yet not all failed. fail: none did, or the lowest rate
  // misses too. invalid: the client could not keep up, so that nothing is known.
  Verdict verdict = Verdict::undecided;
  std::optional<double> rate;   // verified
  std::optional<double> fails;  // the lowest rate that was judged too high, by a verification or a probe
  std::string why;
};

// Error: verify_requests too few for any verdict of pass.
SearchResult search_rate(const SearchOptions& options, const ProbeFn& probe);

// Whether the number of requests in flight grows without end: over the second half of the samples its slope is certain
// (t > 4), and over the last quarter of them the wait that it stands for, by Little's law, is always beyond `wait`
// seconds. (The slope alone is not enough: a queue's samples hang together, so a burst that is soon worked off has a
// slope as well.) Samples by time.
struct InFlight {
  double at;      // seconds
  int64_t count;  // due and not ended
};
bool over_saturated(const std::vector<InFlight>& samples, double rate, double wait);

}  // namespace hypic::load
