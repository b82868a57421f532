#include "harness/load/schedule.h"

#include <boost/random/exponential_distribution.hpp>
#include <boost/random/gamma_distribution.hpp>
#include <boost/random/mersenne_twister.hpp>

#include "core/check.h"

namespace hypic::load {

Arrivals arrivals_of(const std::string& name) {
  if (name == "constant") return Arrivals::constant;
  if (name == "poisson") return Arrivals::poisson;
  if (name == "gamma") return Arrivals::gamma;
  if (name == "burst") return Arrivals::burst;
  fail("must be constant, poisson, gamma, burst or trace, is \"", name, "\"");
}

std::vector<double> schedule(const Pattern& pattern, int64_t requests) {
  HYPIC_CHECK(pattern.rate > 0 && pattern.burstiness > 0 && pattern.burst >= 1);
  boost::random::mt19937_64 bits(pattern.seed);  // Boost's distributions are the same with every standard library
  boost::random::exponential_distribution<double> exponential(1);
  boost::random::gamma_distribution<double> gamma(pattern.burstiness, 1 / pattern.burstiness);
  std::vector<double> times;
  times.reserve(requests);
  double at = 0;  // in units of 1 / rate
  for (int64_t i = 0; i < requests; ++i) {
    times.push_back(at / pattern.rate);
    switch (pattern.arrivals) {
      case Arrivals::constant:
        at = static_cast<double>(i + 1);
        break;
      case Arrivals::poisson:
        at += exponential(bits);
        break;
      case Arrivals::gamma:
        at += gamma(bits);
        break;
      case Arrivals::burst:
        at = static_cast<double>((i + 1) / pattern.burst * pattern.burst);
        break;
    }
  }
  return times;
}

std::vector<double> schedule(const Trace& trace, int64_t first, int64_t requests, double speed) {
  HYPIC_CHECK(speed > 0 && first >= 0 && first + requests <= static_cast<int64_t>(trace.requests.size()));
  std::vector<double> times;
  times.reserve(requests);
  for (int64_t i = first; i < first + requests; ++i)
    times.push_back((trace.requests[i].timestamp - trace.requests[first].timestamp) / speed);
  return times;
}

}  // namespace hypic::load
