#include "harness/measure/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "core/check.h"

namespace hypic {
namespace {

constexpr double kTail = 0.025;

// `statistic` of many draws of n round numbers, with replacement.
template <class Statistic>
Interval percentiles(size_t n, uint64_t seed, int resamples, const Statistic& statistic) {
  std::mt19937_64 bits(seed);
  std::vector<size_t> drawn(n);
  std::vector<double> values;
  for (int i = 0; i < resamples; ++i) {
    for (size_t& round : drawn) round = bits() % n;
    values.push_back(statistic(drawn));
  }
  return {quantile(values, kTail), quantile(values, 1 - kTail)};
}

double median_of(std::span<const double> samples, const std::vector<size_t>& drawn) {
  std::vector<double> chosen;
  for (const size_t round : drawn) chosen.push_back(samples[round]);
  return median(chosen);
}

}  // namespace

double quantile(std::span<const double> samples, double p) {
  HYPIC_CHECK(!samples.empty() && 0 <= p && p <= 1);
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const double rank = p * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(rank), above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double median(std::span<const double> samples) { return quantile(samples, 0.5); }

int64_t samples_for(double p) {
  HYPIC_CHECK(0 <= p && p < 1);
  return static_cast<int64_t>(std::ceil(1 / (1 - p) - 1e-9));  // 1 − 0.9 is not quite 0.1
}

Interval median_interval(std::span<const double> samples, uint64_t seed, int resamples) {
  return percentiles(samples.size(), seed, resamples,
                     [&](const std::vector<size_t>& drawn) { return median_of(samples, drawn); });
}

Interval mean_interval(std::span<const std::vector<double>> groups, uint64_t seed, int resamples) {
  const auto empty = [](const std::vector<double>& group) { return group.empty(); };
  if (groups.empty() || std::any_of(groups.begin(), groups.end(), empty)) return {NAN, NAN};
  std::vector<double> means(resamples, 0);
  std::mt19937_64 bits(seed);
  for (double& mean : means) {
    for (const std::vector<double>& group : groups) {
      double sum = 0;
      for (size_t i = 0; i < group.size(); ++i) sum += group[bits() % group.size()];
      mean += sum / static_cast<double>(group.size());
    }
    mean /= static_cast<double>(groups.size());
  }
  return {quantile(means, kTail), quantile(means, 1 - kTail)};
}

Interval recovered_interval(std::span<const double> mode, std::span<const double> floor, std::span<const double> full,
                            uint64_t seed, int resamples) {
  HYPIC_CHECK(mode.size() == full.size() && floor.size() == full.size());
  bool gains = !full.empty();
  if (!gains) return {NAN, NAN};
  const Interval interval = percentiles(full.size(), seed, resamples, [&](const std::vector<size_t>& drawn) {
    double kept = 0, gained = 0;
    for (const size_t i : drawn) {
      kept += mode[i] - floor[i];
      gained += full[i] - floor[i];
    }
    gains = gains && gained > 0;
    return gains ? kept / gained : 0;
  });
  return gains ? interval : Interval{NAN, NAN};
}

Interval ratio_interval(std::span<const double> numerator, std::span<const double> denominator,
                        uint64_t seed, int resamples) {
  HYPIC_CHECK(numerator.size() == denominator.size());
  return percentiles(numerator.size(), seed, resamples, [&](const std::vector<size_t>& drawn) {
    return median_of(numerator, drawn) / median_of(denominator, drawn);
  });
}

}  // namespace hypic
